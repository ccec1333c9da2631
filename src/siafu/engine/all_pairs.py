"""Scores of true pairs among all pairs of vertices, which are looked at some sources at a time.

Shapes: K vertices, R of them the sources of a piece, P true pairs.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

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
