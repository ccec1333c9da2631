"""Ranking true pairs among all pairs of nodes, those that score alike judged once.

Nodes with equal rows are one class: pairs of the same two classes have one score. Pairs that have
a score of their own (they met before), or none (loops), are exceptions to it.

Shapes: K nodes, C classes, R classes of a piece, P true pairs, X exceptions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Pieces = Callable[[], Iterator[tuple[int, Tensor]]]
"""Called twice, yields both times the same: the first class of sources of a piece, its score_RC."""
_ENTRIES_KEPT = 1 << 26
_COMPARED_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Scores of all pairs of K nodes."""

    class_K: Tensor
    """int64: the class of each node; a node that is not among those ranked is in none, -1."""
    pieces: Pieces
    num_classes: int
    source_X: Tensor
    target_X: Tensor
    """Pairs with scores of their own, each once."""
    score_X: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Exceptions:
    """Exceptions of one piece in order of source: the scores before and after."""

    source: Tensor
    plain: Tensor
    own: Tensor


def kept(pieces: Pieces, num_classes: int) -> Pieces:
    """Return the same pieces, made once where there is room for them."""
    if num_classes**2 > _ENTRIES_KEPT:
        return pieces
    made = list(pieces())
    return lambda: iter(made)


def without_loops(scored: Scored) -> Scored:
    """Return the scores without those of nodes with themselves."""
    among = (scored.class_K >= 0).nonzero().squeeze(1)
    others = scored.source_X != scored.target_X
    nothing = scored.score_X.new_full((len(among),), -torch.inf)
    return Scored(
        scored.class_K,
        scored.pieces,
        scored.num_classes,
        torch.cat([scored.source_X[others], among]),
        torch.cat([scored.target_X[others], among]),
        torch.cat([scored.score_X[others], nothing]),
    )


def among(scored: Scored, known: Tensor) -> Scored:
    """Return the scores of the pairs of some nodes alone."""
    is_known_K = torch.zeros_like(scored.class_K, dtype=torch.bool)
    is_known_K[known] = True
    both = is_known_K[scored.source_X] & is_known_K[scored.target_X]
    return Scored(
        torch.where(is_known_K, scored.class_K, -1),
        scored.pieces,
        scored.num_classes,
        scored.source_X[both],
        scored.target_X[both],
        scored.score_X[both],
    )


def rank_true(scored: Scored, source_P: Tensor, target_P: Tensor) -> tuple[float, float]:
    """Return average precision and mean reciprocal rank of the true pairs among all.

    There is one true pair or more, each once. Equal scores are one threshold, and share the rank
    in their middle.
    """
    size_C = torch.bincount(scored.class_K[scored.class_K >= 0], minlength=scored.num_classes)
    scores, inverses, sources = [], [], []
    for low, score_RC in scored.pieces():
        inside = _inside(scored.class_K[source_P], low, score_RC)
        source_p, target_p = source_P[inside], target_P[inside]
        odd = _exceptions(scored, low, score_RC)
        rows_p = scored.class_K[source_p] - low
        true_p = score_RC[rows_p, scored.class_K[target_p]]
        true_p = _own_scores(scored, source_p, target_p, true_p)
        above, equal = _compared(true_p, rows_p, score_RC, size_C)
        more_above, more_equal = _compared_to_exceptions(true_p, source_p, odd)
        above, equal = above + more_above, equal + more_equal
        scores.append(true_p)
        inverses.append(1 / (above + (equal + 1) / 2))
        sources.append(source_p)
    of_source = torch.cat(sources).unique(return_inverse=True)[1]
    count = torch.bincount(of_source).double()
    sums = torch.zeros_like(count).index_add_(0, of_source, torch.cat(inverses))
    rank = float((sums / count).mean())
    return _average_precision(scored, size_C, torch.cat(scores)), rank


def _inside(class_E: Tensor, low: int, score_RC: Tensor) -> Tensor:
    return (class_E >= low) & (class_E < low + len(score_RC))


def _exceptions(scored: Scored, low: int, score_RC: Tensor) -> _Exceptions:
    inside = _inside(scored.class_K[scored.source_X], low, score_RC)
    source, order = scored.source_X[inside].sort(stable=True)
    target = scored.target_X[inside][order]
    plain = score_RC[scored.class_K[source] - low, scored.class_K[target]]
    return _Exceptions(source, plain, scored.score_X[inside][order])


def _own_scores(scored: Scored, source_p: Tensor, target_p: Tensor, plain_p: Tensor) -> Tensor:
    """Return the scores of true pairs: their own, where they have one."""
    num_nodes = len(scored.class_K)
    key_X, order = (scored.source_X * num_nodes + scored.target_X).sort()
    if not len(key_X):
        return plain_p
    key_p = source_p * num_nodes + target_p
    place_p = torch.searchsorted(key_X, key_p).clamp(max=len(key_X) - 1)
    own_p = scored.score_X[order[place_p]].to(plain_p.dtype)
    return torch.where(key_X[place_p] == key_p, own_p, plain_p)


def _compared(
    true_p: Tensor, rows_p: Tensor, score_RC: Tensor, size_C: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how many pairs of its source score above each true pair by class, and as high."""
    above, equal = [], []
    at_once = max(1, _COMPARED_AT_ONCE // len(size_C))
    for true, rows in zip(true_p.split(at_once), rows_p.split(at_once), strict=True):
        score_bC = score_RC[rows]
        above.append((score_bC > true[:, None]).double() @ size_C.double())
        equal.append((score_bC == true[:, None]).double() @ size_C.double())
    return torch.cat(above), torch.cat(equal)


def _compared_to_exceptions(
    true_p: Tensor, source_p: Tensor, odd: _Exceptions
) -> tuple[Tensor, Tensor]:
    """Return what exceptions of its source add to both counts: they count by their own scores."""
    low, high = (torch.searchsorted(odd.source, source_p, right=right) for right in (False, True))
    count = high - low
    pair = torch.arange(len(true_p), device=true_p.device).repeat_interleave(count)
    first = low - (count.cumsum(0) - count)
    place = torch.arange(len(pair), device=true_p.device) + first[pair]
    true, plain, own = true_p[pair], odd.plain[place], odd.own[place]

    def added(own_one: Tensor, plain_one: Tensor) -> Tensor:
        change = own_one.double() - plain_one.double()
        return torch.zeros_like(true_p, dtype=torch.float64).index_add_(0, pair, change)

    return added(own > true, plain > true), added(own == true, plain == true)


def _average_precision(scored: Scored, size_C: Tensor, true_P: Tensor) -> float:
    level_U, gained_U = true_P.unique(return_counts=True)
    counts = torch.zeros(len(level_U) + 1, dtype=torch.float64, device=true_P.device)

    def add(scores: Tensor, weight: Tensor) -> None:
        # How many levels a pair reaches; below all of them there is nothing to gain.
        reached = torch.searchsorted(level_U, scores.flatten(), right=True)
        counts.add_(torch.bincount(reached, weight.flatten().double(), minlength=len(counts)))

    for low, score_RC in scored.pieces():
        size_R = size_C[low : low + len(score_RC)]
        add(score_RC, size_R[:, None] * size_C[None])
        odd = _exceptions(scored, low, score_RC)
        add(odd.plain, -torch.ones_like(odd.plain))
        add(odd.own, torch.ones_like(odd.own))
    above_U = counts[1:].flip(0).cumsum(0)
    hits_U = gained_U.flip(0).cumsum(0).double()
    return float((gained_U.flip(0) * hits_U / above_U).sum() / len(true_P))
