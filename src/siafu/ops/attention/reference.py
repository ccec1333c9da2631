"""Attentions in plain torch: for machines without Numba or Triton, and odd types.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head, S edges of a
slice. Slices bound the memory at any E x H x D. On CUDA `index_add_` sums in no fixed order.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from siafu.ops.contract import (
    AttentionBlock,
    AttentionGrads,
    Draw,
    EdgeDrop,
    Kind,
    RowGrads,
    Softmax,
    Transposed,
)
from siafu.ops.csr import reference as csr_reference
from siafu.ops.random.reference import draw_words

DTYPES = csr_reference.DTYPES


class Slice(NamedTuple):
    """Some edges: their numbers, and both ends of each."""

    edges: slice
    source_S: Tensor
    row_S: Tensor


class Rule(Protocol):
    """What sets one kind apart."""

    def score(self, block: AttentionBlock, part: Slice) -> Tensor:
        """Return score_SH."""

    def value(self, block: AttentionBlock, part: Slice) -> Tensor:
        """Return value_SHD, a tensor of its own."""

    def spread(
        self,
        block: AttentionBlock,
        part: Slice,
        d_score_SH: Tensor,
        d_value_SHD: Tensor,
        grads: AttentionGrads,
    ) -> None:
        """Hand the gradients of scores and values on to what both are made of."""


class GatRule:
    """See `kinds.Gat`."""

    def score(self, block: AttentionBlock, part: Slice) -> Tensor:
        return functional.leaky_relu(self._sum(block, part), block.factor)

    def value(self, block: AttentionBlock, part: Slice) -> Tensor:
        return block.sources[0].index_select(0, part.source_S)

    def spread(
        self,
        block: AttentionBlock,
        part: Slice,
        d_score_SH: Tensor,
        d_value_SHD: Tensor,
        grads: AttentionGrads,
    ) -> None:
        positive_SH = self._sum(block, part) > 0
        sum_SH = torch.where(positive_SH, d_score_SH, d_score_SH * block.factor)
        grads.sources[0].index_add_(0, part.source_S, d_value_SHD)
        grads.sources[1].index_add_(0, part.source_S, sum_SH)
        grads.rows[0].index_add_(0, part.row_S, sum_SH)
        if grads.edge is not None:
            grads.edge[part.edges] = sum_SH

    def _sum(self, block: AttentionBlock, part: Slice) -> Tensor:
        near_SH = block.sources[1].index_select(0, part.source_S)
        return _with_edge(near_SH + block.rows[0][part.row_S], block, part)


class GatV2Rule:
    """See `kinds.GatV2`."""

    def score(self, block: AttentionBlock, part: Slice) -> Tensor:
        bent_SHD = functional.leaky_relu(self._sum(block, part), block.factor)
        return bent_SHD.mul_(block.shared[0]).sum(dim=2)

    def value(self, block: AttentionBlock, part: Slice) -> Tensor:
        return block.sources[0].index_select(0, part.source_S)

    def spread(
        self,
        block: AttentionBlock,
        part: Slice,
        d_score_SH: Tensor,
        d_value_SHD: Tensor,
        grads: AttentionGrads,
    ) -> None:
        sum_SHD = self._sum(block, part)
        steep_SHD = torch.where(
            sum_SHD > 0, d_score_SH[:, :, None], d_score_SH[:, :, None] * block.factor
        )
        grads.shared[0].add_((sum_SHD * steep_SHD).sum(dim=0))
        grad_SHD = steep_SHD.mul_(block.shared[0])
        grads.sources[0].index_add_(0, part.source_S, grad_SHD + d_value_SHD)
        grads.rows[0].index_add_(0, part.row_S, grad_SHD)
        if grads.edge is not None:
            grads.edge[part.edges] = grad_SHD

    def _sum(self, block: AttentionBlock, part: Slice) -> Tensor:
        near_SHD = block.sources[0].index_select(0, part.source_S)
        return _with_edge(near_SHD + block.rows[0][part.row_S], block, part)


class DotRule:
    """See `kinds.DotProduct`."""

    def score(self, block: AttentionBlock, part: Slice) -> Tensor:
        return (block.rows[0][part.row_S] * self._key(block, part)).sum(dim=2).mul_(block.factor)

    def value(self, block: AttentionBlock, part: Slice) -> Tensor:
        return _with_edge(block.sources[1].index_select(0, part.source_S), block, part)

    def spread(
        self,
        block: AttentionBlock,
        part: Slice,
        d_score_SH: Tensor,
        d_value_SHD: Tensor,
        grads: AttentionGrads,
    ) -> None:
        scaled_SH1 = (d_score_SH * block.factor)[:, :, None]
        key_SHD = scaled_SH1 * block.rows[0][part.row_S]
        grads.sources[0].index_add_(0, part.source_S, key_SHD)
        grads.sources[1].index_add_(0, part.source_S, d_value_SHD)
        grads.rows[0].index_add_(0, part.row_S, scaled_SH1 * self._key(block, part))
        if grads.edge is not None:
            grads.edge[part.edges] = key_SHD + d_value_SHD

    def _key(self, block: AttentionBlock, part: Slice) -> Tensor:
        return _with_edge(block.sources[0].index_select(0, part.source_S), block, part)


RULES: dict[Kind, Rule] = {Kind.GAT: GatRule(), Kind.GATV2: GatV2Rule(), Kind.DOT: DotRule()}


def fold_into(block: AttentionBlock, state: Softmax) -> None:
    """See `contract.AttentionKernels`."""
    rule = RULES[block.kind]
    # The largest scores of all slices come first, so that every exp is of a number below 0.
    top_MH = state.top_MH.clone()
    for part in _slices(block):
        score_SH = rule.score(block, part)
        top_MH.scatter_reduce_(0, part.row_S[:, None].expand_as(score_SH), score_SH, "amax")
    shift_MH = torch.where(top_MH == -torch.inf, 0, top_MH)
    shrink_MH = (state.top_MH - shift_MH).exp_()
    state.weight_MH.mul_(shrink_MH)
    state.total_MHD.mul_(shrink_MH[:, :, None])
    state.top_MH.copy_(top_MH)
    for part in _slices(block):
        weight_SH = (rule.score(block, part) - shift_MH[part.row_S]).exp_()
        state.weight_MH.index_add_(0, part.row_S, weight_SH)
        if block.drop is not None:
            weight_SH *= _keep_factors(block.drop, part, weight_SH)
        message_SHD = rule.value(block, part).mul_(weight_SH[:, :, None])
        state.total_MHD.index_add_(0, part.row_S, message_SHD)


def grad_into(
    block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
) -> None:
    """See `contract.AttentionKernels`."""
    rule = RULES[block.kind]
    for part in _slices(block):
        weight_SH = (rule.score(block, part) - rows.lse_MH[part.row_S]).exp_()
        grad_SHD = rows.grad_MHD[part.row_S]
        dot_SH = (grad_SHD * rule.value(block, part)).sum(dim=2)
        kept_SH = weight_SH
        if block.drop is not None:
            keep_SH = _keep_factors(block.drop, part, weight_SH)
            kept_SH, dot_SH = weight_SH * keep_SH, dot_SH * keep_SH
        d_score_SH = weight_SH * (dot_SH - rows.delta_MH[part.row_S])
        rule.spread(block, part, d_score_SH, grad_SHD.mul_(kept_SH[:, :, None]), grads)


def _with_edge(term: Tensor, block: AttentionBlock, part: Slice) -> Tensor:
    return term if block.edge is None else term + block.edge[part.edges]


def _slices(block: AttentionBlock) -> Iterator[Slice]:
    """Yield edges with a bounded number of gathered elements."""
    step = max(1, csr_reference.SLICE_ELEMENTS // max(1, block.sources[0][0:1].numel()))
    for lo in range(0, len(block.index), step):
        hi = min(lo + step, len(block.index))
        edge_S = torch.arange(lo, hi, device=block.index.device)
        row_S = torch.searchsorted(block.indptr, edge_S, right=True) - 1
        yield Slice(slice(lo, hi), block.index[lo:hi], row_S)


def _keep_factors(drop: EdgeDrop, part: Slice, like_SH: Tensor) -> Tensor:
    """Return 0 for a dropped weight and `scale` for a kept one."""
    ids_S = drop.ids_C.index_select(0, part.source_S), drop.ids_M[part.row_S]
    draw = Draw(drop.key, *ids_S, drop.held)
    words_SH = draw_words(draw, drop.first_head + like_SH.size(1))[:, drop.first_head :]
    kept_SH = words_SH >= drop.threshold
    return kept_SH.to(like_SH.dtype).mul_(drop.scale)
