"""Where an interval's gathers read, and the rows they find there, stamped with their epoch.

A `Side` is one direction of the edges: in-edges for forward, out-edges for backward. A *group* is
the nodes of one interval of one rank, as far as they are columns here. Rows of a group arrive
together, so a group has one stamp.

A `Channel` is what one layer sends in one direction. One thread writes and reads, so no row is ever
seen half written. Where several epochs are in flight, each has a view of its own: for every group
the newest rows that are not newer than it.

Shapes: N owned rows, R halo rows, C = N + R columns, E edges, D columns of a row, G groups.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from siafu.comm import HaloPlan, World, exchange_halo, start_exchange
from siafu.graph import Array
from siafu.ops import CSR


@dataclass(frozen=True, eq=False)
class Side:
    """One direction: which columns each owned row reads, and which rows go to whom."""

    csr: CSR
    """N x C."""
    plan: HaloPlan
    bounds: tuple[int, ...]
    """The first owned row of each interval, then N."""
    sends: dict[tuple[int, int], Tensor]
    """(peer, interval): the owned rows that go there, where there are any."""
    places: dict[int, slice]
    """Group: its columns, where it has any."""
    needs: list[Array]
    """Interval: the groups it reads."""
    group_rows: Array
    """[G] columns of each group."""

    @property
    def num_intervals(self) -> int:
        """As many on every rank; some may be empty."""
        return len(self.bounds) - 1

    def rows(self, interval: int) -> slice:
        """Return the owned rows of an interval."""
        return slice(self.bounds[interval], self.bounds[interval + 1])

    def edges(self, interval: int) -> CSR:
        """Return the rows of the matrix that belong to an interval."""
        return self.csr.slice_rows(self.bounds[interval], self.bounds[interval + 1])

    def extended(self, values_N: Tensor, world: World) -> Tensor:
        """Return values_C: of owned rows and of halo rows. Every rank calls this together."""
        return torch.cat([values_N, exchange_halo(values_N, self.plan, world)])


def even_bounds(num_rows: int, intervals: int) -> tuple[int, ...]:
    """Return the bounds of intervals of equal rows, as far as they divide."""
    return tuple(number * num_rows // intervals for number in range(intervals + 1))


def build_side(csr: CSR, plan: HaloPlan, bounds: tuple[int, ...], world: World) -> Side:
    """Return a side; every rank calls this together."""
    intervals, rank = len(bounds) - 1, world.rank
    sends: dict[tuple[int, int], Tensor] = {}
    counts = np.zeros((world.size, intervals))
    for peer, rows in enumerate(plan.rows_by_peer()):
        assert bool((rows.diff() > 0).all()), "rows go in the order of the owned rows"
        cuts = torch.searchsorted(rows, torch.tensor(bounds)).tolist()
        for interval, (lo, hi) in enumerate(pairwise(cuts)):
            counts[peer, interval] = hi - lo
            if hi > lo:
                sends[peer, interval] = rows[lo:hi]
    table = np.array(world.gather_numbers(counts.flatten().tolist()))
    coming = table.reshape(world.size, world.size, intervals)[:, rank].astype(np.int64)
    own = enumerate(pairwise(bounds), start=rank * intervals)
    places = {group: slice(lo, hi) for group, (lo, hi) in own if hi > lo}
    ends = accumulate(coming.flatten().tolist(), initial=csr.num_rows)
    for group, (lo, hi) in enumerate(pairwise(ends)):
        if hi > lo:
            places[group] = slice(lo, hi)
    group_of_C = np.zeros(csr.num_cols, dtype=np.int64)
    group_rows = np.zeros(world.size * intervals, dtype=np.int64)
    for group, place in places.items():
        group_of_C[place] = group
        group_rows[group] = place.stop - place.start
    index = csr.index.numpy()
    cuts = csr.indptr[torch.tensor(bounds)].tolist()
    needs = [np.unique(group_of_C[index[lo:hi]]) for lo, hi in pairwise(cuts)]
    return Side(csr, plan, bounds, sends, places, needs, group_rows)


def transpose_side(side: Side, world: World) -> Side:
    """Return the side of the same edges read from their sources. Every rank calls this together.

    A rank knows the in-edges of its rows; it tells the owners of their sources.
    """
    csr, num_owned = side.csr, side.csr.num_rows
    rows_E, cols_E = csr.rows(), csr.index.long()
    starts = list(accumulate(side.plan.recv_counts, initial=num_owned))
    send_rows, edges, weights = [], [], []
    for lo, hi in pairwise(starts):
        mine = ((cols_E >= lo) & (cols_E < hi)).nonzero().squeeze(1)
        ends, place = torch.unique(rows_E[mine], return_inverse=True)
        send_rows.append(ends)
        edges.append(torch.stack([cols_E[mine] - lo, place], dim=1))
        weights.append(mine)
    counts = [float(len(pairs)) for pairs in edges] + [float(len(ends)) for ends in send_rows]
    table = world.gather_numbers(counts)
    sent = tuple(len(pairs) for pairs in edges)
    received = tuple(int(row[world.rank]) for row in table)
    recv_rows = [int(row[world.size + world.rank]) for row in table]
    pairs_E2 = _exchanged(torch.cat(edges), sent, received, world)
    sources, targets = [cols_E[cols_E < num_owned]], [rows_E[cols_E < num_owned]]
    halo_starts = accumulate(recv_rows, initial=num_owned)
    by_peer = zip(pairs_E2.split(list(received)), halo_starts, strict=False)
    for peer, (pairs, start) in enumerate(by_peer):
        sources.append(side.plan.rows_by_peer()[peer][pairs[:, 0]])
        targets.append(pairs[:, 1] + start)
    weight = None
    if csr.weight is not None:
        far = _exchanged(csr.weight[torch.cat(weights)].unsqueeze(1), sent, received, world)
        weight = torch.cat([csr.weight[cols_E < num_owned], far.squeeze(1)])
    transposed = _csr(torch.cat(sources), torch.cat(targets), weight, num_owned, sum(recv_rows))
    plan = HaloPlan.build(
        torch.cat(send_rows), [len(ends) for ends in send_rows], recv_rows, num_owned
    )
    return build_side(transposed, plan, side.bounds, world)


def _exchanged(
    rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...], world: World
) -> Tensor:
    return start_exchange(rows, sent, received, world, "control").wait(world, "transposing edges")


def _csr(rows_E: Tensor, cols_E: Tensor, weight_E: Tensor | None, owned: int, halo: int) -> CSR:
    order = torch.argsort(rows_E * (owned + halo) + cols_E, stable=True)
    indptr = torch.zeros(owned + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(rows_E, minlength=owned).cumsum(0)
    weight = None if weight_E is None else weight_E[order].contiguous()
    return CSR(indptr, cols_E[order].int(), owned + halo, weight)


@dataclass(eq=False, slots=True)
class RowsView:
    """The rows as one epoch sees them."""

    epoch: int
    rows: tuple[Tensor, ...]
    """Each [C, D]."""
    stamps_G: Array
    """The epoch of each group's rows; 0 before the first."""


class Channel:
    """What one layer sends in one direction."""

    def __init__(
        self, side: Side, widths: list[int], dtype: torch.dtype, *, in_flight: int
    ) -> None:
        """`in_flight` is the most epochs that are worked on at once."""
        self.side, self.widths = side, widths
        self._dtype, self._in_flight = dtype, in_flight
        self._views: list[RowsView] = []

    def view(self, epoch: int, oldest: int) -> RowsView:
        """Return the rows as `epoch` sees them; views before `oldest` are no longer read."""
        for view in self._views:
            if view.epoch == epoch:
                return view
        below = [view for view in self._views if view.epoch < epoch]
        newest = max(below, key=lambda view: view.epoch, default=None)
        made = min(below, key=lambda view: view.epoch, default=None)
        if made is None or made.epoch >= oldest:
            assert len(self._views) < self._in_flight, "an epoch began too early"
            made = self._empty()
            self._views.append(made)
        made.epoch = epoch
        if newest is not None and made is not newest:
            for into, rows in zip(made.rows, newest.rows, strict=True):
                into.copy_(rows)
            made.stamps_G[:] = newest.stamps_G
        return made

    def _empty(self) -> RowsView:
        columns = self.side.csr.num_cols
        rows = tuple(torch.zeros(columns, width, dtype=self._dtype) for width in self.widths)
        return RowsView(0, rows, np.zeros(len(self.side.group_rows), dtype=np.int64))

    def write(self, epoch: int, group: int, rows: Tensor, oldest: int) -> None:
        """Take in a group's rows of an epoch, all tensors side by side."""
        self.view(epoch, oldest)
        for view in self._views:
            if view.epoch >= epoch and view.stamps_G[group] < epoch:
                for into, part in zip(view.rows, rows.split(self.widths, dim=1), strict=True):
                    into[self.side.places[group]] = part
                view.stamps_G[group] = epoch

    def is_ready(self, interval: int, epoch: int, oldest: int, most_age: int) -> bool:
        """True when no row that the interval reads is older than `most_age` epochs."""
        stamps = self.view(epoch, oldest).stamps_G[self.side.needs[interval]]
        return not len(stamps) or bool(stamps.min() >= max(1, epoch - most_age))

    def read(
        self, interval: int, epoch: int, oldest: int, ages: Counter[int]
    ) -> tuple[Tensor, ...]:
        """Return the tensors of the channel, a row for each column; count rows by their age."""
        view, needs = self.view(epoch, oldest), self.side.needs[interval]
        for age, rows in zip(
            (epoch - view.stamps_G[needs]).tolist(),
            self.side.group_rows[needs].tolist(),
            strict=True,
        ):
            ages[age] += rows
        return view.rows

    def stamps(self, interval: int, epoch: int, oldest: int) -> bytes:
        """Return the stamps of what an interval would read now, to tell a change by."""
        return self.view(epoch, oldest).stamps_G[self.side.needs[interval]].tobytes()
