"""The committed results, and how figures stand beside others in words that say who is ahead."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMALL_REACH = 0.25
"""Of one minibatch: above it, a graph is too small to tell what macrobatches save in bytes."""
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """Return the lines of a results file; none when it is missing."""
    path = ROOT / "benchmarks" / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ms(value: float) -> str:
    """Return milliseconds, in seconds from one on."""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 9.95 else f"{value:.1f} ms"


def mb(value: float) -> str:
    """Return megabytes with the thousands apart."""
    return f"{value:,.0f} MB"


def times(ratio: float) -> str:
    """Return a ratio of at least 1, no finer than it was measured."""
    if ratio >= 10:
        return f"{ratio:.0f} x"
    return f"{ratio:.1f} x" if ratio >= 1.95 else f"{ratio:.2f} x"


def faster(ours: float, theirs: float, whom: str) -> str:
    """Return how much faster or slower ours (ms) is than theirs, whose time stands with it."""
    told = f"{whom} ({ms(theirs)})"
    if f"{max(ours, theirs) / min(ours, theirs):.2f}" == "1.00":
        return f"as fast as {told}"
    word = "faster" if ours < theirs else "slower"
    return f"{times(max(ours, theirs) / min(ours, theirs))} {word} than {told}"
