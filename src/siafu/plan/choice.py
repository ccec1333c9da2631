"""From the settings of a run to a strategy with every choice made."""

import re

from siafu.config import RunConfig
from siafu.errors import ConfigError
from siafu.strategy import Strategy, find_strategy

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def read_bytes(text: str) -> int:
    """Return the bytes that `4GB`, `512 MiB` or a plain number mean."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    try:
        assert match is not None
        number, unit, binary = float(match[1]), match[2].upper(), bool(match[3])
    except (AssertionError, ValueError):
        raise ConfigError(
            "The memory budget can't be read.", seen=text, fix="write it as 4GB or 512MiB"
        ) from None
    powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    return int(number * (1024 ** powers[unit] if binary else _UNITS[unit]))


def choose_strategy(config: RunConfig) -> Strategy:
    """Return the strategy that the settings name, with their own choices on top."""
    return find_strategy(config.strategy).with_choices(
        stages=_stages(config),
        recompute=config.recompute,
        input_cache=config.input_cache,
        prune=config.prune,
    )


def _stages(config: RunConfig) -> int | str | None:
    if config.stages is None:
        return None if config.memory is None else "auto"
    if config.stages == "auto":
        return "auto"
    try:
        return int(config.stages)
    except ValueError:
        raise ConfigError(
            "The number of stages can't be read.",
            seen=f"stages={config.stages}",
            fix="use 1 to the number of ranks, or auto",
        ) from None
