"""Delta kernels in plain torch, for machines without Numba or Triton."""

import torch
from torch import Tensor

from siafu.ops.delta.contract import Changes, Slid, SortedEdges


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


def slide(
    window: Slid, joins: SortedEdges, oldest: SortedEdges | None, keep: int, now: int
) -> Slid:
    """See `contract.DeltaKernels`."""
    num_rows = len(window.indptr) - 1
    # Columns may be more than rows; any number above all of them tells rows apart.
    parts = [part for part in (window.columns, joins[1]) if len(part)]
    base = 1 + max((int(part.max()) for part in parts), default=0)
    stays = window.last >= keep
    old = _keys((window.indptr, window.columns, None), base)[stays]
    new = _keys(joins, base)
    keys = torch.cat([old, new]).unique()
    last = torch.full((len(keys),), now, dtype=window.last.dtype)
    last[torch.searchsorted(keys, old)] = window.last[stays]
    last[torch.searchsorted(keys, new)] = now
    counts = torch.bincount(torch.div(keys, base, rounding_mode="floor"), minlength=num_rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    columns = []
    for edges in (joins, oldest):
        column = torch.zeros(len(keys), dtype=torch.float32)
        if edges is not None:
            weight = edges[2]
            assert weight is not None, "snapshots of a window have weights"
            column[torch.searchsorted(keys, _keys(edges, base))] = weight
        columns.append(column)
    return Slid(indptr, (keys % base).to(window.columns.dtype), last, *columns)


def add_normalised(
    edges: SortedEdges, root_N: Tensor, sums_K: Tensor, sign: int, steps: int
) -> tuple[Tensor, Tensor | None]:
    """See `contract.DeltaKernels`."""
    indptr, index, weight = edges
    assert weight is not None, "snapshots of a window have weights"
    rows = torch.arange(len(indptr) - 1, device=index.device)
    rows = rows.repeat_interleave(indptr.diff(), output_size=len(index))
    value = weight.double() * (root_N[rows] * root_N.index_select(0, index))
    sums = torch.add(sums_K, value.float().double(), alpha=sign)
    if not steps:
        return sums, None
    # By a tensor: CUDA multiplies by the inverse of a number, which rounds twice.
    return sums, (sums / torch.full((), steps, dtype=sums.dtype, device=sums.device)).float()


def _keys(edges: SortedEdges, num_cols: int) -> Tensor:
    indptr, index, _ = edges
    rows = torch.arange(len(indptr) - 1, device=index.device)
    return rows.repeat_interleave(indptr.diff(), output_size=len(index)) * num_cols + index
