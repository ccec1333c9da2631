"""Deltas between sorted matrices of edges: found on the host, applied wherever the matrix lies.

A delta names places, not keys: where new edges stand in the next matrix, and how many edges of
the next matrix come before each edge that goes. Applying one is a copy with shifts; nothing is
searched or sorted, and nothing makes the device wait for the host.

Shapes: N rows and columns, E edges before, K edges after, A born, R gone, C with another weight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.csr.matrix import CSR, INT32_MAX
from siafu.ops.delta.contract import Changes
from siafu.ops.kernels import delta_kernels

_MOST_PLACES = INT32_MAX - 4096
"""Kernels look a tile further."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeDelta:
    """What leads from one matrix, its rows sorted by column and without repeats, to the next."""

    num_before: int
    num_after: int
    born_at: Tensor
    """int32 [A], rising: where new edges stand among the K of the next matrix."""
    born_dst: Tensor
    """int32 [A]: their rows."""
    born_src: Tensor
    """int32 or int64 [A]: their columns."""
    gone_at: Tensor
    """int32 [R], never falling: how many of the K come before each edge that goes."""
    changed_at: Tensor
    """int32 [C], rising: places among the K of edges that stay with another weight."""
    weight: Tensor | None = None
    """[A + C]: weights of the new, then of the changed; [K] where `rewrites`; None without any."""
    rewrites: bool = False
    """Whether `weight` holds every edge's weight, because most have changed."""


def edge_delta(now: CSR, following: CSR) -> EdgeDelta:
    """Return the delta from one matrix to the other; both lie on the CPU."""
    _check_pair(now, following)
    kernels = delta_kernels(now.device)
    found = kernels.changes(
        (now.indptr, now.index, now.weight),
        (following.indptr, following.index, following.weight),
        now.num_cols,
    )
    changed_at, rewrites, weight = found.changed_at, False, None
    if following.weight is not None:
        # A place and a weight for each change, or the weights of all edges without places.
        rewrites = 2 * (len(found.born_at) + len(changed_at)) > following.num_edges
        places = torch.cat([found.born_at, changed_at]).long()
        weight = following.weight if rewrites else following.weight[places]
        changed_at = changed_at[:0] if rewrites else changed_at
    return EdgeDelta(
        num_before=now.num_edges,
        num_after=following.num_edges,
        born_at=found.born_at,
        born_dst=found.born_dst,
        born_src=following.index[found.born_at.long()],
        gone_at=found.gone_at,
        changed_at=changed_at,
        weight=weight,
        rewrites=rewrites,
    )


def _check_pair(now: CSR, following: CSR) -> None:
    alike = now.num_rows == following.num_rows and now.num_cols == following.num_cols
    alike = alike and (now.weight is None) == (following.weight is None)
    if not alike:
        raise PlanError(
            "A delta is between matrices of one shape, both with weights or both without.",
            seen=f"{now.num_rows} x {now.num_cols} and {following.num_rows} x {following.num_cols}",
            fix="use snapshots of one dynamic graph",
        )
    if max(now.num_edges, following.num_edges, now.num_rows) > _MOST_PLACES:
        raise PlanError(
            "A snapshot is too large for deltas with 32-bit places.",
            seen=f"{max(now.num_edges, following.num_edges):,} edges, {now.num_rows:,} rows",
            fix="cut the nodes into parts first",
        )


def apply_delta(csr: CSR, delta: EdgeDelta) -> CSR:
    """Return the next matrix on the device both lie on; `csr` stays as it was."""
    if csr.num_edges != delta.num_before:
        raise PlanError(
            "The delta belongs to another snapshot.",
            seen=f"{csr.num_edges} edges, the delta was made from {delta.num_before}",
            fix="apply deltas in the order of time",
        )
    born, weight = len(delta.born_at), delta.weight
    columns: tuple[Tensor, ...] = (csr.index,)
    fresh: tuple[Tensor, ...] = (delta.born_src,)
    if csr.weight is not None and not delta.rewrites:
        assert weight is not None, "a matrix with weights has deltas with weights"
        columns, fresh = (*columns, csr.weight), (*fresh, weight[:born])
    places = Changes(delta.born_at, delta.born_dst, delta.gone_at, delta.changed_at)
    move = delta_kernels(csr.device).move
    indptr, (index, *moved) = move(csr.indptr, columns, fresh, places, delta.num_after)
    if moved:
        assert weight is not None, "as above"
        weight = moved[0].index_copy_(0, delta.changed_at.long(), weight[born:])
    return CSR(indptr, index, csr.num_cols, weight)


def apply_delta_reference(csr: CSR, delta: EdgeDelta) -> CSR:
    """The definition, one edge at a time. Slow; used by tests alone."""
    rows, columns = csr.rows().tolist(), csr.index.tolist()
    weights = [1.0] * len(columns) if csr.weight is None else csr.weight.tolist()
    edges = list(zip(rows, columns, weights, strict=True))
    born_at, gone_at = delta.born_at.tolist(), delta.gone_at.tolist()
    # The next matrix is written place by place; a gone edge is skipped when its turn comes.
    following: list[tuple[int, int, float]] = []
    at, gone = 0, 0
    for place in range(delta.num_after):
        while gone < len(gone_at) and gone_at[gone] <= place:
            at, gone = at + 1, gone + 1
        if place in born_at:
            n = born_at.index(place)
            following.append((int(delta.born_dst[n]), int(delta.born_src[n]), 1.0))
        else:
            following.append(edges[at])
            at += 1
    places = [*born_at, *delta.changed_at.tolist()]
    if delta.weight is not None:
        for place, weight in zip(
            range(delta.num_after) if delta.rewrites else places, delta.weight.tolist(), strict=True
        ):
            following[place] = (*following[place][:2], weight)
    counts = torch.bincount(
        torch.tensor([row for row, _, _ in following], dtype=torch.int64), minlength=csr.num_rows
    )
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    index = torch.tensor([column for _, column, _ in following], dtype=csr.index.dtype)
    if csr.weight is None:
        return CSR(indptr, index, csr.num_cols)
    weight = torch.tensor([weight for _, _, weight in following], dtype=csr.weight.dtype)
    return CSR(indptr, index, csr.num_cols, weight)
