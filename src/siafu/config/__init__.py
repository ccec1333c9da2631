"""What a run is asked to do, checked when it is made."""

from siafu.config.config_file import read_config, write_config
from siafu.config.dynamic import DYNAMIC_DEFAULTS
from siafu.config.run import (
    MODEL_DEFAULTS,
    RunConfig,
    did_you_mean,
    make_config,
)
from siafu.config.scope import SCOPES, Kind, check_scopes, is_asked

__all__ = [
    "DYNAMIC_DEFAULTS",
    "MODEL_DEFAULTS",
    "SCOPES",
    "Kind",
    "RunConfig",
    "check_scopes",
    "did_you_mean",
    "is_asked",
    "make_config",
    "read_config",
    "write_config",
]
