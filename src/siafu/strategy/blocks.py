"""A rank's edges cut into blocks by where their source rows live, and the stages that fetch them.

The own block needs no rows of others. The peers' blocks are fetched in stages: in round r a rank
reads from the rank r places before it and sends to the one r places after it, so a stage is a group
of rounds, the same on every rank.

Shapes: N owned rows read, M rows written (N of them unless pruned), R halo rows, C = N + R columns,
K columns of a block, E edges.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from siafu.comm import HaloPlan, World
from siafu.nn.normalisation import with_self_loops
from siafu.ops import CSR
from siafu.strategy.rounding import Rounding

_PIECE_ELEMENTS = 1 << 24
"""Numbers that the edges of one piece may bring: 64 MB in float32."""
_PIECES = 4
_SMALLEST_PIECE = 1024
"""Rows below which cutting a peer's block further would only add messages."""


@dataclass(frozen=True, eq=False)
class Block:
    """The edges from one group of source rows, whose columns are numbered anew from 0."""

    csr: CSR
    """M x K."""
    columns_K: Tensor
    """int64: which column of the whole each of these is."""
    whole: CSR
    """The M x C matrix this was cut from."""
    plan: HaloPlan | None = None
    """How its rows are fetched; None for owned rows."""
    loop_columns_M: Tensor | None = None
    """The column of each row itself; None where row i is column i."""
    looped: "Block | None" = None
    """The block that loops were added to, where that was done."""

    @cached_property
    def places_C(self) -> Tensor:
        """int32: where each column of the whole stands among these; -1 for others."""
        return _places(self.columns_K, self.whole.num_cols)

    @cached_property
    def edges_E(self) -> Tensor:
        """int32 or int64: each edge's number in the whole, rising in a row; E + row for a loop."""
        # int32 while the numbers fit: they are as many as the edges.
        fits = self.whole.num_edges + self.whole.num_rows < 2**31
        kind = torch.int32 if fits else torch.int64
        if self.looped is not None:
            return self._numbers_with_loops(self.looped).to(kind)
        numbers = [torch.empty(0, dtype=kind, device=self.whole.device)]
        for lo, hi in self.whole.row_spans():
            span = _edges_of(self.whole, lo, hi)
            is_here = self.places_C.index_select(0, self.whole.index[span]) >= 0
            numbers.append((is_here.nonzero().squeeze(1) + span.start).to(kind))
        return torch.cat(numbers)

    def _numbers_with_loops(self, before: "Block") -> Tensor:
        _, numbers = with_self_loops(before.csr, self.loop_columns_M)
        if not before.csr.num_edges:
            return numbers + self.whole.num_edges
        known = before.edges_E.index_select(0, numbers.clamp(max=before.csr.num_edges - 1))
        added = numbers - before.csr.num_edges
        return torch.where(added >= 0, added + self.whole.num_edges, known)

    def pieces(self, width: int) -> list[tuple[slice, CSR, Tensor]]:
        """Return spans of rows with their edges and the numbers of these; cut once.

        They are small enough for `width` numbers per edge.
        """
        most_edges = max(1, _PIECE_ELEMENTS // max(1, width))
        most_edges = 1 << (most_edges.bit_length() - 1)  # so that like widths share their pieces
        if most_edges not in self._pieces:
            csr, numbers_E = self.csr, self.edges_E
            self._pieces[most_edges] = [
                (slice(lo, hi), csr.slice_rows(lo, hi), numbers_E[_edges_of(csr, lo, hi)])
                for lo, hi in csr.row_spans(most_edges)
            ]
        return self._pieces[most_edges]

    @cached_property
    def _pieces(self) -> dict[int, list[tuple[slice, CSR, Tensor]]]:
        return {}

    def with_loops(self, columns_M: Tensor | None) -> "Block":
        """Return these edges and one loop a row, weights dropped; `columns_M` as the rows stand."""
        csr, _ = with_self_loops(self.csr, columns_M)
        return replace(self, csr=csr, looped=self, loop_columns_M=columns_M)

    def with_weight_type(self, dtype: torch.dtype) -> "Block":
        """Return the same edges with weights of `dtype`; work done for their shape is shared."""
        if self.csr.weight is None or self.csr.weight.dtype == dtype:
            return self
        return replace(self, csr=self.csr.with_weight(self.csr.weight.to(dtype)))


@dataclass(frozen=True, eq=False)
class Reach:
    """All blocks of a rank, in the order they are walked."""

    own: Block
    stages: tuple[Block, ...]
    world: World
    rounding: Rounding | None = None
    """Rounds what travels; None sends rows as they are."""
    overlap: bool = True
    """Whether owned rows are worked on while others travel."""

    @property
    def blocks(self) -> Iterator[Block]:
        """The own block, then the stages."""
        yield self.own
        yield from self.stages

    def with_weight_type(self, dtype: torch.dtype) -> "Reach":
        """Return the same blocks with weights of `dtype`."""
        stages = tuple(block.with_weight_type(dtype) for block in self.stages)
        return replace(self, own=self.own.with_weight_type(dtype), stages=stages)

    def recut(self, csr: CSR) -> "Reach":
        """Return the blocks of other edges between the same rows and columns."""
        stages = (replace(_cut(csr, block.columns_K), plan=block.plan) for block in self.stages)
        return replace(self, own=_cut(csr, self.own.columns_K), stages=tuple(stages))

    def with_weights(self, weight_E: Tensor | None) -> "Reach":
        """Return the same blocks with other weights, a number per edge of the whole; None is 1."""

        def weighted(block: Block) -> Block:
            weight = None if weight_E is None else weight_E.index_select(0, block.edges_E)
            return replace(block, csr=replace(block.csr, weight=weight))

        stages = tuple(weighted(block) for block in self.stages)
        return replace(self, own=weighted(self.own), stages=stages)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of what is read in one round: piece `number` of `of` equal ones."""

    round: int
    number: int
    of: int

    def cut(self, lo: int, hi: int) -> slice:
        """Return this part of the rows from `lo` to `hi`; both ends of a pair cut alike."""
        count = hi - lo
        return slice(lo + count * self.number // self.of, lo + count * (self.number + 1) // self.of)


def build_reach(csr: CSR, plan: HaloPlan, world: World, stages: int) -> Reach:
    """Return the blocks of M x C edges; every rank calls this with the same `stages`.

    There are at most `stages` groups of peers, of as equal size as can be; small ones are merged
    and rounds in which nobody reads anything are left out. Where every peer has a stage of its own,
    large ones are fetched in pieces of a quarter of the owned rows: a rank then holds little more
    than its own rows, whatever the number of ranks.
    """
    num_owned = csr.num_cols - plan.num_halo
    table = world.gather_numbers([float(num_owned), *(float(n) for n in plan.recv_counts)])
    rows_read = [[int(count) for count in row[1:]] for row in table]
    own = _cut(csr, torch.arange(num_owned, device=csr.device))
    groups = group_rounds(rows_read, stages, smallest_piece([int(row[0]) for row in table]))
    return Reach(own, tuple(_stage(csr, plan, world, group, num_owned) for group in groups), world)


def smallest_piece(owned: list[int]) -> int:
    """Return how many rows of one peer are fetched at once, where each has its own stage."""
    return max(_SMALLEST_PIECE, math.ceil(max(owned) / _PIECES))


def group_rounds(rows_read: list[list[int]], stages: int, piece_rows: int) -> list[list[Share]]:
    """Return what is fetched in each stage, such that the largest stage is as small as possible.

    `rows_read[p][q]` is what rank p reads from rank q. Rounds are packed as long as a group stays
    below the largest, so that small ones travel together.
    """
    size = len(rows_read)
    heights = {r: max(rows_read[p][(p - r) % size] for p in range(size)) for r in range(1, size)}
    rounds = [r for r, height in heights.items() if height > 0]
    if not rounds:
        return []
    if stages > 1 and stages >= len(rounds):
        counts = {r: math.ceil(heights[r] / piece_rows) for r in rounds}
        shares = [Share(r, n, counts[r]) for r in rounds for n in range(counts[r])]
        tall = [math.ceil(heights[share.round] / share.of) for share in shares]
        return _pack(shares, tall, max(tall))
    shares = [Share(r, 0, 1) for r in rounds]
    tall = [heights[r] for r in rounds]
    sums = [0, *accumulate(tall)]
    limits = {hi - lo for at, lo in enumerate(sums) for hi in sums[at + 1 :]}
    packed = (_pack(shares, tall, limit) for limit in sorted(limits) if limit >= max(tall))
    return next(groups for groups in packed if len(groups) <= stages)


def _pack(shares: list[Share], tall: list[int], limit: int) -> list[list[Share]]:
    groups: list[list[Share]] = []
    filled = limit
    for share, height in zip(shares, tall, strict=True):
        if filled + height > limit:
            groups.append([])
            filled = 0
        groups[-1].append(share)
        filled += height
    return groups


def _stage(csr: CSR, plan: HaloPlan, world: World, group: list[Share], num_owned: int) -> Block:
    read = _by_peer(group, [(world.rank - share.round) % world.size for share in group])
    sent = _by_peer(group, [(world.rank + share.round) % world.size for share in group])
    recv_ends = list(accumulate(plan.recv_counts, initial=0))
    send_ends = list(accumulate(plan.send_counts, initial=0))
    columns = {
        peer: [share.cut(recv_ends[peer], recv_ends[peer + 1]) for share in shares]
        for peer, shares in read.items()
    }
    rows = {
        peer: [share.cut(send_ends[peer], send_ends[peer + 1]) for share in shares]
        for peer, shares in sent.items()
    }
    every = torch.arange(num_owned, csr.num_cols, device=csr.device)
    cut_plan = HaloPlan.build(
        _picked(plan.send_rows, rows),
        _lengths(rows, world.size),
        _lengths(columns, world.size),
        num_owned,
    )
    return replace(_cut(csr, _picked(every, columns)), plan=cut_plan)


def _by_peer(group: list[Share], peers: list[int]) -> dict[int, list[Share]]:
    found: dict[int, list[Share]] = {}
    for peer, share in sorted(zip(peers, group, strict=True), key=lambda pair: pair[0]):
        found.setdefault(peer, []).append(share)
    return found


def _picked(values: Tensor, slices: dict[int, list[slice]]) -> Tensor:
    return torch.cat([values[:0], *(values[part] for parts in slices.values() for part in parts)])


def _lengths(slices: dict[int, list[slice]], size: int) -> list[int]:
    return [sum(part.stop - part.start for part in slices.get(peer, [])) for peer in range(size)]


def _cut(csr: CSR, columns_K: Tensor) -> Block:
    """Return the edges that start at these columns."""
    if len(columns_K) == csr.num_cols:
        return Block(csr, columns_K, csr)
    place_C = _places(columns_K, csr.num_cols)
    indptr = torch.zeros_like(csr.indptr)
    index, weight = [csr.index[:0]], []
    # In pieces, so that nothing beside the result is as large as the edges.
    for lo, hi in csr.row_spans():
        bounds = csr.indptr[lo : hi + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        place_E = place_C.index_select(0, csr.index[start:end])
        kept_E = place_E >= 0
        kept_before = torch.zeros(end - start + 1, dtype=torch.int64, device=csr.device)
        torch.cumsum(kept_E, 0, out=kept_before[1:])
        indptr[lo + 1 : hi + 1] = kept_before[bounds[1:] - start] + indptr[lo]
        index.append(place_E[kept_E].to(csr.index.dtype))
        if csr.weight is not None:
            weight.append(csr.weight[start:end][kept_E])
    weight_E = None if csr.weight is None else torch.cat([csr.weight[:0], *weight])
    return Block(CSR(indptr, torch.cat(index), len(columns_K), weight_E), columns_K, csr)


def _places(columns_K: Tensor, num_columns: int) -> Tensor:
    """Return int32 [C]: where each column stands among these; -1 for others."""
    place_C = torch.full((num_columns,), -1, dtype=torch.int32, device=columns_K.device)
    places = torch.arange(len(columns_K), dtype=torch.int32, device=columns_K.device)
    return place_C.index_copy_(0, columns_K, places)


def _edges_of(csr: CSR, lo: int, hi: int) -> slice:
    """Return where the edges of the rows from `lo` to `hi` stand."""
    return slice(int(csr.indptr[lo]), int(csr.indptr[hi]))
