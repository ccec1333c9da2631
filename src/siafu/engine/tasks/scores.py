"""Scores of links and classes over time, from counts that add up over ranks.

Shapes: C classes, E pairs; n nodes of this rank, D embedding width, O answers, P numbers known of
a pair.
"""

import torch
from torch import Tensor, nn

from siafu.engine.ranking import Ranking
from siafu.nn import PairHead
from siafu.shard import NodeShare


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


def judge(
    head: nn.Module,
    share: NodeShare,
    rows_nD: Tensor,
    source_E: Tensor,
    target_E: Tensor,
    known_EP: Tensor | None = None,
) -> Tensor:
    """Return out_EO of pairs whose sources are this rank's; all ranks of a snapshot call it.

    Targets are mapped where their rows are, so that no row travels wider than the head needs.
    """
    assert isinstance(head, PairHead)
    source_EH = head.source(rows_nD).index_select(0, share.rows(source_E))
    return head.joined(source_EH + share.fetch(head.target(rows_nD), target_E), known_EP)
