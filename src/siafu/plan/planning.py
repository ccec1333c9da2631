"""All sensible choices side by side, what is best of them, and from where on more do not help."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from siafu.errors import ConfigError
from siafu.plan.outlook import Outlook, Setting, foresee, offloaded, with_stages
from siafu.record import counted
from siafu.strategy import PRESETS

CONSIDERED = ("halo", "sar", "columns", "adaqp", "batchgnn")
"""Presets that a plan compares; dorylus is for pools, whose prices `siafu train` tells."""
EXACT = ("halo", "sar", "columns")
_ENOUGH = 0.95
"""More ranks help where they take less than that of the seconds."""
_MINUTES, _HOURS = 120.0, 7200.0
"""Seconds from which on times are told in those."""
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is predicted of every choice, and what follows from it."""

    setting: Setting
    outlooks: tuple[Outlook, ...]

    @property
    def fitting(self) -> list[Outlook]:
        """Exact choices within the budget."""
        return [one for one in self.outlooks if one.fits and one.is_exact]

    @property
    def fastest(self) -> Outlook | None:
        """The exact choice of the shortest epoch."""
        return min(self.fitting, key=lambda one: one.seconds, default=None)

    @property
    def leanest(self) -> Outlook | None:
        """The exact choice whose ranks need the least memory."""
        return min(self.fitting, key=lambda one: one.memory_bytes, default=None)

    @property
    def cheapest(self) -> Outlook | None:
        """The exact choice of the least dollars; None where no price is known."""
        priced = [one for one in self.fitting if one.dollars is not None]
        return min(priced, key=lambda one: one.dollars or 0.0, default=None)

    def enough_ranks(self) -> int:
        """Return from how many ranks on more of them do not shorten an exact epoch."""
        by_ranks: dict[int, float] = {}
        for one in self.fitting:
            by_ranks[one.ranks] = min(one.seconds, by_ranks.get(one.ranks, math.inf))
        best, enough = math.inf, 0
        for ranks in sorted(by_ranks):
            if by_ranks[ranks] < _ENOUGH * best:
                best, enough = by_ranks[ranks], ranks
        return enough

    def sentences(self) -> list[str]:
        """Return what is best, and why."""
        if not self.fitting:
            return [self._nothing_fits()]
        fast, lean, cheap = self.fastest, self.leanest, self.cheapest
        assert fast is not None
        assert lean is not None
        told = [f"Time: {fast.flags} ({shown_seconds(fast.seconds)} per epoch): {self._why(fast)}"]
        told.append(
            f"Memory: {lean.flags} ({shown_bytes(lean.memory_bytes)} per rank): most of it is "
            f"{_largest(lean.memory)}."
        )
        if cheap is not None:
            dollars, reason = cheap.dollars, _money_reason(cheap, fast)
            told.append(f"Money: {cheap.flags} (${dollars:.2g} per epoch): {reason}")
        return [*told, *self._lossy(fast), self._more_ranks()]

    def _why(self, fast: Outlook) -> str:
        shares = {
            "edges": fast.phases.edges,
            "products": fast.phases.products,
            "passes over rows": fast.phases.passes,
            "the exchange": fast.phases.exchange,
            "fixed costs": fast.phases.fixed,
        }
        most = max(shares, key=lambda name: shares[name])
        alone = [one for one in self.outlooks if one.ranks == 1 and one.is_exact]
        told = f"{most} {'are' if most.endswith('s') else 'is'} most of it"
        told += f" ({100 * shares[most] / max(1e-12, fast.seconds):.0f} %)"
        if fast.ranks > 1 and alone:
            told += f", and it {_against_one_rank(fast, alone[0])}"
        return f"{told}."

    def _lossy(self, fast: Outlook) -> list[str]:
        rounded = [one for one in self.outlooks if one.fits and one.exactness == "unbiased"]
        best = min(rounded, key=lambda one: one.seconds, default=None)
        if best is None or best.seconds > 0.9 * fast.seconds:
            return []
        return [
            f"If rows may be rounded: {best.flags} ({shown_seconds(best.seconds)} per epoch), "
            f"{fast.seconds / best.seconds:.2g} times as fast."
        ]

    def _more_ranks(self) -> str:
        enough, most = self.enough_ranks(), max(one.ranks for one in self.outlooks)
        if enough == most and len({one.ranks for one in self.fitting}) == 1:
            fewer = f"Fewer than {most} ranks do not fit; whether" if most > 1 else "Whether"
            return f"{fewer} more are faster is told by --ranks {2 * most}."
        if enough == most:
            return f"More ranks still help at {counted(most, 'rank')}."
        at_most = min(
            (one for one in self.fitting if one.ranks > enough),
            key=lambda one: one.seconds,
            default=None,
        )
        share = at_most.phases.exchange / at_most.seconds if at_most else 0.0
        return (
            f"From {counted(enough, 'rank')} on, more do not help: the exchange would be "
            f"{100 * share:.0f} % of an epoch."
        )

    def _nothing_fits(self) -> str:
        least = min(
            (one for one in self.outlooks if one.is_exact), key=lambda one: one.memory_bytes
        )
        need = math.ceil(1.05 * least.memory_bytes / 1e7) / 100
        sampled = [one for one in self.outlooks if one.exactness == "sampled" and one.fits]
        told = (
            f"No exact choice fits: the smallest that works is {least.flags} with "
            f"--memory {need:.2f}GB; most of it is {_largest(least.memory)}."
        )
        if sampled:
            best = min(sampled, key=lambda one: one.seconds)
            told += f" Sampled minibatches fit: {best.flags}."
        return told

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for programs."""
        best = {"time": self.fastest, "memory": self.leanest, "money": self.cheapest}
        return {
            "graph": self.setting.statistics.model_dump(mode="json"),
            "machine": self.setting.machine.name,
            "calibrated": str(self.setting.machine.date),
            "options": [one.as_dict() for one in self.outlooks],
            "best": {
                name: None if one is None else {"strategy": one.name, "ranks": one.ranks}
                for name, one in best.items()
            },
            "enough_ranks": self.enough_ranks(),
            "sentences": self.sentences(),
        }


def plan_choices(
    setting: Setting, counts: Sequence[int], names: Iterable[str] = CONSIDERED
) -> Plan:
    """Return the forecasts of strategies for these numbers of ranks."""
    found = []
    for ranks in counts:
        for name in names:
            if ranks == 1 and name not in ("halo", "batchgnn"):
                continue  # nothing travels: they are all the same
            precision = setting.config.precision
            rounds_twice = precision == "bf16" and PRESETS[name].wire != 32
            if rounds_twice or (name == "batchgnn" and setting.spec.norm == "batch"):
                continue
            strategy = PRESETS[name].with_choices(precision=precision)
            found.append(foresee(setting, name, strategy, ranks))
        found += _between(setting, ranks, found)
    # Stages come before: of sums they send nothing more, and copies to the host take seconds.
    return Plan(setting=setting, outlooks=tuple(offloaded(setting, one) or one for one in found))


def _between(setting: Setting, ranks: int, found: list[Outlook]) -> list[Outlook]:
    """Return halo with the fewest stages that fit, where one stage does not and all do.

    Rows of as many of them are kept for backward as fit, too.
    """
    here = {one.name: one for one in found if one.ranks == ranks}
    if "sar" not in here or "halo" not in here or here["halo"].fits or not here["sar"].fits:
        return []
    low, high = 1, ranks  # the fewest that fit are above low and not above high
    while high - low > 1:
        middle = (low + high) // 2
        fits = foresee(setting, "halo", with_stages(here["halo"].strategy, middle), ranks).fits
        low, high = (low, middle) if fits else (middle, high)
    if high >= ranks - 1:
        return []
    refetches = setting.spec.card.refetches
    keeping = (
        foresee(setting, "halo", with_stages(here["halo"].strategy, high, kept), ranks)
        for kept in range(high - 1 if refetches else 0, -1, -1)
    )
    return [next(one for one in keeping if one.fits)]


def rank_counts(most: int) -> list[int]:
    """Return powers of two up to a number, and the number."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def shown_bytes(count: float) -> str:
    """Return `12.3 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def shown_seconds(seconds: float) -> str:
    """Return `45 ms`, `1.23 s`, `4.5 min` or `2.6 h`."""
    if seconds >= _MINUTES:
        return f"{seconds / 60:.3g} min" if seconds < _HOURS else f"{seconds / 3600:,.1f} h"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def _against_one_rank(fast: Outlook, alone: Outlook) -> str:
    if fast.seconds <= alone.seconds:
        return f"is {alone.seconds / fast.seconds:.2g} times as fast as one rank"
    why = "" if alone.fits else ", which does not fit"
    return f"takes {fast.seconds / alone.seconds:.2g} times as long as one rank{why}"


def _largest(memory: dict[str, int]) -> str:
    name = max(memory, key=lambda kind: memory[kind])
    return f"{name} ({shown_bytes(memory[name])})"


def _money_reason(cheap: Outlook, fast: Outlook) -> str:
    if (cheap.name, cheap.ranks) == (fast.name, fast.ranks):
        return "the fastest is the cheapest too."
    return f"{fast.seconds / cheap.seconds:.2g} times the speed at less money than the fastest."


def read_bandwidth(text: str) -> float:
    """Return the bytes per second that `10Gbit` or `1.2GB` mean."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(bit|b)(?:/s|ps)?\s*", text, re.IGNORECASE)
    try:
        assert match is not None
        number = float(match[1]) * _UNITS[match[2].lower()]
        assert number > 0
    except (AssertionError, ValueError):
        raise ConfigError(
            "The bandwidth can't be read.", seen=text, fix="write it as 10Gbit or 1.2GB"
        ) from None
    return number / 8 if match[3].lower() == "bit" or match[3] == "b" else number


def read_latency(text: str) -> float:
    """Return the seconds that `50us`, `1ms` or `0.1s` mean."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(us|µs|ms|s)\s*", text)
    try:
        assert match is not None
        return float(match[1]) * {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    except (AssertionError, ValueError):
        raise ConfigError(
            "The latency can't be read.", seen=text, fix="write it as 50us or 1ms"
        ) from None
