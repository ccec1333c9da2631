"""Dot-product attention in plain torch: for machines without Numba, CUDA, and odd types.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, S edges of a
slice. Slices bound the memory at any E x H x D. On CUDA `index_add_` sums in no fixed order.
"""

from torch import Tensor

from siafu.ops.attention_torch import edge_slices, fold_top, keep_factors, shift_of
from siafu.ops.contract import DotBlock, DotGrads, RowGrads, Softmax, Turned
from siafu.ops.csr_torch import DTYPES

__all__ = ["DTYPES", "attend_grad_into", "attend_into"]


def attend_into(block: DotBlock, state: Softmax) -> None:
    """See `contract.DotKernels`."""
    top_MH = state.top_MH.clone()
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.value_CHD):
        score_SH = _score(block, lo, hi, row_S)
        top_MH.scatter_reduce_(0, row_S[:, None].expand_as(score_SH), score_SH, "amax")
    fold_top(state, top_MH)
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.value_CHD):
        weight_SH = (_score(block, lo, hi, row_S) - shift_of(top_MH)[row_S]).exp_()
        state.weight_MH.index_add_(0, row_S, weight_SH)
        if block.drop is not None:
            weight_SH *= keep_factors(block.drop, block.index[lo:hi], row_S, weight_SH)
        message_SHD = block.value_CHD.index_select(0, block.index[lo:hi])
        message_SHD *= weight_SH[:, :, None]
        state.total_MHD.index_add_(0, row_S, message_SHD)


def attend_grad_into(block: DotBlock, back: Turned, rows: RowGrads, grads: DotGrads) -> None:
    """See `contract.DotKernels`."""
    grads.key_CHD.zero_()
    grads.value_CHD.zero_()
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.value_CHD):
        index_S = block.index[lo:hi]
        weight_SH = (_score(block, lo, hi, row_S) - rows.lse_MH[row_S]).exp_()
        grad_SHD = rows.grad_MHD[row_S]
        dot_SH = (grad_SHD * block.value_CHD.index_select(0, index_S)).sum(dim=2)
        kept_SH = weight_SH
        if block.drop is not None:
            keep_SH = keep_factors(block.drop, index_S, row_S, weight_SH)
            kept_SH, dot_SH = weight_SH * keep_SH, dot_SH * keep_SH
        grads.value_CHD.index_add_(0, index_S, grad_SHD.mul_(kept_SH[:, :, None]))
        score_grad_SH = weight_SH * (dot_SH - rows.delta_MH[row_S])
        scaled_SH1 = (score_grad_SH * block.scale)[:, :, None]
        grads.key_CHD.index_add_(0, index_S, scaled_SH1 * block.query_MHD[row_S])
        key_SHD = block.key_CHD.index_select(0, index_S)
        grads.query_MHD.index_add_(0, row_S, scaled_SH1 * key_SHD)
        if grads.bias_EH is not None:
            grads.bias_EH[lo:hi] = score_grad_SH


def _score(block: DotBlock, lo: int, hi: int, row_S: Tensor) -> Tensor:
    key_SHD = block.key_CHD.index_select(0, block.index[lo:hi])
    score_SH = (block.query_MHD[row_S] * key_SHD).sum(dim=2).mul_(block.scale)
    return score_SH if block.bias_EH is None else score_SH + block.bias_EH[lo:hi]
