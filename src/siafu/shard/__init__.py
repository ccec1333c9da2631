"""Where a rank's rows live and how rows of other ranks are reached."""

from siafu.shard.moving import moved_shard
from siafu.shard.nodes import NodeShare
from siafu.shard.objective import Objective
from siafu.shard.readers import (
    FileRows,
    HeldRows,
    PickedRows,
    RowReader,
    ScratchRows,
    WrittenRows,
    new_rows,
)
from siafu.shard.required import require
from siafu.shard.shard import Shard, open_shard, part_bytes

__all__ = [
    "FileRows",
    "HeldRows",
    "NodeShare",
    "Objective",
    "PickedRows",
    "RowReader",
    "ScratchRows",
    "Shard",
    "WrittenRows",
    "moved_shard",
    "new_rows",
    "open_shard",
    "part_bytes",
    "require",
]
