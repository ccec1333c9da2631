"""What a run is asked to do, checked when it is made."""

from siafu.config.config_file import read_config, write_config
from siafu.config.dynamic import (
    DYNAMIC_DEFAULTS,
    DYNAMIC_FIELDS,
    MINIBATCH_FIELDS,
    STATIC_FIELDS,
)
from siafu.config.run import (
    MODEL_DEFAULTS,
    RunConfig,
    did_you_mean,
    make_config,
)

__all__ = [
    "DYNAMIC_DEFAULTS",
    "DYNAMIC_FIELDS",
    "MINIBATCH_FIELDS",
    "MODEL_DEFAULTS",
    "STATIC_FIELDS",
    "RunConfig",
    "did_you_mean",
    "make_config",
    "read_config",
    "write_config",
]
