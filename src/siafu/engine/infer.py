"""Writing predictions and embeddings, keyed by the user's own ids.

Shapes: N owned rows, O classes, D hidden width.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from siafu.engine.networks.network import Network
from siafu.files import replacing
from siafu.graph import MASKS, Array, writing
from siafu.nn import Draws
from siafu.shard import Shard

_ROWS_AT_ONCE = 1 << 17
"""Rows of a table that are in memory together."""


@torch.no_grad()
def write_predictions(
    network: Network, shard: Shard, draws: Draws, target: Path, *, embeddings: bool = False
) -> None:
    """Write one Parquet file per rank into `target`; together they hold each node once."""
    network.module.eval()
    draws.training = False
    logits = network.logit_rows()
    hidden = network.embedding_rows() if embeddings else None
    split_N = _split_codes(shard)

    def table(low: int, high: int) -> pa.Table:
        columns = {"id": _ids(shard, low, high)}
        columns |= prediction_columns(logits.slice(low, high), shard, low)
        columns["split"] = _SPLITS.take(pa.array(split_N[low:high]))
        if hidden is not None:
            columns["embedding"] = as_lists(hidden.slice(low, high))
        return pa.table(columns)

    spans = row_pieces(shard.num_owned)
    write_part((table(low, high) for low, high in spans), target, shard.world.rank)


@torch.no_grad()
def write_embeddings(network: Network, shard: Shard, draws: Draws, target: Path) -> None:
    """Write what `write_predictions` does of a model of edges: each node's row, no classes."""
    network.module.eval()
    draws.training = False
    rows = network.logit_rows()

    def table(low: int, high: int) -> pa.Table:
        columns = {"id": _ids(shard, low, high), "embedding": as_lists(rows.slice(low, high))}
        return pa.table(columns)

    spans = row_pieces(shard.num_owned)
    write_part((table(low, high) for low, high in spans), target, shard.world.rank)


def row_pieces(num_rows: int) -> list[tuple[int, int]]:
    """Return spans of rows that are written together; one at least, of a table without rows."""
    starts = range(0, max(1, num_rows), _ROWS_AT_ONCE)
    return [(low, min(low + _ROWS_AT_ONCE, num_rows)) for low in starts]


def write_part(tables: Iterable[pa.Table], target: Path, rank: int) -> None:
    """Write a rank's rows of a table, piece after piece; the file appears when it is whole."""
    file = target / f"part{rank}.parquet"
    with writing(file):
        target.mkdir(parents=True, exist_ok=True)
        pieces = iter(tables)
        first = next(pieces)
        with replacing(file) as temporary, pq.ParquetWriter(temporary, first.schema) as writer:
            writer.write_table(first)
            for piece in pieces:
                writer.write_table(piece)


_SPLITS = pa.array(["", *MASKS], pa.string())


def _split_codes(shard: Shard) -> Array:
    """Return int8 [N]: which of `_SPLITS` each owned row is in."""
    code_N = np.zeros(shard.num_owned, np.int8)
    for name, rows in shard.masks.items():
        code_N[rows.cpu().numpy()] = 1 + MASKS.index(name)
    return code_N


def _ids(shard: Shard, low: int, high: int) -> pa.Array:
    return shard.ids.take(np.arange(low, high)).to_arrow()


def prediction_columns(logits_NO: Tensor, shard: Shard, low: int = 0) -> dict[str, pa.Array]:
    """Return columns of a prediction table, for rows from `low` on: class, confidence, label."""
    if shard.multi_label:
        said = (logits_NO > 0).cpu().numpy()
        counts = np.concatenate([[0], said.sum(axis=1).cumsum()]).astype(np.int32)
        names = _named(np.nonzero(said)[1], shard)
        columns = {"prediction": pa.ListArray.from_arrays(pa.array(counts), names)}
    else:
        confidence, prediction = logits_NO.softmax(dim=1).max(dim=1)
        columns = {
            "prediction": _named(prediction.cpu().numpy(), shard),
            "confidence": pa.array(confidence.cpu().numpy()),
        }
        if shard.y is not None and shard.y.dim() == 1:
            true = shard.y[low : low + len(logits_NO)]
            columns["label"] = _named(true.cpu().numpy(), shard)
    return columns


def as_lists(rows: Tensor) -> pa.Array:
    """Return a column of rows."""
    rows_ND = rows.float().cpu().numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(rows_ND.reshape(-1)), rows_ND.shape[1])


def _named(classes: Array, shard: Shard) -> pa.Array:
    """Return the classes as the user names them; -1, which is no class, becomes null."""
    if not shard.class_names:
        return pa.array(classes)
    return pa.array(shard.class_names).take(pa.array(classes, mask=classes < 0))
