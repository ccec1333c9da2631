"""Timestamped events in memory, whatever they were read from.

M events, N nodes, T snapshots, F features, C channels of a signal.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from siafu.errors import ConfigError
from siafu.graph import Array, Ids

Weighting = Literal["auto", "count", "sum", "one"]
"""What the weight of an edge is: how many events made it, their weights' sum, or always 1.

`auto` takes the sum where the data has weights, none is negative and events have no classes (which
weights may give away), else the count.
"""

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, kw_only=True, slots=True)
class EventOptions:
    """How to read events; a column left out is found by its usual names."""

    src: str | None = None
    """Column with the id an event starts at."""

    dst: str | None = None
    """Column with the id an event ends at."""

    time: str | None = None
    """Column with numbers, dates or ISO text."""

    weight: str | None = None
    """Column with the weight of an event."""

    label: str | None = None
    """Column with the class of an event."""

    attr: tuple[str, ...] = ()
    """Columns with features of an event, numbers."""

    nodes: Path | None = None
    """A node table (id, label, features) where it is not found beside the events."""

    id_type: Literal["integer", "text"] | None = None
    """Type of the ids; None takes the column's own."""

    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    """What times that are numbers count, where a window is given as `14d` or `12h`."""

    weighting: Weighting = "auto"
    """What the weight of an edge is made of."""

    partial_window: Literal["keep", "drop"] = "keep"
    """Whether a last window that the data only begins to fill counts."""

    unlabelled: bool = False
    """Whether events without a column of classes have classes that are not known, as those that a
    model is to tell; else they have none."""

    def __post_init__(self) -> None:
        choices = {
            "time_unit": tuple(_UNITS),
            "weighting": ("auto", "count", "sum", "one"),
            "partial_window": ("keep", "drop"),
            "id_type": (None, "integer", "text"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is not one of its choices.",
                    seen=f"{name}={getattr(self, name)!r}",
                    fix=f"use one of {', '.join(repr(one) for one in allowed)}",
                )

    @property
    def ticks_per_second(self) -> int:
        """How many of the data's numbers make a second."""
        return _UNITS[self.time_unit]


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """Events as rows of nodes and numbers, in any order of time."""

    name: str
    ids: Ids
    src: Array
    """int64 [M]."""
    dst: Array
    """int64 [M]."""
    time: Array
    """int64 or float64 [M]."""
    ticks_per_second: int = 1
    """How many units of `time` make a second."""
    dates: bool = False
    """Whether times were dates; they are microseconds of 1970 then."""
    weight: Array | None = None
    """float32 [M]."""
    label: Array | None = None
    """int64 [M], -1 for none."""
    attr: Array | None = None
    """float32 [M, F], features of the events."""
    attr_names: tuple[str, ...] = ()
    """The columns of `attr` by name; empty where the data names none."""
    edge_class_names: tuple[str | int, ...] = ()
    num_edge_classes: int = 0
    x: Array | None = None
    """float32 [N, F] or [T, N, F]."""
    feature_names: tuple[str, ...] = ()
    """The columns of `x` by name; empty where the data names none."""
    y: Array | None = None
    """int64 [N] or [T, N]."""
    num_classes: int = 0
    class_names: tuple[str | int, ...] = ()
    signal: Array | None = None
    """float32 [T, N, C]."""
    fixed: bool = False
    """Whether the same edges are there in every snapshot."""
    num_steps: int | None = None
    """T where the data says it: times are then the numbers 0 to T - 1 of the snapshots."""

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return len(self.ids)

    @property
    def num_events(self) -> int:
        """M."""
        return len(self.src)


NotedEvents = tuple[Events, list[str]]
"""Events, and sentences for the user on how they were read."""
