"""Going on with a run that was begun: which settings may be others, and how `auto` finds it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.config import RunConfig, make_config, read_run_config
from siafu.errors import ConfigError
from siafu.launch.run_state import check_epochs, is_prepared
from siafu.record import RunFolder
from siafu.strategy import AUTO

MAY_CHANGE = (
    "epochs",
    "patience",
    "max_dollars",
    "max_calls",
    "deadline",
    "threads",
    "ranks",
    "partition",
    "launcher",
    "ray_address",
    "max_restarts",
    "min_ranks",
    "checkpoint_minutes",
    "keep_checkpoints",
)
"""Settings of a run that may be others when it is resumed."""


def begun_at(config: RunConfig) -> RunFolder | None:
    """Return the run that was begun where this one is to be, if there is one."""
    if not config.out:
        raise ConfigError(
            "Which run to go on with is told by its folder.",
            seen="--resume auto without --out",
            fix="add --out RUN",
        )
    folder = RunFolder(Path(config.out))
    return folder if folder.config.exists() else None


def changes_to(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Return what is to change in a run that was begun, so that it goes on as it is asked for now.

    Raises where it was begun with other settings that it keeps.
    """
    before, now = make_config(**read_run_config(folder.config)).resolved(), config.resolved()
    chosen = {"strategy", "allow"} if config.strategy == AUTO else set()  # when it was begun
    asked = config.model_fields_set - {"out"} - chosen
    changed = {name for name in asked if getattr(before, name) != getattr(now, name)}
    if fixed := sorted(changed - set(MAY_CHANGE)):
        raise ConfigError(
            "The run was begun with other settings.",
            seen="; ".join(
                f"{name} {getattr(before, name)!r} then, {getattr(now, name)!r} now"
                for name in fixed
            ),
            fix=f"give another --out, or those of {folder.config}",
        )
    own = {name for name in ("model", "loss") if ":" in str(getattr(config, name))}
    return {name: getattr(config, name) for name in changed | own}


@dataclass(frozen=True, slots=True)
class Opened:
    """A run as rank 0 found or made it."""

    folder: RunFolder
    config: RunConfig
    is_new: bool


def opened_again(folder: RunFolder, changes: dict[str, Any], size: int) -> Opened:
    """Return a run that was begun, with what is asked of it now."""
    config = make_config(**{**read_run_config(folder.config), **changes, "ranks": size})
    check_epochs(folder, config)
    return Opened(folder, config, is_new=not is_prepared(folder))
