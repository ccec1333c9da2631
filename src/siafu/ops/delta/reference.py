"""Delta kernels in plain torch, for machines without Numba or Triton."""

import torch
from torch import Tensor

from siafu.ops.contract import Changes, SortedEdges


def changes(now: SortedEdges, following: SortedEdges, num_cols: int) -> Changes:
    """See `contract.DeltaKernels`."""
    old, new = _keys(now, num_cols), _keys(following, num_cols)
    at = torch.searchsorted(new, old)
    nearest = at.clamp(max=max(len(new) - 1, 0))
    stays = new[nearest] == old if len(new) else torch.zeros_like(old, dtype=torch.bool)
    born = torch.ones(len(new), dtype=torch.bool, device=new.device)
    born[at[stays]] = False
    born_at = born.nonzero()[:, 0]
    changed_at = born_at[:0]
    if now[2] is not None and following[2] is not None:
        kept = at[stays]
        changed_at = kept[now[2][stays] != following[2][kept]]
    dst = torch.div(new[born_at], num_cols, rounding_mode="floor")
    return Changes(born_at.int(), dst.int(), at[~stays].int(), changed_at.int())


def move(
    indptr: Tensor,
    columns: tuple[Tensor, ...],
    fresh: tuple[Tensor, ...],
    delta: Changes,
    num_after: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `contract.DeltaKernels`."""
    starts = next_indptr(indptr, delta)
    if len(columns[0]) == 0:
        return starts, tuple(values.clone() for values in fresh)
    born_at, _, gone_at, _ = delta
    # One step a place; a new edge takes none of the old ones, a gone edge is stepped over.
    step = torch.ones(num_after + 1, dtype=torch.int32, device=born_at.device)
    step[:1] = 0
    one = torch.ones((), dtype=torch.int32, device=born_at.device)
    step.index_add_(0, born_at, one.expand(len(born_at)), alpha=-1)
    step.index_add_(0, gone_at, one.expand(len(gone_at)))
    place = born_at.long()
    source = step.cumsum(0, dtype=torch.int32)[:-1]
    source.index_fill_(0, place, 0)
    moved = (values.index_select(0, source) for values in columns)
    pairs = zip(moved, fresh, strict=True)
    return starts, tuple(values.index_copy_(0, place, new) for values, new in pairs)


def next_indptr(indptr: Tensor, delta: Changes) -> Tensor:
    """Return the row starts after a delta: rows grow by the born and shrink by the gone."""
    growth = torch.zeros_like(indptr)
    gone = len(delta.gone_at)
    order = torch.arange(gone, dtype=torch.int32, device=indptr.device)
    # Of the next matrix's edges before a gone one, those not born now stood before it as well.
    born_before = torch.searchsorted(delta.born_at, delta.gone_at, out_int32=True)
    stood_at = (delta.gone_at - born_before + order).long()
    row = torch.searchsorted(indptr[1:], stood_at, right=True)
    one = torch.ones((), dtype=indptr.dtype, device=indptr.device)
    growth.index_add_(0, delta.born_dst + 1, one.expand(len(delta.born_dst)))
    growth.index_add_(0, row + 1, one.expand(gone), alpha=-1)
    return indptr + growth.cumsum(0)


def _keys(edges: SortedEdges, num_cols: int) -> Tensor:
    indptr, index, _ = edges
    rows = torch.arange(len(indptr) - 1, device=index.device)
    return rows.repeat_interleave(indptr.diff(), output_size=len(index)) * num_cols + index
