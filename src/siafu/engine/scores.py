"""Losses of nodes of a static graph, and scores of edges ranked against drawn ones.

Shapes: N owned rows, O classes; H edges, K negatives of each, M negatives of all.
"""

import math

import torch
from torch import Tensor

from siafu.comm import World
from siafu.nn.losses import total_loss
from siafu.shard import HeldRows, RowReader, Shard

_ROWS_AT_ONCE = 1 << 16


def training_loss(picked: Tensor, shard: Shard) -> Tensor:
    """Return this rank's share of the mean loss over the training nodes of all ranks.

    `picked` has a row of logits for each owned training node.
    """
    return _share_of_loss(picked, shard, "train")


def validation_loss(logits: RowReader, shard: Shard) -> float:
    """Return the mean loss over the validation nodes of all ranks."""
    pieces = _pieces(logits, shard.val)
    shares = [float(_share_of_loss(logits.read(rows), shard, "val", rows)) for rows in pieces]
    table = shard.world.gather_numbers([math.fsum(shares)], "metric")
    return math.fsum(row[0] for row in table)


def _pieces(logits: RowReader, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the row numbers, some at a time where their logits are not in memory."""
    return (rows,) if isinstance(logits, HeldRows) else rows.split(_ROWS_AT_ONCE)


def _share_of_loss(picked: Tensor, shard: Shard, mask: str, rows: Tensor | None = None) -> Tensor:
    assert shard.y is not None
    target = shard.y[shard.masks[mask] if rows is None else rows]
    objective = shard.objective
    total = total_loss(
        picked, objective.prepared(target), objective.loss, objective.weight_C(picked)
    )
    return total / (max(1, shard.mask_totals[mask]) * objective.per_row)


def gather_rows(rows: Tensor, world: World) -> Tensor:
    """Return the rows of all ranks, one rank after another, on every rank."""
    counts = [int(row[0]) for row in world.gather_numbers([float(len(rows))], "metric")]
    table = rows.new_zeros(sum(counts), rows.size(1))
    start = sum(counts[: world.rank])
    table[start : start + len(rows)] = rows
    # Rows of minibatches lie on the host, sums are made on the device.
    return world.sum_in_place(table.to(world.device), "metric").to(rows.device)


HITS = (1, 3, 10)


def doubled_ranks(positive_H: Tensor, negative_HK: Tensor) -> Tensor:
    """Return int64 [H]: twice the rank of each edge among its own negatives.

    A rank is 1, and 1 for each negative that scores higher, and a half for each that scores the
    same: the mean of the best and the worst place among equals.
    """
    higher_H = (negative_HK > positive_H[:, None]).sum(dim=1)
    not_lower_H = (~(negative_HK < positive_H[:, None])).sum(dim=1)
    return 2 + higher_H + not_lower_H


def ranking_scores(counts: list[int]) -> dict[str, float]:
    """Return mrr and hits@k from how many edges have each doubled rank.

    Counts of ranks add up over ranks of a run without rounding.
    """
    total = max(1, sum(counts))
    found = {"mrr": sum(2 * count / max(1, at) for at, count in enumerate(counts)) / total}
    return found | {f"hits@{k}": sum(counts[: 2 * k + 1]) / total for k in HITS}


def mrr_error(counts: list[int]) -> float:
    """Return one standard error of mrr, as if the edges were drawn anew."""
    total = max(1, sum(counts))
    gains = [(2 / max(1, at), count) for at, count in enumerate(counts)]
    mean = sum(gain * count for gain, count in gains) / total
    return math.sqrt(sum(count * (gain - mean) ** 2 for gain, count in gains)) / total


def highest(scores_M: Tensor, k: int) -> Tensor:
    """Return the k highest, or all where there are fewer."""
    return scores_M.topk(min(k, len(scores_M))).values


def shared_hits(positive_H: Tensor, highest_negatives: Tensor, k: int) -> int:
    """Return how many edges score above the k-th highest negative of all; all without as many."""
    if len(highest_negatives) < k:
        return len(positive_H)
    return int((positive_H > highest(highest_negatives, k)[-1]).sum())


def histogram(doubled_H: Tensor, num_negatives: int) -> Tensor:
    """Return how many edges have each doubled rank, from 0 to the worst."""
    return torch.bincount(doubled_H, minlength=2 * num_negatives + 3)
