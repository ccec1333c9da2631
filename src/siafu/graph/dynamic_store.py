"""A dynamic graph as a checksummed, memory-mapped folder; what may stand in one is checked."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from siafu.errors import DataError
from siafu.graph.array_stream import Array, forget
from siafu.graph.columns import (
    INDEX,
    OFFSETS,
    REALS,
    Column,
    Count,
    Facts,
    Name,
    Width,
    check_all_named,
    check_columns,
    check_nodes,
    id_columns,
    read_facts,
    verify_columns,
)
from siafu.graph.dynamic import Deltas, DynamicGraph
from siafu.graph.folder import Folder, open_folder, write_folder
from siafu.graph.manifest import MOST_ROWS
from siafu.graph.nodes import load_ids
from siafu.graph.snapshot import Snapshot

KIND = "dynamic"
_FACTS = ("name", "num_classes", "num_edge_classes", "symmetric", "dates", "overlapping")
_NAMES = ("class_names", "edge_class_names", "feature_names", "event_attr_names")
_CHANGES = ("removed", "added", "changed")
_KEYS_AT_ONCE = 1 << 20
_EVENT_COLUMNS = ("event_label", "event_weight", "event_time")
_OPTIONAL = (*_EVENT_COLUMNS, "event_attr", "x", "y", "signal", "part_of")


def save_dynamic(graph: DynamicGraph, target: Path | str, *, overwrite: bool = False) -> None:
    """Check the graph and write it as a folder."""
    check_dynamic(graph)
    with write_folder(target, KIND, overwrite=overwrite) as writer:
        graph.ids.save(writer)
        for name, array in graph.arrays():
            writer.save(name, array)
        writer.facts |= dynamic_facts(graph)


def dynamic_facts(graph: DynamicGraph) -> dict[str, Any]:
    """Return what a manifest says about a dynamic graph."""
    counts = {
        "num_nodes": graph.num_nodes,
        "num_snapshots": graph.num_snapshots,
        "num_events": graph.num_events,
        "num_changes": graph.deltas.num_changes,
    }
    names = {name: list(getattr(graph, name)) for name in _NAMES}
    return counts | names | {name: getattr(graph, name) for name in _FACTS}


class DynamicFacts(Facts):
    """What the manifest of a dynamic graph says."""

    name: str
    num_nodes: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    num_snapshots: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    num_events: Count
    num_classes: Width
    num_edge_classes: Width
    class_names: list[Name]
    edge_class_names: list[Name]
    feature_names: list[str] = Field(default_factory=list)
    event_attr_names: list[str] = Field(default_factory=list)
    symmetric: bool = False
    dates: bool = False
    overlapping: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_all_named("classes", self.class_names, self.num_classes)
        check_all_named("classes of edges", self.edge_class_names, self.num_edge_classes)
        return self


def load_dynamic_store(path: Path | str, *, verify: bool = True) -> DynamicGraph:
    """Return the dynamic graph of a folder, memory-mapped; `verify` reads all of it once.

    Without it the checksums and the numbers that rows are found by are trusted.
    """
    folder = open_folder(path, KIND)
    facts = read_facts(folder, DynamicFacts)
    columns = _columns(folder, facts)
    check_columns(folder, columns)
    if verify:
        verify_columns(folder, columns)
        check_nodes(folder)
    graph = _from_folder(folder, facts)
    if verify:
        _check_order(folder, graph)
    return graph


def _columns(folder: Folder, facts: DynamicFacts) -> dict[str, Column]:
    """Return what must hold of the arrays."""
    n, t, m = facts.num_nodes, facts.num_snapshots, facts.num_events
    edges = folder.entry("base_src").shape[0]
    columns = {
        "times": Column((t,), REALS),
        "base_indptr": Column((n + 1,), OFFSETS, ends=edges),
        "base_src": Column((edges,), INDEX, span=(0, n - 1)),
        "base_weight": Column((edges,), REALS),
        "event_starts": Column((t + 1,), OFFSETS, ends=m),
        "event_src": Column((m,), INDEX, span=(0, n - 1)),
        "event_dst": Column((m,), INDEX, span=(0, n - 1)),
    }
    for name in _CHANGES:
        length = folder.entry(name).shape[0]
        columns[name] = Column((length,), OFFSETS, span=(0, min(n * n, 1 << 63) - 1))
        columns[f"{name}_starts"] = Column((t,), OFFSETS, ends=length)
        if name != "removed":
            columns[f"{name}_weight"] = Column((length,), REALS)
    needed = {name: replace(column, is_needed=True) for name, column in columns.items()}
    return needed | {
        "event_label": Column((m,), OFFSETS, span=(-1, facts.num_edge_classes - 1)),
        "event_weight": Column((m,), REALS),
        "event_time": Column((m,), (*REALS, "<i8")),
        "event_attr": Column((m, None), REALS),
        "x": Column((*_steps(folder, "x", 3, t), n, None), REALS),
        "y": Column((*_steps(folder, "y", 2, t), n), OFFSETS, span=(-1, facts.num_classes - 1)),
        "signal": Column((t, n, None), REALS),
        "part_of": Column((n,), INDEX, span=(0, n - 1)),
        **id_columns(folder, n),
    }


def _steps(folder: Folder, name: str, dims: int, steps: int) -> tuple[int, ...]:
    """Return the first size of an array that changes over time, nothing for one that does not."""
    changes = name in folder and len(folder.entry(name).shape) == dims
    return (steps,) if changes else ()


def _check_order(folder: Folder, graph: DynamicGraph) -> None:
    """Raise unless the edges of the base and of each change are in rising order, each once."""
    starts = {"base_src": graph.base.indptr}
    starts |= {name: getattr(graph.deltas, f"{name}_starts") for name in _CHANGES}
    for file, begins in starts.items():
        keys = folder.load(file)
        for low in range(0, len(keys), _KEYS_AT_ONCE):
            piece = keys[low : low + _KEYS_AT_ONCE + 1]
            falls = low + 1 + np.flatnonzero(piece[1:] <= piece[:-1])
            near = slice(*np.searchsorted(begins, (low, low + len(piece) + 1)))
            wrong = falls[~np.isin(falls, begins[near])]
            if len(wrong):
                at = int(wrong[0])
                seen = f"number {at} is {keys[at]} after {keys[at - 1]}, which is not in order"
                raise folder.damaged(f"{file}.npy", seen)
            forget(keys)


def _from_folder(folder: Folder, facts: DynamicFacts) -> DynamicGraph:
    rest: dict[str, Any] = {name: folder.load_if_present(name) for name in _OPTIONAL}
    rest |= {name: getattr(facts, name) for name in _FACTS}
    rest |= {name: tuple(getattr(facts, name)) for name in _NAMES}
    return DynamicGraph(
        ids=load_ids(folder),
        times=folder.load("times"),
        base=Snapshot(*(folder.load(f"base_{part}") for part in ("indptr", "src", "weight"))),
        deltas=Deltas(**{part.name: folder.load(part.name) for part in fields(Deltas)}),
        event_starts=folder.load("event_starts"),
        event_src=folder.load("event_src"),
        event_dst=folder.load("event_dst"),
        **rest,
    )


def check_dynamic(graph: DynamicGraph) -> None:
    """Raise a DataError unless the graph is one that can be trained on."""
    if graph.num_nodes == 0 or graph.num_snapshots == 0:
        raise DataError(
            "The dynamic graph has no nodes or no snapshots.",
            seen=f"{graph.num_nodes} nodes, {graph.num_snapshots} snapshots",
            fix="check that the events were exported completely",
        )
    t, n = graph.num_snapshots, graph.num_nodes
    _check_shape("ids", (len(graph.ids),), [(n,)])
    _check_shape("deltas", (len(graph.deltas),), [(t - 1,)])
    _check_shape("event_starts", graph.event_starts.shape, [(t + 1,)])
    if graph.x is not None:
        width = graph.x.shape[-1]
        _check_shape("x", graph.x.shape, [(n, width), (t, n, width)])
        _check_finite("x", graph.x)
    if graph.y is not None:
        _check_shape("y", graph.y.shape, [(n,), (t, n)])
        _check_classes("y", graph.y, graph.num_classes)
    if graph.signal is not None:
        _check_shape("signal", graph.signal.shape, [(t, n, graph.signal.shape[-1])])
        _check_finite("signal", graph.signal)
    if graph.part_of is not None:
        _check_shape("part_of", graph.part_of.shape, [(n,)])
        _check_groups(graph.part_of)
    if graph.event_attr is not None:
        shape = graph.event_attr.shape
        _check_shape("event_attr", shape, [(graph.num_events, shape[-1])])
        _check_finite("event_attr", graph.event_attr)
    for name in _EVENT_COLUMNS:
        column = getattr(graph, name)
        if column is not None:
            _check_shape(name, column.shape, [(graph.num_events,)])
    if graph.event_label is not None:
        _check_classes("event_label", graph.event_label, graph.num_edge_classes)


def _check_groups(part_of_N: Array) -> None:
    lowest = int(np.argmin(part_of_N))
    if part_of_N.dtype.kind != "i" or part_of_N[lowest] < 0:
        raise DataError(
            "A node is in no group.",
            seen=f"part_of is {part_of_N[lowest]} for node {lowest}",
            fix="give each node the number of its group, from 0",
        )


def _check_shape(name: str, seen: tuple[int, ...], allowed: list[tuple[int, ...]]) -> None:
    if seen not in allowed:
        raise DataError(
            f"{name} does not fit the snapshots and nodes.",
            seen=f"{name} has shape {list(seen)}",
            fix=f"give shape {' or '.join(str(list(shape)) for shape in allowed)}",
        )


def _check_finite(name: str, values: Array) -> None:
    for row, piece in enumerate(values):
        if not np.isfinite(piece).all():
            raise DataError(
                f"A value of {name} is NaN or infinite.",
                seen=f"row {row} of {name}",
                fix="fill or drop such values before ingesting",
            )


def _check_classes(name: str, labels: Array, num_classes: int) -> None:
    low, high = int(labels.min(initial=0)), int(labels.max(initial=-1))
    if low < -1 or high >= num_classes:
        raise DataError(
            f"A class of {name} is out of range.",
            seen=f"classes from {low} to {high} where -1 to {num_classes - 1} are allowed",
            fix="number the classes from 0; -1 marks what has none",
        )
