"""The edge arrays of a store on their way to the disk."""

from typing import Any

import numpy as np

from siafu.graph import Array, FolderWriter, index_dtype
from siafu.ingest.tables.buckets import SortedRows, record_type
from siafu.ingest.tables.classes import NO_LABEL
from siafu.ingest.tables.options import TableOptions

_ARRAY_OF_FIELD = {name: f"edge_{name}" for name in ("weight", "attr", "type", "split", "row")} | {
    "target": "edge_y"
}


class EdgeArrays:
    """The edge arrays of a store, appended to as rows come sorted; a note says how far."""

    def __init__(
        self,
        writer: FolderWriter,
        types: dict[str, np.dtype[Any]],
        num_nodes: int,
        so_far: dict[str, Any],
    ) -> None:
        self._writer = writer
        rows, self._edges = int(so_far.get("rows", 0)), int(so_far.get("edges", 0))
        self._indptr = writer.stream("indptr", (num_nodes + 1,), np.int64, kept_rows=rows)
        if not rows:
            self._indptr.append(np.zeros(1, np.int64))
        self._streams = {
            name: writer.stream(
                _ARRAY_OF_FIELD.get(name, name),
                (-1, *dtype.shape),
                dtype.base,
                kept_rows=self._edges,
            )
            for name, dtype in types.items()
        }

    def append(self, rows: SortedRows) -> None:
        """Add the edges of some rows, which follow those before."""
        self._indptr.append(self._edges + np.cumsum(rows.counts))
        for name, stream in self._streams.items():
            stream.append(rows.records[name])
        self._edges += int(rows.counts.sum())

    def flushed(self) -> dict[str, int]:
        """Return how far the arrays are, all of it on the disk by then."""
        for stream in (self._indptr, *self._streams.values()):
            stream.flush()
        return {"rows": self._indptr.written_rows, "edges": self._edges}

    def close(self) -> int:
        """Complete the arrays and return the number of edges."""
        for name in ("indptr", *(_ARRAY_OF_FIELD.get(name, name) for name in self._streams)):
            self._writer.close(name)
        return self._edges


def predicted_record(num_nodes: int, options: TableOptions) -> Any:
    """Return the record of an edge as far as the options tell it before the table is read."""
    return record_type(
        index_dtype(num_nodes),
        undirected=options.undirected,
        weight=options.edge_weight is not None,
        attr=len(options.edge_attr or ()),
        typed=True,
    )


def with_reverses(records: Array, target: str | None) -> Array:
    """Return the records and, after them, their reverses, which are not asked about again.

    `target` is the kind of what is predicted of edges.
    """
    records["reverse"] = False
    reverses = records.copy()
    reverses["reverse"] = True
    reverses["src"], reverses["dst"] = records["dst"], records["src"]
    if target is not None:
        reverses["target"] = NO_LABEL if target == "class" else np.nan
    for name, nothing in (("row", -1), ("split", 0)):
        if name in (records.dtype.names or ()):
            reverses[name] = nothing
    return np.concatenate([records, reverses])
