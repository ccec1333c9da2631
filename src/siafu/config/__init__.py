"""What a run is asked to do, checked when it is made."""

from siafu.config.run import (
    MODEL_DEFAULTS,
    RunConfig,
    did_you_mean,
    make_config,
    read_config,
    write_config,
)

__all__ = [
    "MODEL_DEFAULTS",
    "RunConfig",
    "did_you_mean",
    "make_config",
    "read_config",
    "write_config",
]
