"""Rows of a node table that are left out: those without an id, and those that repeat a node.

Rows are counted over all files of the table.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.graph import Array, Ids, IntegerIds, TargetColumn
from siafu.graph.columns import NO_LABELS
from siafu.ingest.tables.columns import is_text
from siafu.ingest.tables.files import Piece
from siafu.ingest.tables.problems import FEW, Problems
from siafu.record import counted


def empty_ids(piece: Piece, name: str) -> Array | None:
    """Return bool [B], the rows whose id is a null or a blank; None where there is none."""
    column = piece.column(name)
    is_empty = column.is_null()
    if is_text(column.type):
        text = column.cast(pa.large_string())
        is_blank = pc.equal(text, "")
        if pc.any(pc.or_kleene(is_blank, is_empty)).as_py() is not True:
            return None
        is_empty = pc.equal(pc.utf8_trim_whitespace(text.fill_null("")), "")
    elif not column.null_count:
        return None
    return np.asarray(is_empty.to_numpy(zero_copy_only=False))


class LeftOut:
    """Knows which rows of a node table are left out, and why."""

    def __init__(self) -> None:
        self._ids: Ids = IntegerIds(np.empty(0, np.int64))
        self.begin()

    def begin(self) -> None:
        """Forget all, before the table is scanned."""
        self._rows, self._start = 0, 0
        self._files: list[tuple[int, Path]] = []
        self._empty = np.empty(0, np.int64)
        self._repeated, self._first_of = np.empty(0, np.int64), np.empty(0, np.int64)
        self._contents: dict[int, bytes] = {}
        self._at = 0

    def see(self, piece: Piece) -> None:
        """Count the rows of a piece."""
        if not self._files or self._files[-1][1] != piece.file:
            self._files.append((self._rows, piece.file))
        self._start = self._rows
        self._rows += piece.batch.num_rows

    def without_empty(self, piece: Piece, name: str) -> Piece:
        """Return the piece that was seen last without rows that have no id."""
        is_empty = empty_ids(piece, name)
        if is_empty is None:
            return piece
        self._empty = np.append(self._empty, self._start + np.flatnonzero(is_empty))
        return piece.only(~is_empty)

    def _where(self, row: int) -> str:
        start, file = next(one for one in reversed(self._files) if one[0] <= row)
        return f"data row {row - start} (from 0) of {file}"

    def check(self, problems: Problems, drop: bool | None) -> None:
        """Note it where more rows have no id than may be dropped."""
        most = {None: FEW * self._rows, True: self._rows, False: 0}[drop]
        if len(self._empty) > most:
            problems.add(
                "An id is missing.",
                seen=f"{len(self._empty):,} of {self._rows:,} rows, the first "
                f"{self._where(int(self._empty[0]))}",
                fix="give the rows ids, or drop them: --drop-unknown",
            )

    def find_repeated(self, ids: Ids) -> Array:
        """Return which of the nodes are there for the first time; rows of the others are known."""
        values = ids.values if isinstance(ids, IntegerIds) else _codes(ids)
        _, first, which = np.unique(values, return_index=True, return_inverse=True)
        is_first = first[which] == np.arange(len(values))
        rows = np.delete(np.arange(self._rows), self._empty)
        self._repeated = rows[~is_first]
        self._first_of = rows[first[which][~is_first]]
        self._ids = ids.take(np.flatnonzero(~is_first))
        return np.flatnonzero(is_first)

    def begin_writing(self) -> None:
        """Start again with the first row."""
        self._at, self._contents = 0, {}

    def rest(self, blocks: dict[str, Array]) -> dict[str, Array]:
        """Return the rows of the next blocks that are not left out."""
        count = len(next(iter(blocks.values()), ()))
        low, self._at = self._at, self._at + count
        out = [rows[(rows >= low) & (rows < low + count)] for rows in (self._empty, self._repeated)]
        if len(self._repeated):
            first = self._first_of[(self._first_of >= low) & (self._first_of < low + count)]
            for row in np.unique(np.concatenate([out[1], first])).tolist():
                parts = [np.ascontiguousarray(block[row - low]) for block in blocks.values()]
                self._contents[row] = b"".join(part.tobytes() for part in parts)
        left_out = np.concatenate(out) - low
        if not len(left_out):
            return blocks
        keep = np.ones(count, bool)
        keep[left_out] = False
        return {name: block[keep] for name, block in blocks.items()}

    def check_repeated(self, problems: Problems) -> None:
        """Note the first rows that say otherwise of a node than another row does."""
        pairs = zip(self._first_of.tolist(), self._repeated.tolist(), strict=True)
        unlike = [
            at
            for at, (first, again) in enumerate(pairs)
            if self._contents.get(first) != self._contents.get(again)
        ]
        if unlike:
            at = unlike[0]
            first, again = int(self._first_of[at]), int(self._repeated[at])
            problems.add(
                "Two nodes have the same id.",
                seen=f"id {self._ids.to_arrow()[at].as_py()!r} in {self._where(first)} and in "
                f"{self._where(again)}, with other values; {counted(len(unlike), 'such row')}",
                fix="keep one row per node",
            )

    @property
    def has_repeated(self) -> bool:
        """Whether rows are left out since they repeat a node."""
        return len(self._repeated) > 0

    def notes(self) -> list[str]:
        """Return what was left out."""
        notes = []
        if len(self._empty):
            where = self._where(int(self._empty[0]))
            dropped = counted(len(self._empty), "row")
            notes.append(f"Dropped {dropped} without an id, the first {where}.")
        if len(self._repeated):
            where = self._where(int(self._repeated[0]))
            dropped = counted(len(self._repeated), "row")
            repeat = "repeats" if len(self._repeated) == 1 else "repeat"
            notes.append(
                f"Dropped {dropped} that {repeat} a node word for word, the first {where}."
            )
        return notes


def recounted(targets: Sequence[TargetColumn], y: Array) -> list[TargetColumn]:
    """Return the columns to predict with their counts and gaps in the rows that were kept."""
    counts: list[int] = []
    if y.dtype.kind == "f":
        gaps = np.isnan(y.reshape(len(y), -1)).sum(axis=0).tolist()
    elif y.ndim == 1:
        gaps = [int((y < 0).sum())]
        counts = np.bincount(y[y >= 0], minlength=len(targets[0].classes)).tolist()
    else:
        gaps = [int((y[:, 0] == NO_LABELS).sum())]
        counts = (y == 1).sum(axis=0).tolist()
    return [
        one.model_copy(update={"gaps": gap, "counts": tuple(counts) if one.counts else ()})
        for one, gap in zip(targets, gaps, strict=True)
    ]


def _codes(ids: Ids) -> Array:
    encoded = ids.to_arrow().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
