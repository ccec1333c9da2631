"""GAT's attention in plain torch: for machines without Numba or Triton, and odd types.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, S edges of a
slice. Slices bound the memory at any E x H x D. On CUDA `index_add_` sums in no fixed order.
"""

import torch
from torch import Tensor
from torch.nn import functional

from siafu.ops.attention_torch import edge_slices, fold_top, keep_factors, shift_of
from siafu.ops.contract import GatBlock, GatGrads, RowGrads, Softmax, Turned
from siafu.ops.csr_torch import DTYPES

__all__ = ["DTYPES", "attend_grad_into", "attend_into"]


def attend_into(block: GatBlock, state: Softmax) -> None:
    """See `contract.GatKernels`."""
    top_MH = state.top_MH.clone()
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.z_CHD):
        score_SH = _score(block, lo, hi, row_S)
        top_MH.scatter_reduce_(0, row_S[:, None].expand_as(score_SH), score_SH, "amax")
    fold_top(state, top_MH)
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.z_CHD):
        weight_SH = (_score(block, lo, hi, row_S) - shift_of(top_MH)[row_S]).exp_()
        state.weight_MH.index_add_(0, row_S, weight_SH)
        if block.drop is not None:
            weight_SH *= keep_factors(block.drop, block.index[lo:hi], row_S, weight_SH)
        message_SHD = block.z_CHD.index_select(0, block.index[lo:hi])
        message_SHD *= weight_SH[:, :, None]
        state.total_MHD.index_add_(0, row_S, message_SHD)


def attend_grad_into(block: GatBlock, back: Turned, rows: RowGrads, grads: GatGrads) -> None:
    """See `contract.GatKernels`."""
    grads.z_CHD.zero_()
    grads.left_CH.zero_()
    for lo, hi, row_S in edge_slices(block.indptr, block.index, block.z_CHD):
        index_S = block.index[lo:hi]
        sum_SH = _sum(block, lo, hi, row_S)
        score_SH = functional.leaky_relu(sum_SH, block.slope)
        weight_SH = (score_SH - rows.lse_MH[row_S]).exp_()
        grad_SHD = rows.grad_MHD[row_S]
        dot_SH = (grad_SHD * block.z_CHD.index_select(0, index_S)).sum(dim=2)
        kept_SH = weight_SH
        if block.drop is not None:
            keep_SH = keep_factors(block.drop, index_S, row_S, weight_SH)
            kept_SH, dot_SH = weight_SH * keep_SH, dot_SH * keep_SH
        grads.z_CHD.index_add_(0, index_S, grad_SHD.mul_(kept_SH[:, :, None]))
        score_grad_SH = weight_SH * (dot_SH - rows.delta_MH[row_S])
        sum_grad_SH = torch.where(sum_SH > 0, score_grad_SH, score_grad_SH * block.slope)
        grads.left_CH.index_add_(0, index_S, sum_grad_SH)
        grads.right_MH.index_add_(0, row_S, sum_grad_SH)
        if grads.bias_EH is not None:
            grads.bias_EH[lo:hi] = sum_grad_SH


def _score(block: GatBlock, lo: int, hi: int, row_S: Tensor) -> Tensor:
    return functional.leaky_relu(_sum(block, lo, hi, row_S), block.slope)


def _sum(block: GatBlock, lo: int, hi: int, row_S: Tensor) -> Tensor:
    sum_SH = block.left_CH.index_select(0, block.index[lo:hi]) + block.right_MH[row_S]
    return sum_SH if block.bias_EH is None else sum_SH + block.bias_EH[lo:hi]
