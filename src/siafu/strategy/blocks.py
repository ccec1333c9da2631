"""A rank's edges cut into blocks by where their source rows live, and the stages that fetch them.

The own block needs no rows of others. The peers' blocks are fetched in stages: in round r a rank
reads from the rank r places before it and sends to the one r places after it, so a stage is a group
of rounds, the same on every rank. Where ranks of a host share rows, all of them read from one rank
in a round (`Rounds`), so that they read the same rows in the same stage.

A block of a peer has the rows that its edges end at, where these are few, not all: with a stage for
each of many peers, pointers over all rows would be most of what a rank holds.

Shapes: N owned rows read, M rows written (N of them unless pruned), R halo rows, C = N + R columns,
K columns of a block, Q rows of a block, E edges.
"""

import math
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from siafu.comm import HaloPlan, StageRows, World, stage_plans
from siafu.comm.once import ComputedOnce
from siafu.nn.normalisation import with_self_loops
from siafu.ops import CSR, sum_type
from siafu.ops.csr.matrix import edge_dtype
from siafu.ops.kernels import csr_kernels
from siafu.strategy.rounding import Rounding

_PIECE_ELEMENTS = 1 << 24
"""Numbers that the edges of one piece may bring: 64 MB in float32."""
_PIECES = 4
_SMALLEST_PIECE = 256
"""Rows below which cutting a peer's block further would only add messages."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A matrix whose columns are dealt to blocks, its edges sorted by these; made once for all."""

    whole: CSR
    """M x C."""
    block_C: Tensor
    """int32: the block of each column."""

    @property
    def _keys(self) -> Tensor:
        """The block of each edge."""
        return self.block_C.index_select(0, self.whole.index)

    def rows(self, num_blocks: int) -> tuple[Tensor, Tensor]:
        """Return where the edges of each block begin, and the row of each edge, in that order."""
        kind, whole = edge_dtype(self.whole.num_rows), self.whole
        return csr_kernels(whole.device).transpose(whole.indptr, self._keys, num_blocks, kind)

    @ComputedOnce
    def order_E(self) -> Tensor:
        """int32 or int64: the number of each edge in that order; kept from the first use on."""
        return self.order()

    def order(self) -> Tensor:
        """Return the same, rising inside of a block."""
        whole, kind = self.whole, edge_dtype(self.whole.num_edges + self.whole.num_rows)
        num_blocks = int(self.block_C.max()) + 1 if len(self.block_C) else 1
        kernels = csr_kernels(whole.device)
        return kernels.transpose_order(whole.indptr, self._keys, num_blocks, kind)


@dataclass(frozen=True, eq=False)
class Block:
    """The edges from one group of source rows, whose columns are numbered anew from 0."""

    csr: CSR
    """Q x K."""
    columns_K: Tensor
    """int64: which column of the whole each of these is."""
    whole: CSR
    """The M x C matrix this was cut from."""
    rows_Q: Tensor | None = None
    """int64: which row of the whole each of these is, rising; None: all M of them."""
    cut: Cut | None = None
    """What all blocks share; None where there is one alone."""
    first_edge: int = 0
    """Where its edges begin among those of all blocks."""
    plan: HaloPlan | None = None
    """How its rows are fetched; None for owned rows."""
    loop_columns_M: Tensor | None = None
    """The column of each row itself; None where row i is column i."""
    looped: "Block | None" = None
    """The block that loops were added to, where that was done."""

    @ComputedOnce
    def edges_E(self) -> Tensor:
        """int32 or int64: each edge's number in the whole, rising in a row; E + row for a loop."""
        # int32 while the numbers fit: they are as many as the edges.
        kind = edge_dtype(self.whole.num_edges + self.whole.num_rows)
        if self.looped is not None:
            return self._numbers_with_loops(self.looped).to(kind)
        if self.cut is None:
            return torch.arange(self.csr.num_edges, dtype=kind, device=self.csr.device)
        return self.cut.order_E[self.first_edge : self.first_edge + self.csr.num_edges]

    @ComputedOnce
    def back(self) -> CSR:
        """K x M: the transpose, whose columns are the rows of the whole."""
        if self.rows_Q is None:
            return self.csr.transpose()
        turned = replace(self.csr, _shape_cache={}).transpose()  # kept here alone
        index = self.rows_Q.index_select(0, turned.index).to(turned.index.dtype)
        return CSR(turned.indptr, index, self.whole.num_rows, turned.weight)

    def pick(self, rows_M: Tensor, span: slice = slice(None)) -> Tensor:
        """Return what belongs to some rows of the block: a view, or a copy for `put`."""
        return rows_M[span] if self.rows_Q is None else rows_M.index_select(0, self.rows_Q[span])

    def put(self, rows_M: Tensor, span: slice, changed: Tensor) -> None:
        """Write back what `pick` gave, changed in place."""
        if self.rows_Q is not None:
            rows_M.index_copy_(0, self.rows_Q[span], changed)

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
            csr, numbers_E, at = self.csr, self.edges_E, self.csr.indptr
            self._pieces[most_edges] = [
                (slice(lo, hi), csr.slice_rows(lo, hi), numbers_E[int(at[lo]) : int(at[hi])])
                for lo, hi in csr.row_spans(most_edges)
            ]
        return self._pieces[most_edges]

    @ComputedOnce
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
    num_kept: int = 0
    """Of how many stages, the last ones, rows stay for backward where it needs them."""

    def keeps(self, block: Block) -> bool:
        """Return whether the rows of a block stay for backward; owned rows are there anyway."""
        return block in self.stages[len(self.stages) - self.num_kept :]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The own block, then the stages."""
        return self.own, *self.stages

    def sum_type(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of sums over all blocks; what one kernel sums needs no wider place."""
        return sum_type(dtype) if self.stages else dtype

    def with_weight_type(self, dtype: torch.dtype) -> "Reach":
        """Return the same blocks with weights of `dtype`."""
        own, *stages = (block.with_weight_type(dtype) for block in self.blocks)
        return replace(self, own=own, stages=tuple(stages))

    def recut(self, csr: CSR) -> "Reach":
        """Return the blocks of other edges between the same rows and columns."""
        own, *stages = _blocks(csr, [block.columns_K for block in self.blocks])
        pairs = zip(stages, self.stages, strict=True)
        return replace(self, own=own, stages=tuple(replace(a, plan=b.plan) for a, b in pairs))

    def with_weights(self, weight_E: Tensor | None) -> "Reach":
        """Return the same blocks with other weights, a number per edge of the whole; None is 1."""

        def weighted(block: Block) -> Block:
            weight = None if weight_E is None else weight_E.index_select(0, block.edges_E)
            return replace(block, csr=replace(block.csr, weight=weight))

        return replace(self, own=weighted(self.own), stages=tuple(map(weighted, self.stages)))


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


class Rounds:
    """Who reads from whom in each round; every pair of ranks is in one."""

    def __init__(self, size: int, hosts: tuple[str, ...] = ()) -> None:
        """`hosts` are named where ranks of one share what they read."""
        self.size = size
        names = sorted(set(hosts))
        self._hosts = [[r for r in range(size) if hosts[r] == name] for name in names]
        self._place = {
            rank: (number, place)
            for number, host in enumerate(self._hosts)
            for place, rank in enumerate(host)
        }
        self._most = max((len(host) for host in self._hosts), default=0)

    @property
    def numbers(self) -> range:
        """The rounds there are."""
        return range(1, len(self._hosts) * self._most if self._hosts else self.size)

    def source(self, rank: int, number: int) -> int | None:
        """Return the rank that a rank reads from in a round, if any.

        With hosts, first from those beside it, then all of a host from one rank of another.
        """
        if not self._hosts:
            return (rank - number) % self.size
        distance, turn = divmod(number, self._most)
        host, place = self._place[rank]
        there = self._hosts[(host - distance) % len(self._hosts)]
        if turn >= len(there):
            return None
        return there[turn] if distance else there[(place - turn) % len(there)]

    def receivers(self, rank: int, number: int) -> list[int]:
        """Return the ranks that read from a rank in a round."""
        if not self._hosts:
            return [(rank + number) % self.size]
        return [other for other in range(self.size) if self.source(other, number) == rank]


def build_reach(
    csr: CSR, plan: HaloPlan, world: World, stages: int, ids_R: Tensor | None = None
) -> Reach:
    """Return the blocks of M x C edges; every rank calls this with the same `stages`.

    There are at most `stages` groups of peers, of as equal size as can be; small ones are merged
    and rounds in which nobody reads anything are left out. Where every peer may have a stage of its
    own, large ones are fetched in pieces of a quarter of the owned rows, and small ones together up
    to that size: a rank holds little more than its own rows, in stages that do not grow with the
    ranks. With `ids_R`, numbers of halo rows in the whole graph, ranks of a host share them.
    """
    num_owned = csr.num_cols - plan.num_halo
    table = world.gather_numbers([float(num_owned), *(float(n) for n in plan.recv_counts)])
    rows_read = [[int(count) for count in row[1:]] for row in table]
    rounds = Rounds(world.size, () if ids_R is None else world.hosts)
    smallest = smallest_piece([int(row[0]) for row in table])
    groups = group_rounds(rows_read, stages, smallest, rounds)
    made = [_stage_rows(group, plan, world, rounds) for group in groups]
    columns = [torch.arange(num_owned, device=csr.device)]
    columns += [num_owned + one.read_K for one in made]
    own, *blocks = _blocks(csr, columns)
    pairs = zip(blocks, stage_plans(plan, made, world, ids_R), strict=True)
    return Reach(own, tuple(replace(block, plan=cut) for block, cut in pairs), world)


def smallest_piece(owned: list[int]) -> int:
    """Return how many rows of one peer are fetched at once, where each has its own stage."""
    return max(_SMALLEST_PIECE, math.ceil(max(owned) / _PIECES))


def group_rounds(
    rows_read: list[list[int]], stages: int, piece_rows: int, rounds: Rounds | None = None
) -> list[list[Share]]:
    """Return what is fetched in each stage, such that the largest stage is as small as possible.

    `rows_read[p][q]` is what rank p reads from rank q. Rounds are packed as long as a group stays
    below the largest, so that small ones travel together.
    """
    every = rounds or Rounds(len(rows_read))
    heights = {number: _height(rows_read, every, number) for number in every.numbers}
    used = [number for number, height in heights.items() if height > 0]
    if not used:
        return []
    if stages > 1 and stages >= len(used):
        counts = {r: math.ceil(heights[r] / piece_rows) for r in used}
        shares = [Share(r, n, counts[r]) for r in used for n in range(counts[r])]
        tall = [math.ceil(heights[share.round] / share.of) for share in shares]
        # Small peers share a stage up to that: more stages would cost, and save no memory.
        limit = piece_rows if piece_rows > _SMALLEST_PIECE else 0
        return _pack(shares, tall, max(limit, *tall))
    shares = [Share(r, 0, 1) for r in used]
    tall = [heights[r] for r in used]
    sums = [0, *accumulate(tall)]
    limits = {hi - lo for at, lo in enumerate(sums) for hi in sums[at + 1 :]}
    packed = (_pack(shares, tall, limit) for limit in sorted(limits) if limit >= max(tall))
    return next(groups for groups in packed if len(groups) <= stages)


def _height(rows_read: list[list[int]], rounds: Rounds, number: int) -> int:
    """Return the most rows that a rank reads in a round."""
    found = ((row, rounds.source(rank, number)) for rank, row in enumerate(rows_read))
    return max((row[source] for row, source in found if source is not None), default=0)


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


def _stage_rows(group: list[Share], plan: HaloPlan, world: World, rounds: Rounds) -> StageRows:
    """Return the rows that a stage reads and sends."""
    read: dict[int, list[Share]] = {}
    sent: dict[int, list[Share]] = {}
    for share in group:
        source = rounds.source(world.rank, share.round)
        if source is not None:
            read.setdefault(source, []).append(share)
        for receiver in rounds.receivers(world.rank, share.round):
            sent.setdefault(receiver, []).append(share)
    at = plan.send_rows.device
    return StageRows(*_picked(read, plan.recv_counts, at), *_picked(sent, plan.send_counts, at))


def _picked(
    shares: dict[int, list[Share]], counts: tuple[int, ...], device: torch.device
) -> tuple[Tensor, list[int]]:
    """Return which of the rows that peers have are meant, peer after peer, and how many of each."""
    ends, lengths = list(accumulate(counts, initial=0)), [0] * len(counts)
    pieces = [torch.empty(0, dtype=torch.int64, device=device)]
    for peer in sorted(shares):
        for share in shares[peer]:
            part = share.cut(ends[peer], ends[peer + 1])
            pieces.append(torch.arange(part.start, part.stop, device=device))
            lengths[peer] += part.stop - part.start
    return torch.cat(pieces), lengths


def _blocks(csr: CSR, columns: list[Tensor]) -> list[Block]:
    """Return the edges that start at each group of columns, which are all columns together."""
    if len(columns) == 1:
        return [Block(csr, columns[0], csr)]
    block_C = torch.empty(csr.num_cols, dtype=torch.int32, device=csr.device)
    place_C = torch.empty_like(block_C)
    for number, columns_K in enumerate(columns):
        block_C[columns_K] = number
        place_C[columns_K] = torch.arange(len(columns_K), dtype=torch.int32, device=csr.device)
    cut = Cut(csr, block_C)
    starts, row_E = cut.rows(len(columns))
    order_E = cut.order()
    blocks: list[Block] = []
    for (lo, hi), columns_K in zip(pairwise(starts.tolist()), columns, strict=True):
        edges_E = order_E[lo:hi]
        index = place_C.index_select(0, csr.index.index_select(0, edges_E)).to(csr.index.dtype)
        weight = None if csr.weight is None else csr.weight.index_select(0, edges_E)
        rows_Q, indptr = _rows_of(row_E[lo:hi], csr.num_rows, is_own=not blocks)
        made = CSR(indptr, index, len(columns_K), weight)
        blocks.append(Block(made, columns_K, csr, rows_Q, cut, lo))
    return blocks


def _rows_of(row_E: Tensor, num_rows: int, *, is_own: bool) -> tuple[Tensor | None, Tensor]:
    """Return the rows that edges end at, None where these are most of all, and their pointers."""
    touched, degree = row_E.unique_consecutive(return_counts=True)
    rows_Q = touched.long()
    is_most = is_own or 2 * len(rows_Q) > num_rows
    if is_most:
        degree_M = torch.zeros(num_rows, dtype=torch.int64, device=row_E.device)
        degree = degree_M.index_copy_(0, rows_Q, degree)
    indptr = torch.zeros(len(degree) + 1, dtype=torch.int64, device=row_E.device)
    torch.cumsum(degree, 0, out=indptr[1:])
    return None if is_most else rows_Q, indptr
