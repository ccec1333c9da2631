"""`--strategy auto`: the exact strategy that is predicted to be the fastest for the data at hand.

It is chosen once, when the data is cut, by what `siafu plan` tells, and noted in the run.
"""

import datetime
from collections.abc import Callable
from pathlib import Path

import psutil

from siafu.config import RunConfig
from siafu.errors import SiafuError
from siafu.graph import folder_kind
from siafu.launch.statistics import spec_of, statistics_of_parts
from siafu.nn import CARDS
from siafu.options import read_bytes
from siafu.partitioning import open_parts
from siafu.plan import (
    TYPICAL,
    Link,
    Outlook,
    Setting,
    foresee,
    kept_machine,
    shown_bytes,
    shown_seconds,
)
from siafu.strategy import AUTO

_CANDIDATES = ("halo", "columns", "sar")
"""Exact ones; the first is taken where no other is clearly faster. Others lose something."""
_CLEARLY = 0.9
_USUAL = "halo"


def with_chosen_strategy(
    config: RunConfig, parts: Path, say: Callable[[str], None], link: Link | None = None
) -> RunConfig:
    """Return the settings with a strategy in place of `auto`, and say why it was taken.

    `link` is what was measured between ranks of several hosts.
    """
    if config.strategy != AUTO:
        return config
    found = [] if config.ranks == 1 else _outlooks(config, parts, link)
    best = _best(found)
    name = _USUAL if best is None else best.name
    if config.ranks == 1:
        why = "of one rank nothing travels"
    elif best is None:
        why = "the model is not one that predictions are made for"
    else:
        others = [one for one in found if one is not best]
        told = [f"{one.name} {_told(one)}" for one in others]
        over = f" over {shown_bytes(link.bytes_per_second)}/s" if link is not None else ""
        why = f"predicted {_told(best)} per epoch{over}" + (f", {', '.join(told)}" if told else "")
    say(f"Strategy: {name} ({why}); --strategy NAME takes another.")
    return config.model_copy(update={"strategy": name})


def _told(one: Outlook) -> str:
    return shown_seconds(one.seconds) + ("" if one.fits else " but too little memory")


def _best(found: list[Outlook]) -> Outlook | None:
    """Return the usual choice, or one that is clearly faster; one that fits comes before others."""
    fitting = [one for one in found if one.fits]
    if not fitting:
        return min(found, key=lambda one: one.memory_bytes, default=None)
    fastest = min(fitting, key=lambda one: one.seconds)
    usual = next((one for one in fitting if one.name == _USUAL), fastest)
    return fastest if fastest.seconds < _CLEARLY * usual.seconds else usual


def _outlooks(config: RunConfig, parts: Path, link: Link | None) -> list[Outlook]:
    """Return what is predicted of each candidate that the other settings allow."""
    if config.model not in CARDS or folder_kind(parts) != "parts":
        return []
    graph = statistics_of_parts(open_parts(parts))
    today = datetime.datetime.now(datetime.UTC).date()
    at = Setting(
        config=config.resolved(),
        spec=spec_of(config, graph),
        statistics=graph,
        machine=kept_machine("cpu", today) or TYPICAL,
        link=link,
        memory=_budget(config),
    )
    found = []
    for name in _CANDIDATES:
        named = config.model_copy(update={"strategy": name})
        try:
            strategy = named.chosen
        except SiafuError:  # of settings that have no meaning there
            continue
        if strategy.stages == "auto":  # as many as the budget asks for
            strategy = strategy.with_choices(stages=config.ranks, recompute=True)
        found.append(foresee(at, name, strategy, config.ranks))
    return found


def _budget(config: RunConfig) -> int:
    """Return the bytes that a rank may take: as asked, or its share of what is free here."""
    if config.memory is not None:
        return read_bytes(config.memory)
    return int(psutil.virtual_memory().available) // config.ranks
