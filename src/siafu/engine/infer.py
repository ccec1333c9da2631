"""Writing predictions and embeddings, keyed by the user's own ids.

Shapes: N owned rows, O classes, D hidden width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from siafu.comm import World
from siafu.engine.metrics import said_of
from siafu.engine.networks.network import Network
from siafu.engine.networks.sampled import SampledNetwork
from siafu.files import replacing
from siafu.graph import MASKS, Array, writing
from siafu.graph.columns import known_rows
from siafu.minibatch import Keeper
from siafu.nn import Draws
from siafu.shard import Objective, Shard

_ROWS_AT_ONCE = 1 << 17
"""Rows of a table that are in memory together."""
_MOST_COLUMNS = 1000


class Targets(NamedTuple):
    """What is told of each row, and how the user names it."""

    num_classes: int
    """0 where numbers are told."""
    several: bool
    names: tuple[str | int, ...]
    """Of the classes, or the numbers."""


def node_targets(shard: Shard) -> Targets:
    """Return what is told of nodes."""
    names = shard.target_names if shard.num_targets else shard.class_names
    classes = 0 if shard.num_targets else shard.num_classes
    return Targets(classes, shard.multi_label, tuple(names))


@contextmanager
def keeping_passes(network: object, folder: Path, world: World) -> Iterator[None]:
    """Have a pass over all nodes that is cut short inside be gone on with by the next process.

    At the end what is kept goes; after a failure or a kill it stays in `folder`.
    """
    keeper = Keeper(folder / f"rank{world.rank}of{world.size}")
    nodes = getattr(network, "nodes", network)  # of a model of edges
    if isinstance(nodes, SampledNetwork):
        nodes.keeper = keeper
    yield
    keeper.discard()


@torch.no_grad()
def write_predictions(
    network: Network, shard: Shard, draws: Draws, target: Path, *, embeddings: bool = False
) -> None:
    """Write one Parquet file per rank into `target`; together they hold each node once.

    Where no node is in a split, as in most new data, there is no such column.
    """
    network.module.eval()
    draws.training = False
    # In this order one pass over the layers may give both.
    hidden = network.embedding_rows() if embeddings else None
    logits = network.logit_rows()
    split_N = _split_codes(shard)
    targets = node_targets(shard)

    def table(low: int, high: int) -> pa.Table:
        columns = {"id": _ids(shard, low, high)}
        y = None if shard.y is None else shard.y[low:high]
        columns |= prediction_columns(logits.slice(low, high), shard.objective, targets, y)
        if any(shard.mask_totals.values()):
            columns["split"] = SPLIT_NAMES.take(pa.array(split_N[low:high]))
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


SPLIT_NAMES = pa.array(["", *MASKS], pa.string())


def _split_codes(shard: Shard) -> Array:
    """Return int8 [N]: which of `SPLIT_NAMES` each owned row is in."""
    code_N = np.zeros(shard.num_owned, np.int8)
    for name, rows in shard.masks.items():
        code_N[rows.cpu().numpy()] = 1 + MASKS.index(name)
    return code_N


def _ids(shard: Shard, low: int, high: int) -> pa.Array:
    return shard.ids.take(np.arange(low, high)).to_arrow()


def prediction_columns(
    out_NO: Tensor, objective: Objective, targets: Targets, y: Tensor | None
) -> dict[str, pa.Array]:
    """Return columns of a prediction table: what is told, how surely, and what is true."""
    if not targets.num_classes:
        return _number_columns(objective.in_units(out_NO), targets.names, y)
    several = targets.several
    said = said_of(out_NO, objective, several=several).cpu().numpy()
    share_NC = out_NO.sigmoid() if several else out_NO.softmax(dim=1)
    columns = {"prediction": _told(said, targets)}
    if not several:
        sure = share_NC.gather(1, torch.from_numpy(said).to(share_NC.device)[:, None])[:, 0]
        columns["confidence"] = pa.array(sure.cpu().numpy())
    if y is not None and not y.is_floating_point() and (y.dim() == 2) == several:
        columns["label"] = _told(y.cpu().numpy(), targets)
    return columns | _share_columns(share_NC, targets)


def _share_columns(share_NC: Tensor, targets: Targets) -> dict[str, pa.Array]:
    """Return a column of probabilities for each class; one of lists where they are too many."""
    if targets.num_classes > _MOST_COLUMNS:
        return {"p": as_lists(share_NC)}
    names = targets.names or tuple(range(targets.num_classes))
    shares = share_NC.float().cpu().numpy()
    return {
        f"p({name})": pa.array(np.ascontiguousarray(shares[:, k])) for k, name in enumerate(names)
    }


def _number_columns(
    told_NT: Tensor, names: tuple[str | int, ...], y: Tensor | None
) -> dict[str, pa.Array]:
    """Return the numbers that are told, and the true ones where they are known."""
    said, columns = told_NT.float().cpu().numpy(), {}
    true = y.cpu().numpy() if y is not None and y.is_floating_point() else None
    for k in range(said.shape[1]):
        end = "" if said.shape[1] == 1 else f"({names[k] if names else k})"
        columns[f"prediction{end}"] = pa.array(np.ascontiguousarray(said[:, k]))
        if true is not None:
            label = np.ascontiguousarray(true[:, k])
            columns[f"label{end}"] = pa.array(label, mask=np.isnan(label))
    return columns


def as_lists(rows: Tensor) -> pa.Array:
    """Return a column of rows."""
    rows_ND = rows.float().cpu().numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(rows_ND.reshape(-1)), rows_ND.shape[1])


def _told(said: Array, targets: Targets) -> pa.Array:
    """Return classes, or lists of them, as the user names them."""
    if said.ndim == 1:
        return _named(said, targets.names)
    holds, unknown = said == 1, ~known_rows(said)
    counts = np.concatenate([[0], holds.sum(axis=1).cumsum()]).astype(np.int32)
    names = _named(np.nonzero(holds)[1], targets.names)
    return pa.ListArray.from_arrays(pa.array(counts), names, mask=pa.array(unknown))


def _named(classes: Array, names: tuple[str | int, ...]) -> pa.Array:
    """Return the classes as the user names them; -1, which is no class, becomes null."""
    if not names:
        return pa.array(classes)
    return pa.array(names).take(pa.array(classes, mask=classes < 0))
