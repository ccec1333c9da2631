"""Softmax over the edges of a row that arrive in blocks: state, dropout, and the end of it.

    m' = max(m, score);  c = exp(m - m')
    total = c total + sum of exp(score - m') value;  weight = c weight + sum of exp(score - m')

Nothing of edge size is kept: backward needs the output and one log-sum-exp for each row and head,
and computes each weight again as exp(score - lse). In float32 that weight is as exact as lse, whose
rounding grows with the scores: about 1e-3 of the weight at scores of 1e4.

Shapes: M destination rows, C source columns of a block, H heads, D width of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.errors import ConfigError, PlanError
from siafu.ops.contract import EdgeDrop, Softmax, sum_type
from siafu.ops.csr.reference import SLICE_ELEMENTS
from siafu.ops.random.draws import DrawKey, HeldKey


@dataclass(frozen=True, slots=True)
class EdgeDraw:
    """Dropping attention weights by draws keyed with the global ids of an edge's two ends.

    The draws are those of `dropout_pairs`, a column for each head. Edges that share both ends share
    their draws. The normalising sum stays whole, as in GAT.
    """

    key: DrawKey | HeldKey
    p: float
    ids_C: Tensor
    """int64: the global id of each source column."""

    ids_M: Tensor
    """int64: the global id of each destination row."""

    first_head: int = 0
    """Which column of draws is the first head's, where the heads are a slice of all."""

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ConfigError(
                "The dropout rate is out of range.", seen=f"p={self.p}", fix="use 0 <= p < 1"
            )

    def flat(self) -> EdgeDrop:
        """Return what kernels need to know."""
        held = self.key.words[1:] if isinstance(self.key, HeldKey) else None
        key = (0, 0) if isinstance(self.key, HeldKey) else self.key.pair_words()
        flat = flat_drop(key, self.p, self.ids_C, self.ids_M)
        return flat._replace(first_head=self.first_head, held=held)


def flat_drop(key: tuple[int, int], p: float, ids_C: Tensor, ids_M: Tensor) -> EdgeDrop:
    """Return the threshold and scale that `dropout_pairs` uses, with contiguous ids."""
    return EdgeDrop(key, round(p * 2**32), 1 / (1 - p), ids_C.contiguous(), ids_M.contiguous())


def op_arguments(drop: EdgeDraw | None) -> tuple[int, int, float, Tensor | None, Tensor | None]:
    """Return (key0, key1, p, ids_C, ids_M) as an op's schema takes them."""
    if drop is None or drop.p == 0:
        return 0, 0, 0.0, None, None
    assert drop.first_head == 0, "slices of heads are worked on by `fold_into`"
    assert isinstance(drop.key, DrawKey), "recorded steps are worked on by `fold_into`"
    return *drop.key.pair_words(), drop.p, drop.ids_C, drop.ids_M


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxState:
    """What each row and head has gathered from the blocks so far; updated in place."""

    top_MH: Tensor
    """The largest score; -infinity before the first."""

    weight_MH: Tensor
    """The sum of exp(score - top)."""

    total_MHD: Tensor
    """The sum of exp(score - top) * value."""

    @classmethod
    def empty(cls, num_rows: int, heads: int, width: int, like: Tensor) -> "SoftmaxState":
        """Return the state before any edge, for rows of the type and on the device of `like`."""
        kind = sum_type(like.dtype)
        return cls(
            like.new_full((num_rows, heads), -torch.inf, dtype=kind),
            like.new_zeros(num_rows, heads, dtype=kind),
            like.new_zeros(num_rows, heads, width, dtype=kind),
        )

    def of(self, span: slice) -> "SoftmaxState":
        """Return the state of some rows, updated with the whole."""
        return SoftmaxState(self.top_MH[span], self.weight_MH[span], self.total_MHD[span])

    def flat(self) -> Softmax:
        """Return the same tensors as kernels take them."""
        state = Softmax(self.top_MH, self.weight_MH, self.total_MHD)
        if not all(t.is_contiguous() for t in state):
            raise PlanError(
                "A softmax state is updated in place and must have no gaps.",
                seen=f"strides {[t.stride() for t in state]}",
                fix="use SoftmaxState.empty",
            )
        return state


def finish(state: SoftmaxState) -> tuple[Tensor, Tensor]:
    """Return (out_MHD, lse_MH); rows without edges, or with scores of -infinity alone, give 0.

    The state is used up: its tensors become the result.
    """
    empty_MH = state.weight_MH == 0
    weight_MH = state.weight_MH.masked_fill_(empty_MH, 1)
    out_MHD = state.total_MHD.div_(weight_MH[:, :, None])
    lse_MH = state.top_MH.add_(weight_MH.log_()).masked_fill_(empty_MH, 0)
    return out_MHD, lse_MH


def delta_of(grad_MHD: Tensor, out_MHD: Tensor) -> Tensor:
    """Return delta_MH, the sum over D of grad * out: what backward subtracts from every product.

    Rows are taken a slice at a time: the products stay in a cache, and are never all there.
    """
    kind = sum_type(out_MHD.dtype)
    delta_MH = out_MHD.new_empty(out_MHD.shape[:2], dtype=kind)
    step = max(1, SLICE_ELEMENTS // max(1, out_MHD[0:1].numel()))
    for lo in range(0, len(out_MHD), step):
        rows = slice(lo, lo + step)
        torch.sum(grad_MHD[rows].to(kind) * out_MHD[rows], dim=2, out=delta_MH[rows])
    return delta_MH
