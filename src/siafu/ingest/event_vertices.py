"""The vertices of events: a node table with ids, labels and features, and rows by id."""

from dataclasses import dataclass

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, Ids
from siafu.ingest.id_rows import IdKind, IdRows, id_column
from siafu.ingest.labels import ClassName
from siafu.ingest.table_files import Piece, Table
from siafu.ingest.table_options import TableOptions
from siafu.ingest.vertices import NodeTable
from siafu.record import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Vertices:
    """All vertices of a dynamic graph."""

    ids: Ids
    kind: IdKind
    x: Array | None = None
    feature_names: tuple[str, ...] = ()
    y: Array | None = None
    class_names: tuple[ClassName, ...] = ()
    notes: tuple[str, ...] = ()


def read_vertices(table: Table, id_type: IdKind | None, progress: Progress) -> Vertices:
    """Return the vertices of a node table: column `id`, a label where there is one, features."""
    nodes = NodeTable(table, TableOptions(id_type=id_type), progress)
    scanned = nodes.scan()
    arrays = nodes.read()
    y = arrays.get("y")
    if y is not None and y.ndim != 1:
        raise DataError(
            "A vertex of a dynamic graph has one label.",
            seen=f"{y.shape[1]} classes at once in the node table",
            fix="give one label column of whole numbers or text",
        )
    notes = nodes.notes()
    if scanned.masks:
        notes.append("Masks of the node table are not used.")
    return Vertices(
        ids=scanned.ids,
        kind=nodes.kind,
        x=arrays.get("x"),
        feature_names=nodes.feature_names(),
        y=y,
        class_names=tuple(scanned.class_names),
        notes=tuple(notes),
    )


def find_rows(piece: Piece, name: str, rows: IdRows, kind: IdKind) -> Array:
    """Return the row of each id of a column; raise where the node table does not have one."""
    column = id_column(piece, name, kind)
    found = rows.find(column)
    if len(found) and found.min() < 0:
        row = int(np.argmax(found < 0))
        raise DataError(
            "An event names a vertex that the node table does not have.",
            seen=f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}",
            fix="add the vertex to the node table, or drop the event",
        )
    return found
