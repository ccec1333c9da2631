"""The user's own node ids, integers or text; they come back out in everything that is written."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from siafu.graph.array_stream import Array
from siafu.graph.folder import Folder, FolderWriter


@dataclass(frozen=True, slots=True)
class IntegerIds:
    """Ids that are integers: one int64 a vertex."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Array) -> "IntegerIds":
        """Return the ids of these rows, in this order."""
        return IntegerIds(np.asarray(self.values[rows]))

    def to_arrow(self) -> pa.Array:
        """Return the ids as a column for tables."""
        return pa.array(np.asarray(self.values))

    def save(self, writer: FolderWriter) -> None:
        """Write the ids' arrays into a folder."""
        writer.save("ids", self.values)


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids that are text: UTF-8 bytes end to end, and where each starts."""

    offsets: Array
    utf8: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_arrow(cls, column: pa.Array) -> "TextIds":
        """Return the ids held by a string column without nulls."""
        column = column.cast(pa.large_string())
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        utf8 = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return cls(starts - starts[0], utf8[starts[0] : starts[-1]])

    @classmethod
    def from_strings(cls, texts: list[str]) -> "TextIds":
        """Return the ids held by a list."""
        return cls.from_arrow(pa.array(texts, pa.large_string()))

    def take(self, rows: Array) -> "TextIds":
        """Return the ids of these rows, in this order."""
        return TextIds.from_arrow(self.to_arrow().take(pa.array(np.asarray(rows))))

    def to_arrow(self) -> pa.Array:
        """Return the ids as a column for tables."""
        buffers = [
            None,
            pa.py_buffer(np.asarray(self.offsets)),
            pa.py_buffer(np.asarray(self.utf8)),
        ]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def save(self, writer: FolderWriter) -> None:
        """Write the ids' arrays into a folder."""
        writer.save("ids_offsets", self.offsets)
        writer.save("ids_utf8", self.utf8)


Ids = IntegerIds | TextIds


def load_ids(folder: Folder | FolderWriter) -> Ids:
    """Return the ids kept in a store or a part, or complete in one that is being written."""
    if "ids" in folder:
        return IntegerIds(folder.load("ids"))
    return TextIds(folder.load("ids_offsets"), folder.load("ids_utf8"))
