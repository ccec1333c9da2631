"""Scores of a ranking: rows sorted once by how surely they are of a class, whatever is asked.

Shapes: B rows, U different scores.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from siafu.graph import Array


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows from the surest on, and where equal ones end; counts are exact in double precision."""

    score_B: Array
    hits_B: Array
    """How many are of the class, of the rows down to each."""
    ends_U: Array
    """The last row of each different score."""

    @classmethod
    def of(cls, score_B: Tensor, truth_B: Tensor) -> "Ranking":
        """Return the ranking of rows that are of a class or not."""
        if score_B.is_cuda:
            score_B, order_B = score_B.sort(descending=True)
            truth_B = truth_B[order_B]
            sorted_B, true_B = score_B.cpu().numpy(), truth_B.cpu().numpy()
        else:  # numpy: many short steps of several threads wait for each other
            scores_B = score_B.numpy()
            order = np.argsort(scores_B)[::-1]
            sorted_B, true_B = scores_B[order], truth_B.numpy()[order]
        ends_U = np.flatnonzero(np.append(sorted_B[1:] != sorted_B[:-1], True)[: len(sorted_B)])
        return cls(sorted_B, true_B.cumsum(dtype=np.float64), ends_U)

    @property
    def positives(self) -> float:
        """How many rows are of the class."""
        return float(self.hits_B[-1]) if len(self.hits_B) else 0.0

    @property
    def is_mixed(self) -> bool:
        """Whether there are rows that are of the class, and others."""
        return 0 < self.positives < len(self.hits_B)

    def average_precision(self) -> float:
        """Return the area under precision over recall, one point for each different score."""
        if not self.positives:
            return 0.0
        hits_U = self.hits_B[self.ends_U]
        gained_U = np.diff(hits_U, prepend=0)
        return float((gained_U * hits_U / (self.ends_U + 1)).sum() / self.positives)

    def roc_auc(self) -> float:
        """Return the probability that a positive outranks a negative, ties counting half."""
        if not self.is_mixed:
            return 0.0
        hits_U = self.hits_B[self.ends_U]
        misses_U = self.ends_U + 1 - hits_U
        gained_U, missed_U = (np.diff(each, prepend=0) for each in (hits_U, misses_U))
        negatives = len(self.hits_B) - self.positives
        below = float((gained_U * (negatives - misses_U + missed_U / 2)).sum())
        return below / (self.positives * negatives)

    def recall_at(self, k: int) -> float:
        """Return the share of positives among the k highest rows, of equal ones their mean."""
        if not self.positives:
            return 0.0
        k = min(k, len(self.hits_B))
        place = int(np.searchsorted(self.ends_U, k - 1))
        end = int(self.ends_U[place])
        start = int(self.ends_U[place - 1]) + 1 if place else 0
        above = float(self.hits_B[start - 1]) if start else 0.0
        found = above + (k - start) * (float(self.hits_B[end]) - above) / (end + 1 - start)
        return found / self.positives

    def best_f1(self) -> float | None:
        """Return the score from which on F1 is the best, of equal ones the highest; or None.

        It lies midway to the next lower one: no row is decided by the last digit.
        """
        if not self.positives:
            return None
        hits_U = self.hits_B[self.ends_U]
        f1_U = 2 * hits_U / (self.ends_U + 1 + self.positives)
        last = int(self.ends_U[f1_U.argmax()])
        return float(self.score_B[last : last + 2].mean())
