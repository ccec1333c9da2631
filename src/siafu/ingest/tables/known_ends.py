"""The two ends of edges as rows of nodes; edges that have no such are counted and left out."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.graph import Array
from siafu.ingest.tables.edge_columns import EdgeColumns
from siafu.ingest.tables.files import Piece
from siafu.ingest.tables.ids import IdKind, IdRows, id_column, written_otherwise
from siafu.ingest.tables.repeated import empty_ids


def without_empty(piece: Piece, columns: EdgeColumns) -> Piece:
    """Return the piece without edges that have no id at one end, which are counted."""
    for name in (columns.src, columns.dst):
        is_empty = empty_ids(piece, name)
        if is_empty is not None:
            dropped = columns.dropped
            dropped.empty += int(is_empty.sum())
            where = f"column {name!r}, {piece.where(int(np.argmax(is_empty)))}"
            dropped.first_empty = dropped.first_empty or where
            piece = piece.only(~is_empty)
    return piece


def _rows_of(column: pa.Array, rows: IdRows, edges: EdgeColumns, kind: IdKind) -> Array:
    """Return the rows of ids, -1 where there is none; blanks around an unknown one are none."""
    found = rows.find(column)
    if kind == "text" and len(found) and found.min() < 0:
        lost = np.flatnonzero(found < 0)
        again = rows.find(pc.utf8_trim_whitespace(column.take(pa.array(lost))))
        found[lost] = again
        edges.dropped.trimmed += int((again >= 0).sum())
    return found


def with_known_ends(
    piece: Piece, rows: IdRows, edges: EdgeColumns, kind: IdKind
) -> tuple[Piece, list[Array]]:
    """Return the edges whose two nodes are known, with the rows of those."""
    names = (edges.src, edges.dst)
    columns = [id_column(piece, name, kind) for name in names]
    ends = [_rows_of(column, rows, edges, kind) for column in columns]
    lost = [end < 0 if len(end) and end.min() < 0 else None for end in ends]
    if lost[0] is None and lost[1] is None:
        return piece, ends
    dropped = edges.dropped
    unknown = np.zeros(piece.batch.num_rows, bool)
    for name, column, is_lost in zip(names, columns, lost, strict=True):
        if is_lost is not None:
            row = int(np.argmax(is_lost))
            if not dropped.first_unknown:
                text = str(column[row].as_py())
                shown = f"id {column[row].as_py()!r} in column {name!r}, {piece.where(row)}"
                dropped.first_unknown = shown
                dropped.written_otherwise = written_otherwise(text, rows, kind)
            unknown |= is_lost
    dropped.unknown += int(unknown.sum())
    return piece.only(~unknown), [end[~unknown] for end in ends]
