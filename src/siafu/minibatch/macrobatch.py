"""Several minibatches whose rows are fetched in one go, while the ones before are trained on.

How many go together is settled in `macrobatch_size`.
Shapes: U distinct nodes of a macrobatch, V nodes of one minibatch.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from siafu.minibatch.copies import Copier, MacrobatchCopies
from siafu.minibatch.fetched_rows import HotRows
from siafu.minibatch.link_seeds import LinkSeeds
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Schedule, Step
from siafu.minibatch.served import owners_of, rows_of
from siafu.minibatch.side_stream import SideStream
from siafu.minibatch.subgraph import Subgraph
from siafu.shard import RowReader

_THREAD = "siafu-relay"
_Made = TypeVar("_Made")


class RowSource(Protocol):
    """Rows that the minibatches of a macrobatch read."""

    @property
    def tensors(self) -> list[Tensor]:
        """Those made for the macrobatch."""
        ...

    def of(self, addresses_V: Tensor, place_V: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rows of these nodes, by column; `place_V` where they lie, if that is known."""
        ...


@dataclass(frozen=True, eq=False)
class FetchedRows:
    """Rows of all nodes that any minibatch reads."""

    addresses_U: Tensor
    """Rising."""
    rows: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [self.addresses_U, *self.rows.values()]

    def of(self, addresses_V: Tensor, place_V: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rows of these nodes, by column."""
        if not self.rows:
            return {}
        if place_V is None:
            place_V = torch.searchsorted(self.addresses_U, addresses_V)
        return {name: rows.index_select(0, place_V) for name, rows in self.rows.items()}


@dataclass(frozen=True, eq=False)
class RowsAtHand:
    """Rows of all nodes there are, where they are trained on."""

    readers: dict[str, RowReader]

    @property
    def tensors(self) -> list[Tensor]:
        """None: they outlive the macrobatch."""
        return []

    def of(self, addresses_V: Tensor, place_V: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rows of these nodes, by column."""
        rows_V = rows_of(addresses_V)
        return {name: reader.read(rows_V) for name, reader in self.readers.items()}


@dataclass(frozen=True, eq=False)
class Macrobatch:
    """Minibatches of consecutive steps, with the rows that any of them reads."""

    steps: list[Step]
    subgraphs: list[list[Subgraph]]
    """This rank's, by step."""
    rows: RowSource
    seed_rows: RowSource
    """Of seeds alone."""
    made: Any
    """When it was made, for those who read it on a device."""
    places: dict[int, Tensor]
    """Where the rows of each minibatch lie, by its number; found ahead of training."""
    copies: MacrobatchCopies | None = None
    """On their way to the device, where rows are on the host and training is not."""

    def columns_of(self, subgraph: Subgraph) -> dict[str, Tensor]:
        """Return the rows of one minibatch's nodes, in its order; some of its seeds alone."""
        return _picked(self.rows, self.seed_rows, self.places, subgraph)

    def given(self, subgraph: Subgraph) -> tuple[Subgraph, dict[str, Tensor]]:
        """Return a minibatch and its rows for training, on the device if they are copied there.

        Once each, in the order of steps.
        """
        if self.copies is None:
            return subgraph, self.columns_of(subgraph)
        return self.copies.take(subgraph)

    @property
    def tensors(self) -> list[Tensor]:
        """All that was made for it."""
        graphs = [tensor for step in self.subgraphs for one in step for tensor in one.tensors]
        rows = [*self.rows.tensors, *self.seed_rows.tensors, *self.places.values()]
        return [*graphs, *rows, *([] if self.copies is None else self.copies.tensors)]


def _picked(
    rows: RowSource, seed_rows: RowSource, places: dict[int, Tensor], subgraph: Subgraph
) -> dict[str, Tensor]:
    seeds = subgraph.addresses[: subgraph.num_seeds]
    return rows.of(subgraph.addresses, places.get(subgraph.number)) | seed_rows.of(seeds)


_Drawn = tuple[list[Step], list[Subgraph]]
_Start = tuple[Macrobatch, list[list[Step]]]


class MacrobatchSampler:
    """Draws and fetches the macrobatches of an epoch, one ahead of training."""

    def __init__(
        self,
        relay: Relay,
        schedule: Schedule,
        columns: tuple[str, ...],
        seed_columns: tuple[str, ...] = (),
        hot: HotRows | None = None,
        links: LinkSeeds | None = None,
    ) -> None:
        """`columns` are fetched of every node, `seed_columns` of seeds.

        `links` makes seeds of edges, where those are dealt.
        """
        self.relay, self.schedule, self.hot = relay, schedule, hot
        self._side = SideStream(relay.device)
        self.columns, self.seed_columns, self.links = columns, seed_columns, links
        self.is_ahead = True
        """False builds each when it is asked for, to measure what building ahead saves."""
        self.finish: Callable[[list[Subgraph]], list[Subgraph]] = lambda graphs: graphs
        """What is made of all sub-graphs together, ahead of training."""
        self.copier: Copier | None = None
        """Where rows are on the host and training is not."""
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        """What the thread was given last: when that is done, it rests."""
        self._begun: tuple[int, int, Future[_Start]] | None = None
        """Epoch and size of an epoch that was begun while the one before it ended."""
        self._is_abandoned = False
        self.alive: weakref.WeakSet[Macrobatch] = weakref.WeakSet()
        """Those that somebody has: the one trained on, and the one ahead."""
        self.looks_ahead = hot is not None
        """Whether minibatches are drawn one macrobatch before their rows are fetched, so that hot
        rows are those that come next."""
        self._drawn: tuple[int, Step, _Drawn] | None = None
        """Epoch and first step of what was drawn so, and that."""

    def macrobatches(
        self, epoch: int, size: int, *, goes_on: bool = False, first: int = 0
    ) -> Iterator[Macrobatch]:
        """Yield an epoch's steps from `first` on, `size` at a time; every rank consumes all.

        With `goes_on` the start of the next epoch is built while the end of this one is trained on.
        """
        # One name for what comes: another would keep a third macrobatch alive.
        coming = self._start(epoch, size, first)
        try:
            ready, groups = coming.result()
            self._side.hand_over(ready)
            none: list[int] = []
            for group, after in zip_longest(groups[1:], groups[2:], fillvalue=none):
                if self.is_ahead:
                    coming = self._submit(self.build, epoch, group, after)
                    yield ready
                else:
                    yield ready
                    coming = self._submit(self.build, epoch, group, after)
                ready = self._side.hand_over(coming.result())
            if goes_on and self.is_ahead:
                self._begun = (epoch + 1, size, self._submit(self._begin, epoch + 1, size))
            yield ready
        finally:
            self._leave(coming)

    def _start(self, epoch: int, size: int, first: int) -> Future[Any]:
        """Return the start of an epoch, which may have been begun; of another it is dropped."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[:2] == (epoch, size) and not first:
            return begun[2]
        return self._submit(self._begin, epoch, size, first)

    def _leave(self, coming: Future[Any]) -> None:
        """End a loop, after what it asked for: other ranks may wait for this one's share."""
        # A loop that was dropped may be collected on the thread ahead, which can't wait for itself.
        if not (self._is_abandoned or threading.current_thread().name.startswith(_THREAD)):
            wait([coming])
        if self._last is coming:
            self._last = None  # it would keep rows that nobody needs

    def _begin(self, epoch: int, size: int, first: int = 0) -> _Start:
        """Return the first macrobatch of an epoch from a step on, and the steps of all."""
        steps = self.schedule.steps(epoch)[first:]
        groups = [steps[low : low + size] for low in range(0, len(steps), size)]
        return self.build(epoch, groups[0], groups[1] if len(groups) > 1 else []), groups

    def _submit(self, work: Callable[..., _Made], *given: Any) -> Future[_Made]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
            self._side.follow()
        self._last = submitted = self._thread.submit(self._side.run, work, *given)
        return submitted

    def settle(self) -> None:
        """Wait until the thread ahead rests, so that this one may use its channel."""
        if self._last is not None and not self._is_abandoned:
            wait([self._last])

    def close(self) -> None:
        """End the thread ahead."""
        self.settle()
        self._begun = self._last = None
        if self._thread is not None:
            self._thread.shutdown(wait=not self._is_abandoned, cancel_futures=True)
            self._thread = None
        if self.copier is not None:
            self.copier.close()

    def abandon(self) -> None:
        """End it after a failure, without waiting for rows that may never come."""
        self._is_abandoned = True
        self.close()

    def check(self) -> None:
        """Raise what the thread ahead has failed with, before more is trained."""
        if self._last is not None and self._last.done():
            self._last.result()

    @contextmanager
    def abandoned_on_error(self) -> Iterator[None]:
        """Have an error inside be told at once: no waiting for rows that may never come."""
        try:
            yield
        except BaseException:
            self._is_abandoned = True
            raise

    def seeded(self, epoch: int, steps: list[Step]) -> list[Step]:
        """Return the steps with seeds to sample from, also where edges were dealt."""
        return steps if self.links is None else self.links.expand(epoch, steps)

    def _draw(self, epoch: int, steps: list[Step]) -> _Drawn:
        """Return steps with seeds and their sub-graphs, which may have been drawn before."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn[0] == epoch and drawn[1] is steps[0]:
            return drawn[2]
        steps = self.seeded(epoch, steps)
        flat = [batch for step in steps for batch in step.mine]
        graphs = self.relay.sample(epoch, flat)
        if self.links is not None:
            pairs = zip(flat, graphs, strict=True)
            graphs = [self.links.without_targets(batch, graph) for batch, graph in pairs]
        return steps, graphs

    def _look_ahead(self, epoch: int, after: list[Step]) -> Tensor | None:
        """Draw what comes next, and return the addresses it reads."""
        if not (self.looks_ahead and after):
            return None
        drawn = self._draw(epoch, after)
        self._drawn = epoch, after[0], drawn
        return torch.cat([graph.addresses for graph in drawn[1]]).unique()

    def build(self, epoch: int, steps: list[Step], after: list[Step] | None = None) -> Macrobatch:
        """Return the macrobatch of these steps; every rank calls this together.

        `after` are the steps of the next one.
        """
        steps, graphs = self._draw(epoch, steps)
        flat = [batch for step in steps for batch in step.mine]
        coming = self._look_ahead(epoch, after or [])
        drawn = iter(self.finish(graphs))
        subgraphs = [[next(drawn) for _ in step.mine] for step in steps]
        rows: RowSource
        seed_rows: RowSource
        readers, places = self.relay.served.node_columns, dict[int, Tensor]()
        if self.relay.holds_rows:
            rows = RowsAtHand({name: readers[name] for name in self.columns})
        else:
            addresses = torch.cat([graph.addresses for graph in graphs])
            addresses_U, place = addresses.unique(return_inverse=True)
            rows = FetchedRows(addresses_U, self._rows(addresses_U, coming))
            found_at = place.split([len(graph.addresses) for graph in graphs])
            places = {graph.number: at for graph, at in zip(graphs, found_at, strict=True)}
        if self.relay.device.type != "cpu" or self.relay.holds_rows:
            seed_rows = RowsAtHand({name: readers[name] for name in self.seed_columns})
        else:
            seeds_U = torch.cat([batch.seeds for batch in flat]).unique()
            found = self.relay.fetch(seeds_U, self.seed_columns) if self.seed_columns else {}
            seed_rows = FetchedRows(seeds_U, found)
        copies = None
        if self.copier is not None:
            # Not of the macrobatch itself, which then only the collector would end.
            copies = self.copier.begin(graphs, partial(_picked, rows, seed_rows, places))
        made = Macrobatch(steps, subgraphs, rows, seed_rows, self._side.mark(), places, copies)
        self.alive.add(made)
        return made

    def _rows(self, addresses_U: Tensor, coming: Tensor | None) -> dict[str, Tensor]:
        if self.hot is None:
            return self.relay.fetch(addresses_U, self.columns)
        # They rise, so those of this rank stand together.
        counts = torch.bincount(owners_of(addresses_U), minlength=self.relay.channel.size).tolist()
        low = sum(counts[: self.relay.channel.rank])
        high = low + counts[self.relay.channel.rank]
        own = rows_of(addresses_U[low:high])
        others_U = torch.cat([addresses_U[:low], addresses_U[high:]])
        far = self.hot.get(others_U, self._fetch_far, coming)
        readers = self.relay.served.node_columns
        return {
            name: torch.cat([rows[:low], readers[name].read(own), rows[low:]])
            for name, rows in far.items()
        }

    def _fetch_far(self, addresses: Tensor) -> dict[str, Tensor]:
        return self.relay.fetch(addresses, self.columns)
