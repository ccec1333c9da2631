"""Scores of a static graph: of classes, and of edges ranked against drawn ones.

Shapes: N owned rows, O classes; H edges, K negatives of each, M negatives of all.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from siafu.comm import World
from siafu.errors import ConfigError
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
    count = max(1, shard.mask_totals[mask])
    if shard.multi_label:
        target = target.to(picked.dtype)
        total = functional.binary_cross_entropy_with_logits(picked, target, reduction="sum")
        return total / (count * shard.num_classes)
    return functional.cross_entropy(picked, target, reduction="sum") / count


def scores(logits: RowReader, shard: Shard, metric: str) -> dict[str, float]:
    """Return the score of each mask, in [0, 1]: accuracy, micro-F1 (multi-label) or ROC AUC."""
    if metric == "roc-auc":
        return {name: _roc_auc(logits, shard, name) for name in shard.masks}
    assert metric == "accuracy", f"nobody computes {metric}"
    local = [count for name in shard.masks for count in _counts(logits, shard, name)]
    table = torch.tensor(shard.world.gather_numbers(local, "metric")).sum(dim=0).tolist()
    pairs = zip(table[0::2], table[1::2], strict=True)
    return {
        name: good / of if of else 0.0 for name, (good, of) in zip(shard.masks, pairs, strict=True)
    }


def _counts(logits: RowReader, shard: Shard, mask: str) -> tuple[float, float]:
    """Return numerator and denominator: correct of all, or 2 TP of 2 TP + FP + FN."""
    assert shard.y is not None
    good = of = 0.0
    for rows in _pieces(logits, shard.masks[mask]):
        picked, true = logits.read(rows), shard.y[rows]
        if shard.multi_label:
            said, true = picked > 0, true > 0
            good += 2.0 * float((said & true).sum())
            of += float(said.sum() + true.sum())
        else:
            good += float((picked.argmax(dim=1) == true).sum())
            of += float(rows.numel())
    return good, of


def _roc_auc(logits: RowReader, shard: Shard, mask: str) -> float:
    """Return the probability that a positive outranks a negative, ties counting half."""
    if shard.num_classes != 2 or shard.multi_label:
        raise ConfigError(
            "ROC AUC needs two classes.",
            seen=f"{shard.num_classes} classes",
            fix="--metric accuracy",
        )
    assert shard.y is not None
    rows = shard.masks[mask]
    picked = logits.read(rows)
    margin = (picked[:, 1] - picked[:, 0]).double()
    table = gather_rows(torch.stack([margin, shard.y[rows].double()], dim=1), shard.world)
    _, place, counts = table[:, 0].unique(return_inverse=True, return_counts=True)
    middle_rank = counts.cumsum(0) - (counts - 1) / 2.0
    positive = table[:, 1] == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return 0.0
    rank_sum = float(middle_rank[place][positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


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
