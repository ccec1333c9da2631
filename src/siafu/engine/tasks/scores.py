"""Scores of links and classes over time, from counts that add up over ranks.

Shapes: C classes, E pairs; K nodes, R of them the sources of a piece, P true pairs; n nodes
of this rank, E pairs, D embedding width, O answers.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from siafu.engine.ranking import Ranking
from siafu.nn import PairHead
from siafu.shard import VertexShare


def confusion(truth_E: Tensor, said_E: Tensor, num_classes: int) -> Tensor:
    """Return count_CC: how often class c (row) was called d (column)."""
    cells = truth_E * num_classes + said_E
    return torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)


def f1_by_class(count_CC: Tensor) -> Tensor:
    """Return f1_C = 2 TP / (2 TP + FP + FN); 0 for a class that neither occurs nor is said."""
    right_C = count_CC.diagonal().double()
    return 2 * right_C / (count_CC.sum(0) + count_CC.sum(1)).clamp(min=1)


def average_precision(score_E: Tensor, truth_E: Tensor) -> float:
    """Return the area under precision over recall, one point for each different score."""
    return Ranking.of(score_E, truth_E).average_precision()


def mean_reciprocal_rank(source_E: Tensor, score_E: Tensor, truth_E: Tensor) -> float:
    """Return the mean over sources of the mean of 1 / rank of their true pairs.

    A pair is ranked among all pairs of its source; equal scores share the rank in their middle.
    """
    order_E = score_E.argsort(descending=True)
    order_E = order_E[source_E[order_E].argsort(stable=True)]
    source, score, truth = source_E[order_E], score_E[order_E], truth_E[order_E].bool()
    if not bool(truth.any()):
        return 0.0
    place = torch.arange(len(source), device=source.device, dtype=torch.float64)
    starts = torch.ones_like(truth)
    starts[1:] = source[1:] != source[:-1]
    first = place[starts][starts.long().cumsum(0) - 1]
    runs = starts.clone()
    runs[1:] |= score[1:] != score[:-1]
    number = runs.long().cumsum(0) - 1
    length = torch.bincount(number).double()
    rank = (place[runs] + (length - 1) / 2)[number] - first + 1
    _, row = source[truth].unique(return_inverse=True)
    counts = torch.bincount(row).double()
    sums = torch.zeros_like(counts).index_add_(0, row, 1 / rank[truth])
    return float((sums / counts).mean())


Pieces = Callable[[], Iterator[tuple[int, Tensor]]]
"""Called twice, yields both times the same: the first source of a piece, and its score_RK."""


def score_among_all(pieces: Pieces, source_P: Tensor, target_P: Tensor) -> tuple[float, float]:
    """Return average precision and mean reciprocal rank as if all pairs were there at once.

    True pairs are in order of source, and there is at least one; pairs that do not count are -inf.
    """
    scores, of_source = [], []
    for lo, score_RK in pieces():
        inside = (source_P >= lo) & (source_P < lo + len(score_RK))
        for source in source_P[inside].unique():
            row_K = score_RK[source - lo]
            mine = row_K[target_P[source_P == source]]
            scores.append(mine)
            of_source.append((1 / _ranks(row_K, mine)).mean())
    return _average_precision(pieces, torch.cat(scores)), float(torch.stack(of_source).mean())


def _ranks(row_K: Tensor, true_p: Tensor) -> Tensor:
    """Return the ranks of some scores of a row; equal ones share the rank in their middle."""
    sorted_K = row_K.sort().values
    low, high = (torch.searchsorted(sorted_K, true_p, right=right) for right in (False, True))
    return len(row_K) - high + (high - low + 1).double() / 2


def _average_precision(pieces: Pieces, true_P: Tensor) -> float:
    level_U, gained_U = true_P.unique(return_counts=True)
    counts = torch.zeros(len(level_U) + 1, dtype=torch.int64, device=true_P.device)
    for _, score_RK in pieces():
        # How many levels a pair reaches; below all of them there is nothing to gain.
        reached = torch.searchsorted(level_U, score_RK.flatten(), right=True)
        counts += torch.bincount(reached, minlength=len(counts))
    above_U, hits_U = (n.flip(0).cumsum(0).double() for n in (counts[1:], gained_U))
    return float((gained_U.flip(0) * hits_U / above_U).sum() / len(true_P))


def judge(
    head: nn.Module, share: VertexShare, rows_nD: Tensor, source_E: Tensor, target_E: Tensor
) -> Tensor:
    """Return out_EO of pairs whose sources are this rank's; all ranks of a snapshot call it.

    Targets are mapped where their rows are, so that no row travels wider than the head needs.
    """
    assert isinstance(head, PairHead)
    source_EH = head.source(rows_nD).index_select(0, share.rows(source_E))
    return head.joined(source_EH + share.fetch(head.target(rows_nD), target_E))
