"""How well true destinations outrank drawn ones: the measures of the Open Graph Benchmark.

Shapes: H edges, K negatives of each, M negatives of all.
"""

import torch
from torch import Tensor

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
