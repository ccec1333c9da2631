"""What the arrays and facts of a folder must be before anything is made of them.

Shapes and dtypes are checked from the manifest alone. Numbers that others are found by (rows,
offsets, classes) are checked while a file passes by for its checksum, once, in pieces: native code
reads and writes at them without looking. What stores and parts have in common stands below: facts
about a graph, columns of nodes and of edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from siafu.graph.array_stream import Array, forget
from siafu.graph.folder import Check, Folder
from siafu.graph.manifest import MANIFEST, MOST_ROWS, first_fault
from siafu.graph.schema import Schema, schema_from_facts

INDEX = ("<i4", "<i8")
OFFSETS = ("<i8",)
INTEGERS = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
UNSIGNED = ("|u1", "<u2", "<u4", "<u8")
FLOATS = ("<f4",)
REALS = ("<f4", "<f8")
BOOLS = ("|b1",)
BYTES = ("|u1",)
_ROWS_AT_ONCE = 1 << 20
MASKS = ("train", "val", "test")
NO_LABELS = 255
"""Of a node whose labels are not known, in the place of 0 and 1 of each class."""
Count = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Width = Annotated[int, Field(ge=0, lt=1 << 31)]
Name = str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class Facts(BaseModel):
    """Facts of one kind of folder; others beside them are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


AnyFacts = TypeVar("AnyFacts", bound=Facts)


def read_facts(folder: Folder, model: type[AnyFacts]) -> AnyFacts:
    """Return the facts of a folder, refusing one that is missing or can't be."""
    try:
        return model.model_validate(folder.facts)
    except ValidationError as error:
        raise folder.damaged(MANIFEST, f"fact {first_fault(error)}") from error


@dataclass(frozen=True, slots=True)
class Column:
    """What one array must be; None in a shape stands for any number."""

    shape: tuple[int | None, ...]
    dtypes: tuple[str, ...]
    span: tuple[int, int] | None = None
    """The lowest and highest number allowed."""
    also: int | None = None
    """Another one that is."""
    ends: int | None = None
    """For offsets, which never fall: the last one; the first is 0."""
    is_needed: bool = False

    def check(self) -> Check | None:
        """Return what looks at the numbers of this array, if they matter."""
        if self.ends is not None:
            return _Offsets(self.ends)
        return None if self.span is None else _Within(*self.span, self.also)


ColumnRules = Mapping[str, Column]


def check_columns(folder: Folder, columns: ColumnRules) -> None:
    """Raise unless the arrays that the manifest names have the right shapes and dtypes."""
    for name, column in columns.items():
        if name not in folder and not column.is_needed:
            continue
        entry = folder.entry(name)
        wanted = [size for size in column.shape]
        fits = len(entry.shape) == len(wanted) and all(
            size in (None, found) for size, found in zip(wanted, entry.shape, strict=True)
        )
        if not fits or entry.dtype not in column.dtypes:
            shape = ", ".join("any" if size is None else str(size) for size in wanted)
            seen = f"{entry.dtype} {list(entry.shape)} where {' or '.join(column.dtypes)} [{shape}]"
            raise folder.damaged(f"{name}.npy", f"{seen} is expected")


def verify_columns(folder: Folder, columns: ColumnRules, *names: str) -> None:
    """Raise unless checksums are right and every number is in its range; each file is read once.

    Of `names` alone where some are given.
    """
    checks = {name: check for name, column in columns.items() if (check := column.check())}
    folder.verify(checks, names=names or None)


class _Within:
    """Numbers from `low` to `high`, and `also`."""

    def __init__(self, low: int, high: int, also: int | None = None) -> None:
        self._low, self._high, self._also = low, high, also
        self._seen, self._fault = 0, None

    _fault: str | None

    def see(self, numbers: Array) -> None:
        """Look at the next piece."""
        if self._fault is None and len(numbers):
            if self._also is not None:
                numbers = np.where(numbers == self._also, self._low, numbers)
            low, high = int(numbers.min()), int(numbers.max())
            if low < self._low or high > self._high:
                where = int(np.argmin(numbers) if low < self._low else np.argmax(numbers))
                self._fault = (
                    f"number {self._seen + where} is {numbers[where]}, "
                    f"allowed are {self._low} to {self._high}"
                )
        self._seen += len(numbers)

    def fault(self) -> str | None:
        """Return the first number out of range."""
        return self._fault


class _Offsets:
    """Numbers from 0 to `ends` that never fall."""

    def __init__(self, ends: int) -> None:
        self._ends, self._last, self._seen = ends, 0, 0
        self._fault: str | None = None

    def see(self, numbers: Array) -> None:
        """Look at the next piece."""
        if not self._seen and len(numbers) and numbers[0] != 0:
            self._fault = f"it begins with {numbers[0]}, not with 0"
        if self._fault is None and len(numbers):
            falls = numbers[1:] < numbers[:-1]
            if numbers[0] < self._last or falls.any():
                at = 0 if numbers[0] < self._last else int(np.argmax(falls)) + 1
                before = self._last if at == 0 else numbers[at - 1]
                row = self._seen + at - 1
                self._fault = f"row {row} goes from {before} to {numbers[at]}, which is backwards"
            self._last = int(numbers[-1])
        self._seen += len(numbers)

    def fault(self) -> str | None:
        """Return where an offset is less than the one before, or the end that is wrong."""
        if self._fault is None and (not self._seen or self._last != self._ends):
            return f"it ends with {self._last}, there are {self._ends}"
        return self._fault


def counts_of(folder: Folder, name: str, parts: int, total: int) -> Array:
    """Return int64 [parts]: numbers from 0 that must add up to `total`."""
    counts: Array = np.array(folder.load(name))
    # Added up as Python's numbers, which do not overflow.
    found: list[Any] = counts.tolist()
    if len(found) != parts or min(found, default=0) < 0 or sum(found) != total:
        seen = f"{len(found)} counts from {min(found, default=0)} that add up to {sum(found)}"
        raise folder.damaged(f"{name}.npy", f"{seen}, expected {parts} that add up to {total}")
    return counts


def check_all_named(what: str, names: Sequence[Any], count: int) -> None:
    """Raise a ValueError unless all of `count` things have a name of one type, or none has."""
    if len(names) not in (0, count):
        raise ValueError(f"{len(names)} names of {what} for {count}")
    if len({type(name) for name in names}) > 1:
        raise ValueError(f"names of {what} are text and numbers")


class GraphFacts(Facts):
    """What the manifests of stores and parts say about the whole graph."""

    name: str
    num_nodes: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    num_edges: Count
    num_features: Width
    num_classes: Width
    multi_label: bool
    class_names: list[Name] = Field(default_factory=list)
    num_edge_types: Width = 0
    edge_type_names: list[Name] = Field(default_factory=list)
    feature_names: list[str] = Field(default_factory=list)
    edge_attr_names: list[str] = Field(default_factory=list)
    columns: Annotated[Schema | None, BeforeValidator(schema_from_facts)] = Field(
        None, alias="schema"
    )
    num_targets: Width = 0
    target_names: list[str] = Field(default_factory=list)
    num_edge_targets: Width = 0
    edge_target_names: list[str] = Field(default_factory=list)
    num_edge_classes: Width = 0
    edge_class_names: list[Name] = Field(default_factory=list)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_all_named("classes", self.class_names, self.num_classes)
        check_all_named("edge types", self.edge_type_names, self.num_edge_types)
        check_all_named("features", self.feature_names, self.num_features)
        check_all_named("targets", self.target_names, self.num_targets)
        check_all_named("edge targets", self.edge_target_names, self.num_edge_targets)
        check_all_named("edge classes", self.edge_class_names, self.num_edge_classes)
        if self.columns is not None:
            self.columns.check_names(self.feature_names, self.edge_attr_names)
        return self


def as_stored(name: str, array: Array) -> Array:
    """Return an array of a graph in a dtype that is stored; itself where it has one already."""
    allowed: tuple[str, ...] = BOOLS if name in MASKS else FLOATS
    if name == "edge_split":
        allowed = BYTES
    elif name in ("y", "edge_y"):
        numbers = FLOATS if array.dtype.kind == "f" else BYTES + BOOLS
        allowed = OFFSETS if array.ndim == 1 else numbers
    elif name in ("indptr", "src"):
        allowed = OFFSETS if name == "indptr" or array.dtype.str not in INDEX else INDEX
    elif name not in (*MASKS, "x", "edge_weight", "edge_attr"):
        return array
    return array if array.dtype.str in allowed else array.astype(allowed[0])


def node_columns(folder: Folder, facts: GraphFacts, rows: int) -> dict[str, Column]:
    """Return what must hold of the arrays with one row per node."""
    columns = {name: Column((rows,), BOOLS, span=(0, 1)) for name in MASKS}
    if facts.multi_label:
        shape = (rows, facts.num_classes)
        columns["y"] = Column(shape, BYTES + BOOLS, span=(0, 1), also=NO_LABELS, is_needed=True)
    elif facts.num_targets:
        columns["y"] = Column((rows, facts.num_targets), FLOATS, is_needed=True)
    else:
        columns["y"] = Column((rows,), OFFSETS, span=(-1, facts.num_classes - 1))
    if "x_indptr" in folder:
        entries = folder.entry("x_index").shape[0]
        columns["x_indptr"] = Column((rows + 1,), OFFSETS, ends=entries)
        columns["x_index"] = Column((entries,), INDEX, span=(0, facts.num_features - 1))
        columns["x_value"] = Column((entries,), FLOATS, is_needed=True)
    else:
        needed = facts.num_features > 0
        columns["x"] = Column((rows, facts.num_features), FLOATS, is_needed=needed)
    return columns | id_columns(folder, rows)


def id_columns(folder: Folder, rows: int) -> dict[str, Column]:
    """Return what must hold of the arrays of ids."""
    if "ids" in folder:
        return {"ids": Column((rows,), INTEGERS)}
    length = folder.entry("ids_utf8").shape[0]
    return {
        "ids_offsets": Column((rows + 1,), OFFSETS, ends=length, is_needed=True),
        "ids_utf8": Column((length,), BYTES),
    }


def edge_columns(facts: GraphFacts, rows: int, edges: int, sources: int) -> dict[str, Column]:
    """Return what must hold of edges into `rows` rows, from `sources` of them."""
    typed = facts.num_edge_types > 0
    edge_y = Column((edges,), OFFSETS, span=(-1, facts.num_edge_classes - 1))
    if facts.num_edge_targets:
        edge_y = Column((edges, facts.num_edge_targets), FLOATS, is_needed=True)
    return {
        "indptr": Column((rows + 1,), OFFSETS, ends=edges, is_needed=True),
        "src": Column((edges,), INDEX, span=(0, sources - 1), is_needed=True),
        "edge_weight": Column((edges,), REALS),
        "edge_attr": Column((edges, None), REALS),
        "edge_type": Column(
            (edges,), UNSIGNED, span=(0, facts.num_edge_types - 1), is_needed=typed
        ),
        "edge_y": edge_y,
        "edge_split": Column((edges,), BYTES, span=(0, len(MASKS))),
        "edge_row": Column((edges,), OFFSETS),
    }


def known_rows(y: Array) -> Array:
    """Return bool [N]: the rows that have a class, known labels, or at least one number."""
    if y.ndim == 1:
        return y >= 0
    if y.dtype.kind == "f":
        return np.asarray(np.isfinite(y).any(axis=1))
    # All of a row are unknown, or none.
    return np.asarray((y[:, :1] != NO_LABELS).all(axis=1))


def check_nodes(folder: Folder) -> None:
    """Raise where text ids are no text, or a node of a mask has no label; read in pieces."""
    if "ids_offsets" in folder:
        _check_text(folder)
    y = folder.load_if_present("y")
    if y is None:
        return
    for name in MASKS:
        mask = folder.load_if_present(name)
        for start in range(0, 0 if mask is None else len(y), _ROWS_AT_ONCE):
            assert mask is not None
            rows = slice(start, start + _ROWS_AT_ONCE)
            bare = ~known_rows(y[rows]) & mask[rows]
            if bare.any():
                seen = f"row {start + int(np.argmax(bare))} is marked and has no label in y.npy"
                raise folder.damaged(f"{name}.npy", seen)
            forget(mask)
            forget(y)


def _check_text(folder: Folder) -> None:
    offsets, utf8 = folder.load("ids_offsets"), folder.load("ids_utf8")
    for start in range(0, len(offsets) - 1, _ROWS_AT_ONCE):
        piece: Array = np.array(offsets[start : start + _ROWS_AT_ONCE + 1])
        text = np.array(utf8[piece[0] : piece[-1]])
        buffers = [None, pa.py_buffer(piece - piece[0]), pa.py_buffer(text)]
        try:
            pa.Array.from_buffers(pa.large_string(), len(piece) - 1, buffers).validate(full=True)
        except pa.ArrowInvalid as error:
            raise folder.damaged("ids_utf8.npy", f"ids from row {start}: {error}") from error
        forget(utf8)
