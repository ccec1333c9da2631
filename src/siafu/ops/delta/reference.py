"""Delta kernels in plain torch: for CUDA, and for machines without Numba.

`move` on CUDA waits for nothing: every size is known on the host beforehand.
"""

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
    columns: tuple[Tensor, ...],
    fresh: tuple[Tensor, ...],
    born_at: Tensor,
    gone_at: Tensor,
    num_after: int,
) -> tuple[Tensor, ...]:
    """See `contract.DeltaKernels`."""
    num_before = len(columns[0])
    if num_before == 0:
        return tuple(values.clone() for values in fresh)
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
    return tuple(values.index_copy_(0, place, new) for values, new in pairs)


def _keys(edges: SortedEdges, num_cols: int) -> Tensor:
    indptr, index, _ = edges
    rows = torch.arange(len(indptr) - 1, device=index.device)
    return rows.repeat_interleave(indptr.diff(), output_size=len(index)) * num_cols + index
