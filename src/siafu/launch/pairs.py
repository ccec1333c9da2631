"""The user's own pairs of nodes, numbered for the ranks that score them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from siafu.config import RunConfig
from siafu.engine.pairs import FEATURES_OF_PAIRS
from siafu.errors import ConfigError, DataError
from siafu.graph import Array, IntegerIds, Schema
from siafu.ingest.tables.choosing import choose_features
from siafu.ingest.tables.features import place_categories, read_block
from siafu.ingest.tables.files import Table, table_files
from siafu.ingest.tables.ids import IdKind, id_column, index_ids, with_types
from siafu.ingest.tables.problems import Problems
from siafu.launch.columns import kinds_of
from siafu.partitioning import open_parts
from siafu.partitioning.preparing import Preparation
from siafu.record import Say, counted

_ROWS_AT_ONCE = 1 << 20


def save_pairs(
    pairs: Any,
    config: RunConfig,
    parts: Path,
    scratch: Path,
    *,
    learnt: Schema,
    say: Say,
    embeddings: bool = False,
) -> str:
    """Write int64 [P, 2], the numbers of both ends, for the ranks; return where.

    `pairs` is a table, as a file or a frame, with columns src and dst or those of the run's edges,
    and with those that a model of edges reads, which are prepared as in training: `learnt`.
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
    table = Table("table of pairs", table_files(_as_path(pairs, scratch), "table of pairs"))
    ends = _columns_of_ends(table, config, learnt)
    np.save(file, _numbered(table, ends, parts))
    if config.task == "edge" and learnt.edges:
        np.save(file.with_name(FEATURES_OF_PAIRS), _features(table, ends, learnt, say))
    return str(file.absolute())


def _as_path(pairs: Any, scratch: Path) -> Path:
    if isinstance(pairs, str | Path):
        return Path(pairs)
    table = pairs if isinstance(pairs, pa.Table) else pa.table(pairs)
    pq.write_table(table, scratch / "pairs.parquet")
    return scratch / "pairs.parquet"


def _columns_of_ends(table: Table, config: RunConfig, learnt: Schema) -> list[str]:
    there = table.schema().names
    own = {side: getattr(config, side) or learnt.ids.get(side, side) for side in ("src", "dst")}
    columns = own if set(own.values()) <= set(there) else {side: side for side in own}
    table.check_columns(
        {name: f"--{side}" for side, name in columns.items()}, "call its columns src and dst ({})"
    )
    return list(columns.values())


def _features(table: Table, ends: list[str], learnt: Schema, say: Say) -> Array:
    """Return float32 [P, K]: the features of the pairs, found by name, prepared as in training."""
    problems = Problems()
    chosen = choose_features(table, problems, taken=ends, asked=None, known=kinds_of(learnt.edges))
    problems.raise_any()
    raw = np.empty((0, 0), np.float32)
    if chosen.readers:
        pieces = chosen.typed(table).pieces(chosen.names, rows=_ROWS_AT_ONCE)
        raw = np.concatenate([read_block(piece, chosen.readers) for piece in pieces])
        place_categories(raw, chosen.readers)
    given = [column for reader in chosen.readers for column in reader.columns()]
    where = f"the table of pairs ({table.files[0].name})"
    preparation = Preparation(learnt.edges, given, len(raw), where)
    for name, count in preparation.count_unseen([raw]).items():
        say(f"Column {name!r}: {counted(count, 'row')} with a category that training never saw.")
    return preparation.apply(raw)


def _numbered(table: Table, names: list[str], parts: Path) -> Array:
    ids = open_parts(parts).ids
    kind: IdKind = "integer" if isinstance(ids, IntegerIds) else "text"
    rows = index_ids(ids)
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
