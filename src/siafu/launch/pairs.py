"""The user's own pairs of nodes, numbered for the ranks that score them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from siafu.config import RunConfig
from siafu.errors import ConfigError, DataError
from siafu.graph import Array, IntegerIds
from siafu.ingest.tables.files import Table, table_files
from siafu.ingest.tables.ids import IdKind, id_column, index_ids, with_types
from siafu.partitioning import open_parts

_ROWS_AT_ONCE = 1 << 20


def save_pairs(
    pairs: Any, config: RunConfig, parts: Path, scratch: Path, *, embeddings: bool = False
) -> str:
    """Write int64 [P, 2], the numbers of both ends, for the ranks; return where.

    `pairs` is a table, as a file or a frame, with columns src and dst or those of the run's edges.
    """
    if config.task not in ("link", "edge"):
        raise ConfigError(
            "The run tells nothing of pairs of nodes.",
            seen=f"pairs for a run with --task {config.task or 'node'}",
            fix="train with --task link or --task edge",
        )
    if embeddings:
        raise ConfigError(
            "Pairs have scores, and nodes have embeddings.",
            seen="--embeddings with --pairs",
            fix="ask for one at a time",
        )
    file = scratch / "pairs.npy"
    np.save(file, _numbered(_as_path(pairs, scratch), config, parts))
    return str(file.absolute())


def _as_path(pairs: Any, scratch: Path) -> Path:
    if isinstance(pairs, str | Path):
        return Path(pairs)
    table = pairs if isinstance(pairs, pa.Table) else pa.table(pairs)
    pq.write_table(table, scratch / "pairs.parquet")
    return scratch / "pairs.parquet"


def _numbered(path: Path, config: RunConfig, parts: Path) -> Array:
    table = Table("table of pairs", table_files(path, "table of pairs"))
    there = table.schema().names
    columns = {
        side: side if side in there else getattr(config, side) or side for side in ("src", "dst")
    }
    table.check_columns(
        {name: f"--{side}" for side, name in columns.items()}, "call its columns src and dst ({})"
    )
    ids = open_parts(parts).ids
    kind: IdKind = "integer" if isinstance(ids, IntegerIds) else "text"
    names, rows = list(columns.values()), index_ids(ids)
    table = with_types(table, ids=names, kind=kind, numbers=(), is_asked=False)
    found: list[Array] = [np.empty((0, 2), np.int64)]
    for piece in table.pieces(names, rows=_ROWS_AT_ONCE):
        ends = []
        for name in names:
            row = rows.find(id_column(piece, name, kind))
            unknown = np.flatnonzero(row < 0)
            if len(unknown):
                first = int(unknown[0])
                more = f", and {len(unknown) - 1:,} more there" if len(unknown) > 1 else ""
                raise DataError(
                    "A pair names a node that is not in the graph.",
                    seen=f"{piece.column(name)[first].as_py()!r} in column {name!r}, "
                    f"{piece.where(first)}{more}",
                    fix="leave such pairs out, or infer on a graph that has the node: --data",
                )
            ends.append(row.astype(np.int64))
        found.append(np.stack(ends, axis=1))
    return np.concatenate(found)
