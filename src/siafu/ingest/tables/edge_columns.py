"""Which columns of an edge table mean what, and what is counted while they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siafu.graph import Array, FeatureColumn, TargetColumn
from siafu.ingest.tables.choosing import Features, choose_features
from siafu.ingest.tables.classes import TypeColumn, find_type_column
from siafu.ingest.tables.columns import as_float32, is_list, is_number
from siafu.ingest.tables.files import Piece, Table
from siafu.ingest.tables.kinds import Sample
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import FEW, Problems
from siafu.ingest.tables.splits import Masks, find_masks
from siafu.ingest.tables.targets import Target, target_reader
from siafu.ingest.tables.told import Line, edge_feature_lines, target_lines, told_edges
from siafu.record import counted

_WEIGHTS = ("weight", "edge_weight")


def edge_flags(options: TableOptions) -> dict[str, str]:
    """Return the flag that names each column of the edge table that has to be there."""
    assert options.src is not None
    assert options.dst is not None
    flags = {options.src: "--src", options.dst: "--dst"}
    flags |= dict.fromkeys(options.edge_attr or options.edge_left_out, "--edge-attr")
    if options.edge_weight is not None:
        flags[options.edge_weight] = "--edge-weight"
    if options.edge_type is not None:
        flags[options.edge_type] = "--edge-type"
    if options.needs_labels:
        flags |= dict.fromkeys(label_columns(options), "--edge-label")
    return flags


def label_columns(options: TableOptions) -> tuple[str, ...]:
    """Return the columns to predict."""
    if options.edge_label is None:
        return ()
    return (options.edge_label,) if isinstance(options.edge_label, str) else options.edge_label


@dataclass(slots=True)
class Dropped:
    """Edges that are left out since a node of theirs is not known, or not named."""

    rows: int = 0
    """Rows that were read."""
    unknown: int = 0
    empty: int = 0
    first_unknown: str = ""
    first_empty: str = ""
    loops: int = 0
    """Edges from a node to itself: not dropped."""
    trimmed: int = 0
    """Ids that are known without the blanks around them: not dropped."""
    written_otherwise: str = ""
    """An id of the node table that is the same number as the first unknown one."""

    def check(self, problems: Problems, drop: bool | None) -> None:
        """Note it where there are more than may be dropped."""
        most = {None: FEW * self.rows, True: self.rows, False: 0}[drop]
        if self.unknown > most:
            seen, fix = f"{self.first_unknown}; {self.unknown:,} of {self.rows:,} edges", ""
            if self.written_otherwise:
                seen += f"; the node table has {self.written_otherwise!r}"
                fix = (
                    "one of the tables has lost leading zeros: make it again with its ids as text "
                    "(pandas: dtype=str), or take ids as whole numbers: --id-type integer; or else "
                )
            # Who drops most of the edges has no graph left.
            or_else = ", or drop such edges: --drop-unknown" if 2 * self.unknown < self.rows else ""
            problems.add(
                "An edge names a node that the node table does not have.",
                seen=seen,
                fix=f"{fix}add the nodes to the node table, old ones beside new ones{or_else}",
            )
        if self.empty > most:
            problems.add(
                "An id is missing.",
                seen=f"{self.first_empty}; {self.empty:,} of {self.rows:,} edges",
                fix="give both ends of each edge an id, or drop such edges: --drop-unknown",
            )

    def notes(self) -> list[str]:
        """Return what was left out."""
        notes = []
        if self.trimmed:
            told = counted(self.trimmed, "id")
            notes.append(f"Left blanks out around {told} of edges, to find the nodes they mean.")
        if self.unknown:
            notes.append(
                f"Dropped {counted(self.unknown, 'edge')} with nodes that the node table does not "
                f"have, the first {self.first_unknown}."
            )
        if self.empty:
            dropped = counted(self.empty, "edge")
            notes.append(f"Dropped {dropped} without an id, the first {self.first_empty}.")
        if self.loops:
            lead = "leads" if self.loops == 1 else "lead"
            notes.append(f"{counted(self.loops, 'edge')} {lead} from a node to itself; kept.")
        return notes


@dataclass(slots=True)
class Weights:
    """The weights of edges; those that were found by their name are checked on the way."""

    column: str | None
    is_asked: bool
    why_not: str = ""
    is_read: bool = True
    """False where the first rows tell that the column can't be weights: it is a feature then."""

    def check(self, piece: Piece, values: Array) -> None:
        """Give up weights that nobody asked for where one is missing or below 0."""
        bad = ~np.isfinite(values) | (values < 0)
        if not self.why_not and bad.any():
            row = int(np.argmax(bad))
            self.why_not = f"{values[row]:g} in {piece.where(row)}"


@dataclass(slots=True)
class EdgeColumns:
    """What each column of an edge table is for."""

    src: str
    dst: str
    weights: Weights
    types: TypeColumn | None
    types_were_found: bool
    labels: Target | None
    features: Features
    masks: Masks | None = None
    dropped: Dropped = field(default_factory=Dropped)

    def names(self) -> list[str]:
        """Return the columns that are read."""
        names = [self.src, self.dst, *self.features.names]
        names += [self.weights.column] if self.weights.column and self.weights.is_read else []
        names += [] if self.types is None else [self.types.column]
        names += [] if self.labels is None else self.labels.columns
        names += [] if self.masks is None else self.masks.columns
        return list(dict.fromkeys(names))

    def attr_width(self) -> int:
        """Return how many numbers the features of an edge are."""
        return sum(reader.width for reader in self.features.readers)

    def described(self) -> list[FeatureColumn]:
        """Return what a schema says of the features, once they were read."""
        return [column for reader in self.features.readers for column in reader.columns()]

    def targets(self) -> list[TargetColumn]:
        """Return what a schema says of what is to be predicted, once it was read."""
        return self.labels.described() if self.labels else []

    def state(self) -> dict[str, Any]:
        """Return what another process needs to go on reading."""
        dropped = {name: getattr(self.dropped, name) for name in Dropped.__slots__}
        return {
            "dropped": dropped,
            "weight": self.weights.why_not,
            "readers": [reader.state() for reader in self.features.readers],
            "types": [] if self.types is None else self.types.met(),
        }

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from where another process was; nothing is there at the start."""
        if not state:
            return
        self.dropped = Dropped(**state["dropped"])
        self.weights.why_not = state["weight"]
        for reader, said in zip(self.features.readers, state["readers"], strict=True):
            reader.take_up(said)
        if self.types is not None:
            self.types.take_up(state["types"])

    @property
    def may_be_read_apart(self) -> bool:
        """Whether spans of the table can be read side by side: nothing is numbered as met."""
        return self.types is None and self.labels is None and not self.features.categories

    def check(self, problems: Problems, drop: bool | None) -> None:
        """Note what is wrong with the table, once it was read."""
        self.dropped.check(problems, drop)
        for reader in self.features.readers:
            reader.check(problems)

    def notes(self, shown: str) -> list[str]:
        """Return sentences for the user, once all was read."""
        notes = self.dropped.notes()
        weight = self.weights
        if weight.column is not None and weight.why_not:
            notes.append(f"Column {weight.column} is not used as a weight: {weight.why_not}.")
        for reader in self.features.readers:
            notes += reader.notes()
        notes += self.features.notes("--edge-attr", may_split=self.labels is not None)
        notes += self.labels.notes() if self.labels else ()
        lines = [Line(self.src, "id", "source"), Line(self.dst, "id", "destination")]
        if weight.column is not None and not weight.why_not:
            lines.append(Line(weight.column, "number", "weight"))
        if self.types is not None:
            lines.append(Line(self.types.column, "type", "type", why=f"{len(self.types):,} types"))
        lines += target_lines(self.targets())
        lines += [Line(name, "split", "split") for name in self.masks.columns] if self.masks else []
        lines += edge_feature_lines(self.features)
        return [*notes, told_edges(shown, lines)]


def join_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what `EdgeColumns.state` is after spans that were read apart, in their order."""
    dropped = [state["dropped"] for state in states]
    names = Dropped.__slots__
    whole = {name: _first_or_sum([one[name] for one in dropped]) for name in names}
    # The two tell of the same id.
    told = next((one for one in dropped if one["first_unknown"]), dropped[0])
    whole["written_otherwise"] = told["written_otherwise"]
    readers = [
        {
            name: _first_or_sum([one[name] for one in of_spans])
            for name in ("rows", "odd", "first", "lost")
        }
        | {"gaps": np.sum([one["gaps"] for one in of_spans], axis=0).tolist(), "met": []}
        for of_spans in zip(*(state["readers"] for state in states), strict=True)
    ]
    weight = _first_or_sum([state["weight"] for state in states])
    return {"dropped": whole, "weight": weight, "readers": readers, "types": []}


def _first_or_sum(found: Sequence[Any]) -> Any:
    """Return the sum of numbers, and of texts the first that is one."""
    if isinstance(found[0], str):
        return next((text for text in found if text), "")
    return sum(found)


def choose_edge_columns(table: Table, options: TableOptions, problems: Problems) -> EdgeColumns:
    """Return which column of the edge table means what; raise where one is missing."""
    assert options.src is not None
    assert options.dst is not None
    table.check_columns(edge_flags(options))
    schema = table.schema()
    labels = tuple(name for name in label_columns(options) if name in schema.names)
    taken = [options.src, options.dst, *labels, *(options.edge_attr or ())]
    taken += [] if options.edge_weight is None else [options.edge_weight]
    found = options.edge_type or find_type_column(schema, taken)
    taken += [] if found is None else [found]
    weights = _weights(table, options, taken)
    taken += [weights.column] if weights.column and weights.is_read else []
    split = options.split if options.split in schema.names else None
    masks = find_masks(schema, split) if labels else None
    taken += [] if masks is None else masks.columns
    others = [name for name in taken if name not in (options.edge_attr or ())]
    features = choose_features(
        table,
        problems,
        taken=others,
        asked=options.edge_attr,
        left_out=options.edge_left_out,
        known=options.edge_kinds,
        targets=labels,
    )
    return EdgeColumns(
        src=options.src,
        dst=options.dst,
        weights=weights,
        types=None if found is None else TypeColumn(found),
        types_were_found=options.edge_type is None,
        labels=target_reader(table, labels, options.target) if labels else None,
        features=features,
        masks=masks,
    )


def _weights(table: Table, options: TableOptions, taken: list[str]) -> Weights:
    """Return the column of weights: the one named, or one called so whose first rows can be."""
    if options.edge_weight is not None:
        return Weights(options.edge_weight, is_asked=True)
    schema = table.schema()
    free = [name for name in _WEIGHTS if name in schema.names and name not in taken]
    name = next((n for n in free if is_number(schema.field(n).type)), None)
    if name is None or is_list(schema.field(name).type):
        return Weights(None, is_asked=False)
    weights, column = Weights(name, is_asked=False), Sample(table, [name]).columns.get(name)
    if column is not None:
        values = as_float32(column)
        bad = ~np.isfinite(values) | (values < 0)
        if bad.any():
            weights.is_read = False
            weights.why_not = f"{values[np.argmax(bad)]:g} in one of its rows"
    return weights
