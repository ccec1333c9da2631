"""What stores and parts have in common on disk: facts about a graph, columns of nodes and edges.

N nodes of the folder, E edges of it, F features, C classes.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from siafu.graph.array_stream import Array, forget
from siafu.graph.columns import (
    BOOLS,
    BYTES,
    FLOATS,
    INDEX,
    INTEGERS,
    OFFSETS,
    REALS,
    UNSIGNED,
    Column,
    Facts,
)
from siafu.graph.folder import Folder
from siafu.graph.manifest import MOST_ROWS

_ROWS_AT_ONCE = 1 << 20
MASKS = ("train", "val", "test")

Count = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Width = Annotated[int, Field(ge=0, lt=1 << 31)]
Name = str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


def check_names(what: str, names: Sequence[Any], count: int) -> None:
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

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_names("classes", self.class_names, self.num_classes)
        check_names("edge types", self.edge_type_names, self.num_edge_types)
        check_names("features", self.feature_names, self.num_features)
        return self


def as_stored(name: str, array: Array) -> Array:
    """Return an array of a graph in a dtype that is stored; itself where it has one already."""
    allowed: tuple[str, ...] = BOOLS if name in MASKS else FLOATS
    if name == "y":
        allowed = OFFSETS if array.ndim == 1 else BYTES + BOOLS
    elif name in ("indptr", "src"):
        allowed = OFFSETS if name == "indptr" or array.dtype.str not in INDEX else INDEX
    elif name not in (*MASKS, "x", "edge_weight", "edge_attr"):
        return array
    return array if array.dtype.str in allowed else array.astype(allowed[0])


def node_columns(folder: Folder, facts: GraphFacts, rows: int) -> dict[str, Column]:
    """Return what must hold of the arrays with one row per node."""
    columns = {name: Column((rows,), BOOLS, span=(0, 1)) for name in MASKS}
    if facts.multi_label:
        columns["y"] = Column((rows, facts.num_classes), BYTES + BOOLS, span=(0, 1), is_needed=True)
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
    return {
        "indptr": Column((rows + 1,), OFFSETS, ends=edges, is_needed=True),
        "src": Column((edges,), INDEX, span=(0, sources - 1), is_needed=True),
        "edge_weight": Column((edges,), REALS),
        "edge_attr": Column((edges, None), REALS),
        "edge_type": Column(
            (edges,), UNSIGNED, span=(0, facts.num_edge_types - 1), is_needed=typed
        ),
    }


def check_nodes(folder: Folder) -> None:
    """Raise where text ids are no text, or a node of a mask has no label; read in pieces."""
    if "ids_offsets" in folder:
        _check_text(folder)
    y = folder.load_if_present("y")
    if y is None or y.ndim == 2:
        return
    for name in MASKS:
        mask = folder.load_if_present(name)
        for start in range(0, 0 if mask is None else len(y), _ROWS_AT_ONCE):
            assert mask is not None
            rows = slice(start, start + _ROWS_AT_ONCE)
            bare = (y[rows] < 0) & mask[rows]
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
