"""A graph of tables on its way into parts: its schema fitted, its columns prepared as they pass.

Statistics are those of training nodes, and of edges into them: what is told of the others stays
unseen, at any depth. Where a graph has no training nodes (links are learnt of all) it is all rows;
where edges have a split of their own, it is the training edges; where that leaves none, all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from siafu.errors import ConfigError, DataError
from siafu.graph import Array, FeatureColumn, Graph, Partial, Schema, SparseFeatures, forget
from siafu.graph.schema import Group, Scale
from siafu.partitioning.chunks import EDGES_AT_ONCE, ranges, read, windows
from siafu.partitioning.edge_weights import ScaledWeights, learn_mean, told_weights
from siafu.partitioning.fitting import PIECE_NUMBERS, fit_columns, keep_one
from siafu.partitioning.preparing import Preparation
from siafu.partitioning.split import part_of_entries
from siafu.record import Say, counted, shortened

_TRAINING_EDGE = 1
_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnChoices:
    """How the columns of a graph with a schema are prepared; one without has them as they are."""

    scale: Scale = "standard"
    """For numbers and dates whose schema does not say it."""
    changes: Mapping[str, Any] | None = None
    """What a file says otherwise of some columns."""
    named: str = "the schema"
    """Where that stands."""
    all_rows: bool = False
    """Learn of all rows, not of training nodes alone."""
    tells_edges: bool = True
    """False where nobody reads the features of edges, and nothing is said of them."""
    asked: str = ""
    """The flags of the above, refused where columns have no names."""
    learnt: Schema | None = None
    """Of a run, whose columns are prepared likewise; an empty one where it took them as given."""

    def facts(self) -> dict[str, Any]:
        """Return what makes the same columns again."""
        learnt = None if self.learnt is None else self.learnt.to_dict()
        return {name: getattr(self, name) for name in ("scale", "all_rows")} | {
            "changes": None if self.changes is None else dict(self.changes),
            "learnt": learnt,
        }


def prepare_in_steps(partial: Partial, graph: Graph, how: ColumnChoices, say: Say) -> Graph:
    """Return the graph with its columns prepared while they are read; fitted once, in a step."""
    if graph.schema is None or graph.schema.is_fitted:
        _check_named(graph, how)
        return graph
    if how.learnt is not None:
        return _prepared_as_learnt(graph, how.learnt, say)
    if not partial.has("columns"):
        partial.end("columns", schema=fit_schema(graph, how).to_dict())
    fitted = Schema.from_dict(partial.facts("columns")["schema"])
    for line in _told_otherwise(graph.schema, fitted, "--schema"):
        say(line)
    for line in told(fitted, edges=how.tells_edges):
        say(line)
    return prepared_as_fitted(graph, fitted)


def fit_schema(graph: Graph, how: ColumnChoices) -> Schema:
    """Return the schema of a graph with what its training rows tell."""
    assert graph.schema is not None
    schema = graph.schema
    if how.changes is not None:
        schema = schema.overridden(how.changes, how.named)
    train = None if how.all_rows else graph.train
    if train is not None and not train.any():
        train = None
    nodes, edges, weights = schema.nodes, schema.edges, (1.0, "")
    if nodes:
        assert isinstance(graph.x, np.ndarray)
        count = graph.num_nodes if train is None else int(np.count_nonzero(train))
        nodes = keep_one(fit_columns(nodes, _training_rows(graph.x, train), count, how.scale))
    if edges:
        assert graph.edge_attr is not None
        wanted = _training_edges(graph, graph.edge_attr, train)
        edges = fit_columns(edges, wanted.pieces(), wanted.count(), how.scale)
    if graph.edge_weight is not None and how.scale != "none":
        weights = learn_mean(_training_edges(graph, graph.edge_weight, train).pieces())
    learnt = {"weight_mean": weights[0], "weights_kept": weights[1]}
    learnt |= {"nodes": nodes, "edges": edges, "weighted": graph.edge_weight is not None}
    return schema.model_copy(update=learnt)


def _rows_at_once(table: Array) -> int:
    return max(1, PIECE_NUMBERS // max(1, table.shape[1] if table.ndim > 1 else 1))


def _training_rows(table: Array, train: Array | None) -> Iterator[Array]:
    for low, high in ranges(len(table), _rows_at_once(table)):
        piece = read(table, low, high)
        yield piece if train is None else piece[np.asarray(train[low:high])]


def _training_edges(graph: Graph, table: Array, train: Array | None) -> "_TrainingEdges":
    wanted = _TrainingEdges(graph, table, train, graph.edge_split)
    return wanted if wanted.count() else _TrainingEdges(graph, table, None, None)


class _TrainingEdges:
    """The rows of a column of edges that training learns from."""

    def __init__(
        self, graph: Graph, table: Array, train: Array | None, split: Array | None
    ) -> None:
        self._graph, self._table = graph, table
        self._train = None if train is None else np.asarray(train, np.int32)
        self._split = split

    def count(self) -> int:
        """Return how many there are."""
        if self._split is not None:
            pieces = ranges(len(self._split), EDGES_AT_ONCE)
            split = (read(self._split, low, high) for low, high in pieces)
            return sum(int(np.count_nonzero(piece == _TRAINING_EDGE)) for piece in split)
        if self._train is None:
            return len(self._table)
        return int(np.diff(self._graph.indptr)[self._train != 0].sum())

    def pieces(self) -> Iterator[Array]:
        """Yield them in order."""
        for window in windows(self._graph.indptr, _rows_at_once(self._table)):
            low, high = window.low, window.high
            piece = read(self._table, low, high)
            if self._split is not None:
                piece = piece[np.asarray(self._split[low:high]) == _TRAINING_EDGE]
            elif self._train is not None:
                first = window.first_row
                chosen = part_of_entries(window.offsets, self._train, first, low, high)
                piece = piece[chosen != 0]
            yield piece


class PreparedRows:
    """Stands for an array of prepared rows, made when they are read, a slice at a time."""

    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, raw: Array, preparation: Preparation) -> None:
        self._raw, self._preparation = raw, preparation
        self.shape = (len(raw), len(preparation.names))

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, rows: slice) -> Array:
        prepared = self._preparation.apply(self._raw[rows])
        forget(self._raw)
        return prepared


def prepared_as_fitted(graph: Graph, fitted: Schema, say: Say | None = None) -> Graph:
    """Return the graph with the columns of a fitted schema, found by name."""
    x, feature_names = _prepared_table(graph, fitted, "nodes", say)
    edge_attr, edge_attr_names = _prepared_table(graph, fitted, "edges", say)
    weight = graph.edge_weight
    if weight is not None and fitted.weight_mean != 1:
        weight = cast("Array", ScaledWeights(weight, fitted.weight_mean))
    return replace(
        graph,
        x=x,
        edge_weight=weight,
        feature_names=feature_names,
        edge_attr=edge_attr,
        edge_attr_names=edge_attr_names,
        schema=fitted,
    )


def _prepared_table(
    graph: Graph, fitted: Schema, group: Group, say: Say | None
) -> tuple[Array | None, tuple[str, ...]]:
    assert graph.schema is not None
    raw = graph.x if group == "nodes" else graph.edge_attr
    given: tuple[FeatureColumn, ...] = getattr(graph.schema, group)
    assert not isinstance(raw, SparseFeatures), "tables have no sparse features"
    rows = graph.num_nodes if group == "nodes" else graph.num_edges
    where = "the node table" if group == "nodes" else "the edge table"
    unused = graph.schema.unused_of(group)
    preparation = Preparation(getattr(fitted, group), given, rows, where, unused)
    if say is not None and raw is not None:
        _say_how(preparation, raw, group, say)
    if raw is None or not preparation.names:
        return None, ()
    return cast("Array", PreparedRows(raw, preparation)), preparation.names


def _prepared_as_learnt(graph: Graph, learnt: Schema, say: Say) -> Graph:
    """Return the graph with the columns of a run, found by name."""
    assert graph.schema is not None
    if learnt.nodes or learnt.edges or not (graph.schema.nodes or graph.schema.edges):
        for line in _told_otherwise(graph.schema, learnt, "the run's schema"):
            say(line)
        return prepared_as_fitted(_weighted_alike(graph, learnt, say), learnt, say)
    # The run took its columns as they were.
    odd = [
        column.name
        for column in (*graph.schema.nodes, *graph.schema.edges)
        if column.gaps or column.held == "category"
    ]
    if odd:
        raise DataError(
            "The run knows no way to prepare columns with gaps or text.",
            seen=f"{shortened([repr(name) for name in odd], _SHOWN)} in {graph.name}; the data it "
            "was trained on was taken as it was",
            fix="give numbers without gaps, or train again on tables",
        )
    return replace(graph, schema=None)


def _weighted_alike(graph: Graph, learnt: Schema, say: Say) -> Graph:
    """Return the graph with weights of edges where a run had some; raise where it lacks them."""
    if learnt.weighted and graph.edge_weight is None:
        raise DataError(
            "The edges that the model was trained on had weights.",
            seen=f"none in {graph.name}",
            fix="name the column that has them: --edge-weight COLUMN",
        )
    if graph.edge_weight is not None and not learnt.weighted:
        say("Weights of edges are left out: the training used none.")
        return replace(graph, edge_weight=None)
    return graph


def _check_named(graph: Graph, how: ColumnChoices) -> None:
    """Raise where columns are found by name and the data names none."""
    learnt = how.learnt
    if how.asked:
        raise ConfigError(
            "Only columns of tables are prepared.",
            seen=f"{how.asked} with {graph.name}, whose columns are used as they are",
            fix="leave that out, or give tables, or a store of them that this version made",
        )
    if learnt is not None and learnt.nodes and graph.schema != learnt:
        raise DataError(
            "The columns of the data have no names, and the run finds them by name.",
            seen=f"{graph.name}, {graph.num_features} columns",
            fix="name the table of nodes too (--nodes)"
            if graph.schema is not None or not graph.num_features
            else "give tables (CSV, Parquet or data frames) as in training, or a store of them",
        )


def _say_how(preparation: Preparation, raw: Array, group: Group, say: Say) -> None:
    """Tell what is unlike the data of training."""
    if preparation.extra and (preparation.names or group == "nodes"):
        names = shortened([repr(name) for name in preparation.extra], _SHOWN)
        say(f"Columns of the {group} that the model does not know are left out: {names}.")
    unseen = preparation.count_unseen(_training_rows(raw, None))
    for name, count in unseen.items():
        say(f"Column {name!r}: {counted(count, 'row')} with a category that training never saw.")


def told(fitted: Schema, *, edges: bool = True) -> list[str]:
    """Return lines on what becomes of the columns: prepared, filled, left out, capped."""
    lines: list[str] = []
    for group, columns in (("nodes", fitted.nodes), ("edges", fitted.edges if edges else ())):
        if not columns:
            continue
        width = sum(len(column.prepared_names()) for column in columns)
        lines.append(f"Columns of the {group}: {len(columns):,} become {width:,} features.")
        for what, found in _remarkable(columns).items():
            if found:
                lines.append(f"{what}: {shortened(found, _SHOWN)}.")
    return lines + told_weights(fitted.weight_mean, fitted.weights_kept)


def _told_otherwise(seen: Schema, wanted: Schema, named: str) -> list[str]:
    """Return a line on columns that are taken for something else than tables were told to hold."""
    found = []
    groups: tuple[Group, ...] = ("nodes", "edges")
    for group in groups:
        given = {column.name: column for column in getattr(seen, group)}
        for column in getattr(wanted, group):
            before = given.get(column.name, column)
            if before.use and not column.use:
                found.append(f"{column.name} (not used)")
            elif before.kind != column.kind:
                found.append(f"{column.name} ({column.kind}, not {before.kind})")
    return [f"As {named} has it: {shortened(found, _SHOWN)}."] if found else []


def _remarkable(columns: tuple[FeatureColumn, ...]) -> dict[str, list[str]]:
    fitted = [(column, column.learnt) for column in columns if column.learnt and column.use]
    return {
        "Filled and flagged, gaps in training rows": [
            f"{column.name} ({learnt.gaps:,})" for column, learnt in fitted if column.is_flagged
        ],
        "Left out": [
            f"{column.name} ({learnt.left_out})" for column, learnt in fitted if learnt.left_out
        ],
        "Constant, and kept as ones since nothing else is there": [
            column.name for column, learnt in fitted if learnt.is_kept
        ],
        "Rare categories share a column `is other`": [
            f"{column.name} ({len(learnt.rare):,} of {len(learnt.rare) + len(learnt.levels):,})"
            for column, learnt in fitted
            if learnt.rare
        ],
    }
