"""One directed graph in memory (or memory-mapped), as CSR by destination.

Row v of the CSR lists the sources of the edges that end in v. N nodes, E edges, F features.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph.array_stream import Array
from siafu.graph.columns import (
    MASKS,
    GraphFacts,
    as_stored,
    check_columns,
    check_nodes,
    edge_columns,
    node_columns,
    read_facts,
    verify_columns,
)
from siafu.graph.edge_types import EdgeTypeName, check_edge_types, narrow_edge_types
from siafu.graph.folder import Folder, FolderWriter, open_folder, write_folder
from siafu.graph.nodes import Features, Ids, IntegerIds, SparseFeatures, load_ids
from siafu.graph.schema import Schema
from siafu.graph.targets import check_targets, is_numbers

_EDGE_COLUMNS = ("edge_weight", "edge_attr", "edge_type", "edge_y", "edge_split", "edge_row")
_COLUMN_NAMES = (
    "feature_names",
    "edge_attr_names",
    "target_names",
    "edge_target_names",
    "edge_class_names",
)
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Graph:
    """A directed graph with what training needs of its nodes and edges."""

    name: str
    indptr: Array
    """int64 [N + 1]: where each destination's edges start."""
    src: Array
    """int32, or int64 where N does not fit, [E]: the source row of each edge."""
    ids: Ids
    """The user's id of each row."""
    x: Features | None = None
    """float32 [N, F], dense or sparse."""
    y: Array | None = None
    """int64 [N] with -1 for no label, uint8 [N, C] when a node may have several, or float32 [N, T]
    where numbers are to be told, NaN for none."""
    num_classes: int = 0
    train: Array | None = None
    val: Array | None = None
    test: Array | None = None
    edge_weight: Array | None = None
    """float32 [E]."""
    edge_attr: Array | None = None
    """float32 [E, K]."""
    edge_type: Array | None = None
    """Unsigned integers [E], in the smallest dtype that fits: the relation of each edge."""
    num_edge_types: int = 0
    """Types of the whole graph; 0 where edges have none."""
    edge_type_names: tuple[EdgeTypeName, ...] = ()
    """What the user calls each edge type, by number; empty where numbers are all there is."""
    class_names: tuple[str | int, ...] = ()
    """What the user calls each class, by number; empty where numbers are all there is."""
    feature_names: tuple[str, ...] = ()
    """The columns of `x` by name; empty where the data names none."""
    edge_attr_names: tuple[str, ...] = ()
    """The columns of `edge_attr` by name; empty where the data names none."""
    schema: Schema | None = None
    """What the columns of tables are and become; None where they are used as they are."""
    target_names: tuple[str, ...] = ()
    """The columns of a `y` of numbers by name; empty where the data names none."""
    edge_y: Array | None = None
    """int64 [E] with -1 for no class, or float32 [E, T] where numbers are to be told."""
    num_edge_classes: int = 0
    """Classes of `edge_y`; 0 where it holds numbers, or is not there."""
    edge_class_names: tuple[str | int, ...] = ()
    """What the user calls each class of edges; empty where numbers are all there is."""
    edge_target_names: tuple[str, ...] = ()
    """The columns of an `edge_y` of numbers by name; empty where the data names none."""
    edge_split: Array | None = None
    """uint8 [E]: 0 for none, 1 train, 2 val, 3 test."""
    edge_row: Array | None = None
    """int64 [E]: which row of the user's edge table it was, from 0; -1 for a reverse added."""

    def __repr__(self) -> str:
        counts = f"nodes={self.num_nodes}, edges={self.num_edges}"
        if self.edge_type is not None:
            counts += f", edge types={self.num_edge_types}"
        return (
            f"Graph(name={self.name!r}, {counts}, features={self.num_features}, "
            f"classes={self.num_classes})"
        )

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Directed edges, repeated ones counted each time."""
        return len(self.src)

    @property
    def num_features(self) -> int:
        """Width of the node features; 0 without any."""
        return 0 if self.x is None else self.x.shape[1]

    @property
    def is_multi_label(self) -> bool:
        """True when a node may carry several labels at once."""
        return self.y is not None and self.y.ndim == 2 and not is_numbers(self.y)

    @property
    def num_targets(self) -> int:
        """Numbers to tell of each node; 0 where classes are."""
        return self.y.shape[1] if self.y is not None and is_numbers(self.y) else 0

    @property
    def num_edge_targets(self) -> int:
        """Numbers to tell of each edge; 0 where classes are."""
        return self.edge_y.shape[1] if self.edge_y is not None and is_numbers(self.edge_y) else 0

    def with_masks(self, train: Array, val: Array, test: Array) -> "Graph":
        """Return the same graph with these splits."""
        return replace(self, train=train, val=val, test=test)

    def edge_index(self) -> Array:
        """Return int64 [2, E], PyG's form: sources and destinations."""
        dst = np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(self.indptr))
        return np.stack([self.src.astype(np.int64), dst])

    def edge_arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays that have one row per edge."""
        yield "src", self.src
        for name in _EDGE_COLUMNS:
            column = getattr(self, name)
            if column is not None:
                yield name, column


def index_dtype(largest: int) -> np.dtype[Any]:
    """Return int32 where ids up to `largest` fit, else int64."""
    return np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)


def check_graph(graph: Graph) -> None:
    """Raise a DataError unless the graph is one that can be trained on."""
    if graph.num_nodes == 0:
        raise DataError("The graph has no nodes.", seen=graph.name, fix="check the node table")
    check_index(graph.indptr, graph.num_edges)
    _check_sources(graph)
    _check_lengths(graph)
    check_edge_types(graph.edge_type, graph.num_edge_types, graph.edge_type_names)
    if graph.x is not None:
        _check_features(graph)
    check_targets(graph)


def check_index(indptr: Array, num_edges: int) -> None:
    """Raise unless the edges of each row follow those of the row before, from 0 to the last."""
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != num_edges:
        ends = f"from {indptr[0]} to {indptr[-1]}" if len(indptr) else "over nothing"
        raise _unsorted(f"indptr runs {ends} for {num_edges} edges")
    for start in range(0, len(indptr) - 1, _ROWS_AT_ONCE):
        steps = np.diff(indptr[start : start + _ROWS_AT_ONCE + 1])
        if steps.min(initial=0) < 0:
            row = start + int(np.argmax(steps < 0))
            raise _unsorted(f"row {row} has its edges from {indptr[row]} to {indptr[row + 1]}")


def _unsorted(seen: str) -> DataError:
    return DataError(
        "The index of the edges is not sorted.", seen=seen, fix="ingest the graph again"
    )


def _check_sources(graph: Graph) -> None:
    for start in range(0, graph.num_edges, 1 << 22):
        chunk = graph.src[start : start + (1 << 22)]
        bad = (chunk < 0) | (chunk >= graph.num_nodes)
        if bad.any():
            where = start + int(np.argmax(bad))
            raise DataError(
                "An edge names a node that does not exist.",
                seen=f"edge {where} starts at row {graph.src[where]}, of {graph.num_nodes} rows",
                fix="add the node to the node table, or drop the edge",
            )


def _check_lengths(graph: Graph) -> None:
    sizes = {"ids": len(graph.ids), "x": None if graph.x is None else graph.x.shape[0]}
    for name in ("y", *MASKS):
        array = getattr(graph, name)
        sizes[name] = None if array is None else len(array)
    wrong = {name: size for name, size in sizes.items() if size not in (None, graph.num_nodes)}
    if wrong:
        raise DataError(
            "An array has another number of rows than the graph has nodes.",
            seen=f"{graph.num_nodes} nodes, but {wrong}",
            fix="give one row per node",
        )
    for name, array in graph.edge_arrays():
        _check_edge_rows(name, array, graph.num_edges)


def _check_edge_rows(name: str, array: Array, num_edges: int) -> None:
    if len(array) != num_edges:
        raise DataError(
            "An array has another number of rows than the graph has edges.",
            seen=f"{num_edges} edges, {name} has {len(array)} rows",
            fix="give one row per edge",
        )


def _check_features(graph: Graph) -> None:
    values = graph.x.value if isinstance(graph.x, SparseFeatures) else graph.x
    assert values is not None
    for start in range(0, len(values), _ROWS_AT_ONCE):
        piece = values[start : start + _ROWS_AT_ONCE]
        # A gap of a table is filled once it is known what training rows have there.
        finite = np.isfinite(piece) | (np.isnan(piece) if graph.schema is not None else False)
        if not finite.all():
            where = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            if isinstance(graph.x, SparseFeatures):
                where = int(np.searchsorted(graph.x.indptr, where, side="right")) - 1
            raise DataError(
                "A feature is NaN or infinite.",
                seen=f"the node with id {graph.ids.to_arrow()[where].as_py()!r}",
                fix="fill or drop such values before ingesting",
            )


def save_store(graph: Graph, target: Path | str, *, overwrite: bool = False) -> None:
    """Check the graph and write it as a store."""
    check_graph(graph)
    with write_folder(target, "store", overwrite=overwrite) as writer:
        writer.save("indptr", as_stored("indptr", graph.indptr))
        for name, array in graph.edge_arrays():
            writer.save(name, as_stored(name, array))
        save_nodes(graph, writer)


def save_nodes(graph: Graph, writer: FolderWriter) -> None:
    """Write everything that has one row per node, and the facts about the graph."""
    graph.ids.save(writer)
    if isinstance(graph.x, SparseFeatures):
        writer.save("x_indptr", graph.x.indptr)
        writer.save("x_index", graph.x.index)
        writer.save("x_value", graph.x.value)
    elif graph.x is not None:
        writer.save("x", as_stored("x", graph.x))
    for name in ("y", *MASKS):
        array = getattr(graph, name)
        if array is not None:
            writer.save(name, as_stored(name, array))
    writer.facts |= graph_facts(graph)


def graph_facts(graph: Graph) -> dict[str, Any]:
    """Return what a manifest says; of edges, numbers and names only where there are some."""
    facts: dict[str, Any] = {
        "name": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "num_classes": graph.num_classes,
        "multi_label": graph.is_multi_label,
        "class_names": list(graph.class_names),
    }
    for count in ("num_targets", "num_edge_targets", "num_edge_classes"):
        if getattr(graph, count):
            facts[count] = getattr(graph, count)
    if graph.edge_type is not None:
        facts["num_edge_types"] = graph.num_edge_types
        facts["edge_type_names"] = list(graph.edge_type_names)
    names = {name: list(getattr(graph, name)) for name in _COLUMN_NAMES}
    facts |= {name: columns for name, columns in names.items() if columns}
    return facts if graph.schema is None else facts | {"schema": graph.schema.to_dict()}


def load_features(folder: Folder) -> Features | None:
    """Return the node features of a store or part, memory-mapped."""
    if "x_indptr" not in folder:
        return folder.load_if_present("x")
    return SparseFeatures(
        folder.load("x_indptr"),
        folder.load("x_index"),
        folder.load("x_value"),
        int(folder.facts["num_features"]),
    )


def load_store(path: Path | str, *, verify: bool = True) -> Graph:
    """Return the graph of a store, memory-mapped; `verify` reads all of it once.

    Without it the checksums and the numbers that rows are found by are trusted.
    """
    return graph_from_folder(open_folder(path, "store"), verify=verify)


def graph_from_folder(folder: Folder, *, verify: bool = False) -> Graph:
    """Return the graph kept in an opened store, whose facts and arrays must fit each other."""
    facts = read_facts(folder, GraphFacts)
    nodes, edges = facts.num_nodes, facts.num_edges
    columns = node_columns(folder, facts, nodes) | edge_columns(facts, nodes, edges, nodes)
    check_columns(folder, columns)
    if verify:
        verify_columns(folder, columns)
        check_nodes(folder)
    return Graph(
        name=facts.name,
        indptr=folder.load("indptr"),
        src=folder.load("src"),
        ids=load_ids(folder),
        x=load_features(folder),
        y=folder.load_if_present("y"),
        num_classes=facts.num_classes,
        train=folder.load_if_present("train"),
        val=folder.load_if_present("val"),
        test=folder.load_if_present("test"),
        edge_weight=folder.load_if_present("edge_weight"),
        edge_attr=folder.load_if_present("edge_attr"),
        edge_type=folder.load_if_present("edge_type"),
        num_edge_types=facts.num_edge_types,
        edge_type_names=tuple(facts.edge_type_names),
        class_names=tuple(facts.class_names),
        edge_y=folder.load_if_present("edge_y"),
        num_edge_classes=facts.num_edge_classes,
        edge_split=folder.load_if_present("edge_split"),
        edge_row=folder.load_if_present("edge_row"),
        **{name: tuple(getattr(facts, name)) for name in _COLUMN_NAMES},
        schema=facts.columns,
    )


def graph_from_edges(
    source: Array, destination: Array, num_nodes: int, *, name: str = "graph", **columns: Any
) -> Graph:
    """Return a graph from edge lists in memory; `columns` are further fields of `Graph`.

    Edge columns follow their edges. The edges of a row keep the order they were given in. Edge
    types may be integers of any dtype; they are counted unless `num_edge_types` says more.
    """
    order = np.argsort(destination, kind="stable")
    counts = np.bincount(destination, minlength=num_nodes)
    if columns.get("edge_type") is not None:
        columns["edge_type"], columns["num_edge_types"] = narrow_edge_types(
            columns["edge_type"],
            max(columns.get("num_edge_types", 0), len(columns.get("edge_type_names", ()))),
        )
    for column in _EDGE_COLUMNS:
        if columns.get(column) is not None:
            _check_edge_rows(column, columns[column], len(order))
            columns[column] = np.asarray(columns[column])[order]
    columns.setdefault("ids", IntegerIds(np.arange(num_nodes, dtype=np.int64)))
    return Graph(
        name=name,
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        src=np.asarray(source)[order].astype(index_dtype(num_nodes)),
        **columns,
    )
