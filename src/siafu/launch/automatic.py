"""`--strategy auto`: the strategy that the settings are for, or the exact one predicted as fastest.

Settings that only some strategies know (`--fanout`, `--wire-bits`, `--pool`) decide before data is
read (`steered`). Else it is chosen once the data is cut, by what `siafu plan` tells, and noted in
the run (`with_chosen_strategy`).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from siafu.comm import choose_device
from siafu.config import RunConfig, check_scopes
from siafu.engine import check_edge_settings, check_network_settings, check_sampled_settings
from siafu.errors import ConfigError, SiafuError
from siafu.graph import folder_kind
from siafu.launch.foreseen import FAILURES, ON_RAY, setting_of
from siafu.memory import free_bytes
from siafu.options import read_bytes
from siafu.plan import (
    Link,
    Outlook,
    Setting,
    candidates,
    foresee,
    offloaded,
    shown_bytes,
    shown_seconds,
)
from siafu.strategy import AUTO, PRESETS, Strategy

_USUAL = "halo"
_EXACT = (_USUAL, "columns", "sar")
"""The first is taken where no other is clearly faster."""
_ROUNDED, _SAMPLED = "adaqp", "batchgnn"
_BESIDE = (_ROUNDED, _SAMPLED, "dorylus")
"""Taken where a setting has a meaning there alone, or where --allow says so."""
_STAGED = (_USUAL, "sar")
_CLEARLY = 0.9
_ROOM = 0.75
"""Of the memory, what others than the usual may take: predictions are not exact, and only of the
usual can the stages still be made more."""


def steered(config: RunConfig, task: str, say: Callable[[str], None]) -> RunConfig:
    """Return the settings with the one strategy that all of them have a meaning for.

    They stay as they are where an exact strategy has a use for all, or none has, which is refused.
    """
    if config.strategy != AUTO:
        return config
    refused = _refusal(config, task)
    for name in _BESIDE if refused is not None else ():
        other = _named(config, name)
        if _refusal(other, task) is None:
            asked = refused.seen.partition(" with ")[0] if refused is not None else ""
            say(f"Strategy: {name}, which {asked} is for; --strategy NAME takes another.")
            return other
    return config


def _refusal(config: RunConfig, task: str) -> ConfigError | None:
    """Return why settings can't be had together, memory aside; None where they can."""
    try:
        _ = config.chosen
        check_scopes(config.kind(over_time=False, task=task), config)
    except ConfigError as error:
        return error
    return None


def _named(config: RunConfig, name: str) -> RunConfig:
    """Return the settings with a strategy in place of `auto`."""
    changes = {"strategy": name, "allow": "exact"}  # which is said to `auto` alone
    if PRESETS[name].unit == "interval" and config.device == "auto":
        changes["device"] = "cpu"  # as settings have it that name such a strategy
    return config.model_copy(update=changes)


def with_chosen_strategy(
    config: RunConfig, parts: Path, say: Callable[[str], None], link: Link | None = None
) -> RunConfig:
    """Return the settings with a strategy in place of `auto`, and say why it was taken.

    `link` is what was measured between ranks of several hosts. Of one rank nothing travels, so that
    exact strategies are the same; a dynamic graph has none to choose.
    """
    if config.strategy != AUTO or folder_kind(parts) != "parts":
        return config
    if config.ranks == 1 and config.allow != "sampled":
        return _named(config, _USUAL)
    link = ON_RAY if config.launcher == "ray" else link
    try:
        found, unknown = _outlooks(config, parts, link), "nothing is predicted of this model"
    except FAILURES as error:
        reason = error.problem if isinstance(error, SiafuError) else str(error)
        found, unknown = [], f"its forecast failed: {reason or type(error).__name__}"
    if not found:
        say(
            f"Strategy: {_USUAL} ({unknown}; sar needs less memory); --strategy NAME takes another."
        )
        return _named(config, _USUAL)
    best = choose(found)
    told = [f"{_called(one)} {_told(one)}" for one in found if one is not best]
    over = f" over {shown_bytes(link.bytes_per_second)}/s" if link is not None else ""
    why = f"predicted {_told(best, f' per epoch{over}')}"
    why += f"; {', '.join(told)}" if told else ""
    if config.ranks > 1 or best.name != _USUAL:
        say(f"Strategy: {_called(best)} ({why}); --strategy NAME takes another.")
    return _named(config, best.name)


def _called(one: Outlook) -> str:
    count = one.strategy.stages_of(one.ranks)
    return f"{one.name} in {count} stages" if one.name == _USUAL and count > 1 else one.name


def _told(one: Outlook, more: str = "") -> str:
    told = shown_seconds(one.seconds) + more
    return told if one.fits else f"{told}, but {shown_bytes(one.memory_bytes)} do not fit"


def choose(found: Sequence[Outlook]) -> Outlook:
    """Return the usual choice, or one that is clearly faster; one that fits comes before others.

    A sampled epoch is another training: it is taken where nothing else fits. Where none does, it is
    one of stages, which ranks may still find enough of.
    """
    whole = [one for one in found if one.exactness != "sampled"]
    fitting = [one for one in whole if one.fits and (one.name == _USUAL or _has_room(one))]
    if not fitting:
        fitting = [one for one in whole if one.fits] or [one for one in found if one.fits]
    if not fitting:
        staged = [one for one in whole if one.name in _STAGED]
        return min(staged or whole or found, key=lambda one: one.memory_bytes)
    fastest = min(fitting, key=lambda one: one.seconds)
    usual = next((one for one in fitting if one.name == _USUAL), fastest)
    return fastest if fastest.seconds < _CLEARLY * usual.seconds else usual


def _has_room(one: Outlook) -> bool:
    return one.budget is None or one.memory_bytes <= _ROOM * one.budget


def _outlooks(config: RunConfig, parts: Path, link: Link | None) -> list[Outlook]:
    """Return what is predicted of each candidate that the other settings allow."""
    at = setting_of(config, parts, link=link, memory=_budget(config))
    if at is None:
        return []
    names = [*_EXACT]
    names += [_ROUNDED] if config.allow != "exact" and config.wire is None else []
    names += [_SAMPLED] if config.allow == "sampled" else []
    found: list[Outlook] = []
    for name in names:
        named = _named(config, name)
        if not _is_possible(named) or named.chosen.by_columns != PRESETS[name].by_columns:
            continue
        one = _foreseen(at, name, named)
        if all(one.strategy != other.strategy for other in found):  # of a budget, halo is sar
            found.append(one)
    return found


def _is_possible(config: RunConfig) -> bool:
    """Return whether the settings have a meaning with the strategy that is named in them."""
    try:
        if config.task == "edge":
            check_edge_settings(config)
        if config.chosen.unit == "macrobatch":
            check_sampled_settings(config.resolved())
        check_network_settings(config.resolved())
    except SiafuError:
        return False
    return True


def _foreseen(at: Setting, name: str, config: RunConfig) -> Outlook:
    """Return the forecast of a strategy, with as many stages as the memory asks for."""
    tried: list[Outlook] = []
    for strategy in candidates(config.chosen, config, config.ranks):
        tried.append(foresee(at, _preset(strategy, name), strategy, config.ranks))
        if tried[-1].fits:
            return tried[-1]
    least = min(tried, key=lambda one: one.memory_bytes)
    return offloaded(at, least) or least


def _preset(strategy: Strategy, name: str) -> str:
    """Return the preset that a strategy is, if it is one; else that which it was made from."""
    return next((other for other, one in PRESETS.items() if one == strategy), name)


def _budget(config: RunConfig) -> int | None:
    """Return the bytes that a rank may take: as asked, or its share of what is free here."""
    if config.memory is not None:
        return read_bytes(config.memory)
    if config.launcher == "ray" or choose_device(config.device, 0).type != "cpu":
        return None
    here = int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))
    return free_bytes() // here
