"""What the figures of a run mean, in sentences."""

import statistics
from collections.abc import Callable
from typing import Any

from siafu.report.told import ToldRun

_MUCH, _LITTLE = 0.4, 0.15
_UNEVEN = 1.25
_SLOWER = 1.05
"""Times the seconds of an epoch, from which on that is worth a word."""


def predicted(run: ToldRun, tell: Callable[[dict[str, Any]], str]) -> str:
    """Return what was predicted, in brackets; nothing where it was not, or can't be read."""
    try:
        return f" ({tell(run.forecast)} predicted)" if run.forecast else ""
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""


def would_more_ranks_help(run: ToldRun) -> str:
    """Return whether more ranks would shorten an epoch, as far as this run can tell."""
    seconds = run.result.get("rank_seconds") or {}
    if not seconds.get("computing"):
        return ""
    if run.ranks == 1:
        return "One rank computes all of it. " + (
            _planned(run) or "More ranks share the work, if there are cores for them."
        )
    cores = run.machine.get("cores")
    if isinstance(cores, int) and run.settings.get("launcher") == "local" and run.ranks > cores:
        return (
            f"{run.ranks} ranks share the {cores} cores of this machine, and wait for those as "
            "much as for each other: use as many ranks as cores."
        )
    computing, waiting = seconds["computing"], seconds["waiting"]
    share = sum(waiting) / max(1e-9, sum(computing) + sum(waiting))
    told = f"Ranks wait for each other for {100 * share:.0f} % of the time in which they train. "
    slowest = max(computing) / max(1e-9, statistics.mean(computing))
    if slowest > _UNEVEN:
        worst = computing.index(max(computing))
        return told + (
            f"Rank {worst} computes {slowest:.2f} times the mean, and the others wait for it: a "
            "more even cut, or a core of its own for each rank, helps more than further ranks."
        )
    if planned := _planned(run):
        return told + planned
    if share > _MUCH:
        return told + (
            "More ranks would wait more: send less (--strategy adaqp, a better cut) or use "
            "fewer ranks."
        )
    if share < _LITTLE:
        return told + "Computing is nearly all of it: more ranks shorten an epoch."
    return told + "More ranks still help, less than in proportion."


def _planned(run: ToldRun) -> str:
    """Return what `siafu plan` tells of twice as many ranks; nothing where it tells nothing."""
    more = run.forecast.get("more")
    if not isinstance(more, dict):
        return ""
    try:
        ranks, times, share = int(more["ranks"]), float(more["times"]), float(more["exchange"])
    except (KeyError, TypeError, ValueError):
        return ""
    if more.get("helps"):
        speed = 1 / max(1e-12, times)
        return f"By what siafu plan tells, {ranks} ranks would be {speed:.2g} times as fast."
    slower = f" and take {times:.2g} times as long" if times > _SLOWER else ""
    return (
        f"By what siafu plan tells, {ranks} ranks would not help{slower}: the exchange would be "
        f"{100 * share:.0f} % of an epoch. It helps to send less: --strategy adaqp, a better cut."
    )


def what_was_lossy(run: ToldRun) -> str:
    """Return what makes the run differ from exact training."""
    exactness = run.result.get("exactness")
    if not exactness:
        return ""
    if exactness == "exact":
        return "Nothing: the result is that of one process, up to the rounding of sums."
    choices = run.result.get("choices", {})
    what = "changes of rows" if choices.get("changes") else "messages"
    why = [
        f"{what} at {choices['wire_bits']:g} bits on average" if "wire_bits" in choices else "",
        f"{what} at {wire} bits"
        if isinstance(wire := choices.get("wire"), int) and wire != 32
        else "",
        f"{what} as {wire}" if wire in ("bf16", "fp8") else "",
        "rows that both ends keep as bf16" if choices.get("kept_bits") == 16 else "",
        f"rows up to {choices['staleness']} epochs old" if choices.get("staleness") else "",
        f"{100 * choices['boundary']:g} % of the rows of others, drawn by lot"
        if "boundary" in choices
        else "",
        "neighbours are drawn" if run.result.get("sampling") else "",
        "rows and products rounded to bf16" if choices.get("precision") == "bf16" else "",
    ]
    told = ", ".join(reason for reason in why if reason)
    return f"{exactness}" + (f": {told}" if told else "")
