"""What a run is asked to do: the sum of what its parts can be told, checked when it is made."""

from siafu.config.run import (
    OWNERS,
    RENAMED,
    ResolvedConfig,
    RunConfig,
    check_scopes,
    flag_of,
    is_asked,
    make_columns,
    make_config,
    owner_of,
    read_run_config,
    scopes_of,
    settings_of,
    shown_flag,
    usual_settings,
    write_config,
)
from siafu.config.training import read_class_weights, read_metrics, read_threshold
from siafu.options import read_config

__all__ = [
    "OWNERS",
    "RENAMED",
    "ResolvedConfig",
    "RunConfig",
    "check_scopes",
    "flag_of",
    "is_asked",
    "make_columns",
    "make_config",
    "owner_of",
    "read_class_weights",
    "read_config",
    "read_metrics",
    "read_run_config",
    "read_threshold",
    "scopes_of",
    "settings_of",
    "shown_flag",
    "usual_settings",
    "write_config",
]
