"""Writing predictions and embeddings, keyed by the user's own ids.

Shapes: N owned rows, O classes, D hidden width.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from siafu.engine.network import Network
from siafu.files import replacing
from siafu.graph import Array, writing
from siafu.nn import Draws
from siafu.shard import Shard


@torch.no_grad()
def write_predictions(
    network: Network, shard: Shard, draws: Draws, target: Path, *, embeddings: bool = False
) -> None:
    """Write one Parquet file a rank into `target`; together they hold each vertex once."""
    network.module.eval()
    draws.training = False
    columns = {"id": shard.ids.to_arrow(), **prediction_columns(network.logits(), shard)}
    if embeddings:
        columns["embedding"] = as_lists(network.embeddings())
    write_part(columns, target, shard.world.rank)


@torch.no_grad()
def write_embeddings(network: Network, shard: Shard, draws: Draws, target: Path) -> None:
    """Write what `write_predictions` does of a model of edges: each vertex's row, no classes."""
    network.module.eval()
    draws.training = False
    columns = {"id": shard.ids.to_arrow(), "embedding": as_lists(network.logits())}
    write_part(columns, target, shard.world.rank)


def write_part(columns: dict[str, pa.Array], target: Path, rank: int) -> None:
    """Write a rank's rows of a table at once."""
    file = target / f"part{rank}.parquet"
    with writing(file):
        target.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            pq.write_table(pa.table(columns), temporary)


def prediction_columns(logits_NO: Tensor, shard: Shard) -> dict[str, pa.Array]:
    """Return the columns of a prediction table: class, confidence, label, split."""
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
            columns["label"] = _named(shard.y.cpu().numpy(), shard)
    split = np.full(shard.num_owned, "", dtype="<U5")
    for name, rows in shard.masks.items():
        split[rows.cpu().numpy()] = name
    # Typed, since a part without vertices has no value to tell it by.
    return columns | {"split": pa.array(split.tolist(), pa.string())}


def as_lists(rows: Tensor) -> pa.Array:
    """Return a column of rows."""
    rows_ND = rows.float().cpu().numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(rows_ND.reshape(-1)), rows_ND.shape[1])


def _named(classes: Array, shard: Shard) -> pa.Array:
    """Return the classes as the user names them; -1, which is no class, becomes null."""
    if not shard.class_names:
        return pa.array(classes)
    return pa.array(shard.class_names).take(pa.array(classes, mask=classes < 0))
