"""Scores of answers about dynamic graphs.

Shapes: C classes, E pairs.
"""

import torch
from torch import Tensor


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
    score_E, order_E = score_E.sort(descending=True)
    hits_E = truth_E[order_E].double().cumsum(0)
    total = float(hits_E[-1]) if len(hits_E) else 0.0
    if not total:
        return 0.0
    ends = torch.ones_like(score_E, dtype=torch.bool)
    ends[:-1] = score_E[1:] != score_E[:-1]
    places = ends.nonzero().squeeze(1)
    hits = hits_E[places]
    gained = hits.diff(prepend=hits.new_zeros(1))
    return float((gained * hits / (places + 1)).sum() / total)


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
