"""Several minibatches whose rows are fetched in one go, while the ones before are trained on.

Shapes: U distinct vertices of a macrobatch, V vertices of one minibatch.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from siafu.minibatch.hot_rows import HotRows
from siafu.minibatch.links import LinkSeeds
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Schedule, Step
from siafu.minibatch.served import owners_of, rows_of
from siafu.minibatch.subgraph import Subgraph


@dataclass(frozen=True, eq=False)
class Macrobatch:
    """Minibatches of consecutive steps, with the rows that any of them reads."""

    steps: list[Step]
    subgraphs: list[list[Subgraph]]
    """This rank's, by step."""
    addresses_U: Tensor
    rows: dict[str, Tensor]
    """By column, one for each distinct vertex."""
    seeds_U: Tensor
    """Addresses of all seeds, rising."""
    seed_rows: dict[str, Tensor]
    """By column, one for each seed."""

    def columns_of(self, subgraph: Subgraph) -> dict[str, Tensor]:
        """Return the rows of one minibatch's vertices, in its order; some of its seeds alone."""
        place_V = torch.searchsorted(self.addresses_U, subgraph.addresses)
        columns = {name: rows.index_select(0, place_V) for name, rows in self.rows.items()}
        place = torch.searchsorted(self.seeds_U, subgraph.addresses[: subgraph.num_seeds])
        seed_columns = {name: rows.index_select(0, place) for name, rows in self.seed_rows.items()}
        return columns | seed_columns


_THREAD = "siafu-relay"
_Made = TypeVar("_Made")
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
        """`columns` are fetched of every vertex, `seed_columns` of seeds.

        `links` makes seeds of edges, where those are dealt.
        """
        self.relay, self.schedule, self.hot = relay, schedule, hot
        self.columns, self.seed_columns, self.links = columns, seed_columns, links
        self.is_ahead = True
        """False builds each when it is asked for, to measure what building ahead saves."""
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        """What the thread was given last: when that is done, it rests."""
        self._begun: tuple[int, int, Future[_Start]] | None = None
        """Epoch and size of an epoch that was begun while the one before it ended."""
        self._is_abandoned = False

    def macrobatches(self, epoch: int, size: int, *, goes_on: bool = False) -> Iterator[Macrobatch]:
        """Yield an epoch's steps, `size` at a time; every rank consumes all of them.

        With `goes_on` the start of the next epoch is built while the end of this one is trained on.
        """
        # One name for what comes: another would keep a third macrobatch alive.
        coming = self._start(epoch, size)
        try:
            ready, groups = coming.result()
            for group in groups[1:]:
                if self.is_ahead:
                    coming = self._submit(self.build, epoch, group)
                    yield ready
                else:
                    yield ready
                    coming = self._submit(self.build, epoch, group)
                ready = coming.result()
            if goes_on and self.is_ahead:
                self._begun = (epoch + 1, size, self._submit(self._begin, epoch + 1, size))
            yield ready
        finally:
            self._leave(coming)

    def _start(self, epoch: int, size: int) -> Future[Any]:
        """Return the start of an epoch, which may have been begun; of another it is dropped."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[:2] == (epoch, size):
            return begun[2]
        return self._submit(self._begin, epoch, size)

    def _leave(self, coming: Future[Any]) -> None:
        """End a loop, after what it asked for: other ranks may wait for this one's share."""
        # A loop that was dropped may be collected on the thread ahead, which can't wait for itself.
        if not (self._is_abandoned or threading.current_thread().name.startswith(_THREAD)):
            wait([coming])
        if self._last is coming:
            self._last = None  # it would keep rows that nobody needs

    def _begin(self, epoch: int, size: int) -> _Start:
        """Return the first macrobatch of an epoch, and the steps of all."""
        steps = self.schedule.steps(epoch)
        groups = [steps[low : low + size] for low in range(0, len(steps), size)]
        return self.build(epoch, groups[0]), groups

    def _submit(self, work: Callable[..., _Made], *given: Any) -> Future[_Made]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
        self._last = submitted = self._thread.submit(work, *given)
        return submitted

    def settle(self) -> None:
        """Wait until the thread ahead rests, so that this one may use its line."""
        if self._last is not None and not self._is_abandoned:
            wait([self._last])

    def close(self) -> None:
        """End the thread ahead."""
        self.settle()
        self._begun = self._last = None
        if self._thread is not None:
            self._thread.shutdown(wait=not self._is_abandoned, cancel_futures=True)
            self._thread = None

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

    def build(self, epoch: int, steps: list[Step]) -> Macrobatch:
        """Return the macrobatch of these steps; every rank calls this together."""
        steps = self.seeded(epoch, steps)
        flat = [batch for step in steps for batch in step.mine]
        graphs = self.relay.sample(epoch, flat)
        if self.links is not None:
            pairs = zip(flat, graphs, strict=True)
            graphs = [self.links.without_targets(batch, graph) for batch, graph in pairs]
        drawn = iter(graphs)
        subgraphs = [[next(drawn) for _ in step.mine] for step in steps]
        union = [graph.addresses for step in subgraphs for graph in step]
        addresses_U = torch.cat(union).unique()
        seeds_U = torch.cat([batch.seeds for batch in flat]).unique()
        seed_rows = self.relay.fetch(seeds_U, self.seed_columns) if self.seed_columns else {}
        rows = self._rows(addresses_U)
        return Macrobatch(steps, subgraphs, addresses_U, rows, seeds_U, seed_rows)

    def _rows(self, addresses_U: Tensor) -> dict[str, Tensor]:
        if self.hot is None:
            return self.relay.fetch(addresses_U, self.columns)
        # They rise, so those of this rank stand together.
        counts = torch.bincount(owners_of(addresses_U), minlength=self.relay.line.size).tolist()
        low = sum(counts[: self.relay.line.rank])
        high = low + counts[self.relay.line.rank]
        own = rows_of(addresses_U[low:high])
        far = self.hot.get(torch.cat([addresses_U[:low], addresses_U[high:]]), self._fetch_far)
        readers = self.relay.served.vertex_columns
        return {
            name: torch.cat([rows[:low], readers[name].read(own), rows[low:]])
            for name, rows in far.items()
        }

    def _fetch_far(self, addresses: Tensor) -> dict[str, Tensor]:
        return self.relay.fetch(addresses, self.columns)
