"""One round of messages for several minibatches: their hops are drawn together, hop by hop.

What a hop needs of a peer goes in one message whatever the number of minibatches, and comes back in
one. Draws are keyed by minibatch, hop and node, so who asks in which company does not matter.

Shapes: Q requests of a rank, A requests it answers, S sampled edges, U distinct nodes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import Inquiry, World, ask, tell
from siafu.minibatch.schedule import ORDER_PURPOSE, Minibatch
from siafu.minibatch.served import (
    ROW_BITS,
    EdgeColumn,
    InEdges,
    Sampling,
    Served,
    owners_of,
    rows_of,
)
from siafu.minibatch.subgraph import GrowingSubgraph, Subgraph
from siafu.ops import CSR, DrawKey
from siafu.shard import WrittenRows, new_rows


def epoch_of_draws(epoch: int, number: int) -> int:
    """Return the count that keys draws of one minibatch in one epoch."""
    return epoch << 32 | number


class Relay:
    """Asks the ranks for sampled edges and rows; every rank calls alike, in the same order."""

    def __init__(self, served: Served, channel: World, sampling: Sampling, seed: int) -> None:
        self.served, self.channel, self.sampling, self.seed = served, channel, sampling, seed

    @property
    def device(self) -> torch.device:
        """Where sub-graphs and rows come to lie."""
        return torch.device("cpu")

    @property
    def holds_rows(self) -> bool:
        """Whether all rows lie where they are trained on, so that none is to be fetched."""
        return False

    def new_rows(self, shape: tuple[int, ...], dtype: torch.dtype, *, on_disk: bool) -> WrittenRows:
        """Return rows to be written, which may be served to layers."""
        return new_rows(shape, dtype, on_disk=on_disk)

    def sample(self, epoch: int, minibatches: list[Minibatch]) -> list[Subgraph]:
        """Return the sub-graph of each minibatch; ranks give equally many."""
        numbers = tell([float(batch.keyed) for batch in minibatches], self.channel, "control")
        growing = [GrowingSubgraph(batch.number, batch.seeds) for batch in minibatches]
        for hop, fanout in enumerate(self.sampling.fanouts):
            keys = [
                DrawKey(self.seed, epoch_of_draws(epoch, int(number)), ORDER_PURPOSE + 1 + hop)
                for row in numbers
                for number in row
            ]
            self._draw_hop(growing, keys, fanout)
        return [one.finish() for one in growing]

    def _draw_hop(self, growing: list[GrowingSubgraph], keys: list[DrawKey], fanout: int) -> None:
        sizes = torch.tensor([len(one.frontier) for one in growing])
        slot_Q = torch.arange(len(growing)).repeat_interleave(sizes)
        wanted_Q = torch.cat([one.frontier for one in growing])
        order_Q = owners_of(wanted_Q).argsort(stable=True)
        request_Q = (rows_of(wanted_Q) | slot_Q << ROW_BITS)[order_Q]
        answer = self._answers(request_Q, owners_of(wanted_Q), keys, len(growing), fanout)
        joined = CSR(_offsets(answer.counts_Q), answer.addresses_S, 1 << 62)
        back, edges_S = joined.select_rows(order_Q.argsort())
        degree = back.degree()
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).tolist()
        for one, low, high in zip(growing, bounds, bounds[1:], strict=False):
            start, end = int(back.indptr[low]), int(back.indptr[high])
            columns = {
                name: rows.index_select(0, edges_S[start:end])
                for name, rows in answer.edges.items()
            }
            one.add_hop(degree[low:high], back.index[start:end], columns)

    def _answers(
        self, request_Q: Tensor, owner_Q: Tensor, keys: list[DrawKey], slots: int, fanout: int
    ) -> InEdges:
        """Return in-edges for requests grouped by owner."""
        channel = self.channel
        counts = torch.bincount(owner_Q, minlength=channel.size).tolist()
        before, own, after = request_Q.split(
            [sum(counts[: channel.rank]), counts[channel.rank], sum(counts[channel.rank + 1 :])]
        )
        if channel.size == 1:
            return self._own_answer(own, torch.zeros_like(own), keys, slots, fanout)
        counts[channel.rank] = 0
        inquiry = ask(torch.cat([before, after]), counts, channel, "sample")
        asker = torch.arange(channel.size).repeat_interleave(torch.tensor(inquiry.asked_counts))
        given = self._own_answer(inquiry.asked, asker, keys, slots, fanout)
        arrived = _start_exchange(inquiry, given, channel)
        mine = self._own_answer(own, torch.full_like(own, channel.rank), keys, slots, fanout)
        return _inserted(arrived(), mine, len(before))

    def _own_answer(
        self, request: Tensor, asker: Tensor, keys: list[DrawKey], slots: int, fanout: int
    ) -> InEdges:
        rows, slot = rows_of(request), request >> ROW_BITS
        return self.served.answer(rows, asker * slots + slot, keys, fanout, self.sampling)

    def sample_own(self, number: int, rows: Tensor) -> Subgraph:
        """Return owned rows with the one hop that this relay draws; nobody else is asked.

        `number` keys the draws, apart from those of training.
        """
        (fanout,) = self.sampling.fanouts
        growing = GrowingSubgraph(number, rows | self.channel.rank << ROW_BITS)
        key = DrawKey(self.seed, epoch_of_draws(0, number), ORDER_PURPOSE + 1)
        found = self.served.answer(rows, torch.zeros_like(rows), [key], fanout, self.sampling)
        growing.add_hop(found.counts_Q, found.addresses_S, found.edges)
        return growing.finish()

    def fetch(self, addresses_U: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return rows of nodes, by column; `addresses_U` rise."""
        channel, readers = self.channel, self.served.node_columns
        counts = torch.bincount(owners_of(addresses_U), minlength=channel.size).tolist()
        before, own, after = rows_of(addresses_U).split(
            [sum(counts[: channel.rank]), counts[channel.rank], sum(counts[channel.rank + 1 :])]
        )
        if channel.size == 1:
            return {name: readers[name].read(own) for name in names}
        counts[channel.rank] = 0
        inquiry = ask(torch.cat([before, after]), counts, channel, "feature")
        found = {}
        for name in names:
            arrived = inquiry.start_reply(readers[name].read(inquiry.asked), channel, "feature")
            mine = readers[name].read(own)  # while the others' are on their way
            got = arrived()
            found[name] = torch.cat([got[: len(before)], mine, got[len(before) :]])
        return found


def _start_exchange(inquiry: Inquiry, given: InEdges, channel: World) -> Callable[[], InEdges]:
    """Send our answers; what is returned waits for the others'."""
    counts_Q = inquiry.reply(given.counts_Q.to(torch.int32), channel, "sample").long()

    def swap(rows: Tensor) -> Callable[[], Tensor]:
        return inquiry.start_ragged(rows, given.counts_Q, counts_Q, channel, "sample")

    edges = {name: swap(rows) for name, rows in given.edges.items()}
    addresses = swap(given.addresses_S)

    def arrived() -> InEdges:
        columns = {name: wait() for name, wait in edges.items()}
        return InEdges(counts_Q, addresses(), columns)

    return arrived


def _inserted(got: InEdges, mine: InEdges, place: int) -> InEdges:
    """Return the answers of all owners: ours stand after the first `place` of the others."""
    edge = int(got.counts_Q[:place].sum())

    def insert(others: Tensor, own: Tensor, at: int) -> Tensor:
        return torch.cat([others[:at], own, others[at:]])

    edges: dict[EdgeColumn, Tensor] = {
        name: insert(rows, mine.edges[name], edge) for name, rows in got.edges.items()
    }
    return InEdges(
        insert(got.counts_Q, mine.counts_Q, place),
        insert(got.addresses_S, mine.addresses_S, edge),
        edges,
    )


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
