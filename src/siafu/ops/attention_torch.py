"""What attentions in plain torch share: slices of edges, the running maximum, dropped weights.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, S edges of a
slice.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu.ops import csr_torch
from siafu.ops.contract import Draw, EdgeDrop, Softmax
from siafu.ops.random_torch import draw_words


def edge_slices(
    indptr: Tensor, index: Tensor, like_CHD: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (first edge, last edge + 1, row of each) with a bounded number of gathered elements."""
    step = max(1, csr_torch.SLICE_ELEMENTS // max(1, like_CHD[0:1].numel()))
    for lo in range(0, len(index), step):
        hi = min(lo + step, len(index))
        edge_S = torch.arange(lo, hi, device=index.device)
        yield lo, hi, torch.searchsorted(indptr, edge_S, right=True) - 1


def shift_of(top_MH: Tensor) -> Tensor:
    """Return what scores are lowered by: the maximum, or 0 while every score was -infinity."""
    return torch.where(top_MH == -torch.inf, 0, top_MH)


def fold_top(state: Softmax, top_MH: Tensor) -> None:
    """Raise the state's maximum to `top_MH`, scaling down what was summed under the old one."""
    shrink_MH = (state.top_MH - shift_of(top_MH)).exp_()
    state.weight_MH.mul_(shrink_MH)
    state.total_MHD.mul_(shrink_MH[:, :, None])
    state.top_MH.copy_(top_MH)


def keep_factors(drop: EdgeDrop, index_S: Tensor, row_S: Tensor, like_SH: Tensor) -> Tensor:
    """Return 0 for a dropped weight and `scale` for a kept one."""
    draw = Draw(drop.key, drop.ids_C.index_select(0, index_S), drop.ids_M[row_S])
    kept_SH = draw_words(draw, like_SH.size(1)) >= drop.threshold
    return kept_SH.to(like_SH.dtype).mul_(drop.scale)
