"""The loop that keeps intervals moving: graph tasks on this thread, tensor tasks in a pool.

With staleness S an interval may start epoch e when the step of epoch e - 1 - S has been taken: at 0
all intervals of all ranks are in one epoch. A gather waits for rows that are S epochs old at most.
One optimiser step is taken for each epoch, of gradients added in one order: a rank adds one slice
of the columns for all, rank after rank, and hands the sum round, as `comm.sum_in_order` does; here
nobody waits. All ranks get the same bits.

Shapes: P ranks, K columns, W columns of a slice.
"""

import queue
import secrets
import time
from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import Mail, Mailbox, World
from siafu.elastic import Deliver, Reply, decode_rows
from siafu.elastic.runner import Runner
from siafu.errors import CommError, PoolError, SiafuError
from siafu.nn import GNN, Draws
from siafu.pipeline.gathers import Rows
from siafu.pipeline.measured import PassageCosts
from siafu.pipeline.passage import Passage, build_context
from siafu.pipeline.scheduler import FORWARD, AwaitRows, Hooks, Scheduler, Steps
from siafu.pipeline.tasks import Stash
from siafu.shard import Shard
from siafu.strategy import Strategy

TERM, SUM = 2, 3
"""Kinds of mail: a rank's term for a slice, and the sum of a slice."""


class EpochSums:
    """Sums of one row of numbers per epoch."""

    def __init__(self, world: World, mail: Mailbox, width: int) -> None:
        self._world, self._mail, self._width = world, mail, width
        self._slice = -(-width // world.size)
        self._terms: dict[int, dict[int, Tensor]] = {}
        self._sums: dict[int, dict[int, Tensor]] = {}

    def give(self, epoch: int, mine_K: Tensor) -> None:
        """Give this rank's term."""
        padded = mine_K.new_zeros(self._slice * self._world.size)
        padded[: self._width] = mine_K
        for rank, piece_W in enumerate(padded.view(self._world.size, -1)):
            if rank == self._world.rank:
                self.take(TERM, epoch, rank, piece_W)
            else:
                self._mail.send(rank, (TERM, epoch), piece_W.unsqueeze(0), "gradient")

    def take(self, kind: int, epoch: int, sender: int, piece_W: Tensor) -> None:
        """Take in what a rank sent."""
        if kind == SUM:
            self._sums.setdefault(epoch, {})[sender] = piece_W
            return
        terms = self._terms.setdefault(epoch, {})
        terms[sender] = piece_W
        if len(terms) < self._world.size:
            return
        total = terms[0].clone()
        for rank in range(1, self._world.size):
            total += terms[rank]
        del self._terms[epoch]
        for rank in range(self._world.size):
            if rank != self._world.rank:
                self._mail.send(rank, (SUM, epoch), total.unsqueeze(0), "gradient")
        self._sums.setdefault(epoch, {})[self._world.rank] = total

    def result(self, epoch: int) -> Tensor | None:
        """Return the sum once it is whole; it is then let go of."""
        if len(self._sums.get(epoch, {})) < self._world.size:
            return None
        pieces = self._sums.pop(epoch)
        return torch.cat([pieces[rank] for rank in range(self._world.size)])[: self._width]


_ROWS = 1
"""Kind of mail: rows of an interval."""
_LONGEST_NAP_SECONDS = 0.1

Span = Callable[[str, str, str, float, float], None]
"""Takes (name, category, lane, start since 1970, seconds)."""


class Pipeline:
    """One rank's intervals on their way through epochs."""

    def __init__(
        self,
        module: GNN,
        x_ND: Tensor,
        shard: Shard,
        draws: Draws,
        strategy: Strategy,
        make_runner: Callable[[Deliver], Runner],
        span: Span | None = None,
    ) -> None:
        """Every rank calls this together."""
        self._strategy, self.version = strategy, 0
        self._latest = strategy.gather == "latest"
        self._module, self._shard, self._span = module, shard, span
        prefix = f"{secrets.token_hex(6)}-{shard.world.rank}"
        self._context = context = build_context(
            module.spec, shard, x_ND, draws, strategy, prefix, (self._send, lambda: self._oldest)
        )
        self.ages, self.costs = context.ages, PassageCosts()
        there = context.gather.there
        self._full = [
            number
            for number in range(strategy.intervals)
            if there.bounds[number] < there.bounds[number + 1]
        ]
        self._inbox: queue.SimpleQueue[Reply | Mail | SiafuError] = queue.SimpleQueue()
        self._runner = make_runner(self._inbox.put)
        names = [part.parameters for part in context.parts]
        self._stash = Stash(module, names, prefix, self._runner.forget, most=strategy.staleness + 2)
        context.tasks.stash = self._stash
        self._mail = Mailbox(shard.world, self._inbox.put)
        self._names, self._weights = zip(*module.named_parameters(), strict=True)
        self._sums = EpochSums(shard.world, self._mail, self.num_weights + 1)
        self._passages: dict[int, Passage] = {}
        """By interval."""
        hooks = Hooks(begin=self._begin, finish=self._finish, ready=self._ready)
        self._scheduler = Scheduler(
            self._full,
            self._runner,
            hooks,
            staleness=strategy.staleness,
            overlap=strategy.overlap,
        )
        self._finished: dict[int, dict[int, Tensor]] = {}
        """Epoch: interval: gradients and loss."""
        self._losses: dict[int, float] = {}
        self._given = 0
        """The last epoch that a rank without nodes has given gradients for."""
        self.idle_seconds = 0.0

    def begin(self, version: int) -> None:
        """Take the module's weights as those after `version` epochs."""
        self.version = version
        self._scheduler.begin_after(version)
        self._given = version
        self._stash.publish(version)

    @property
    def _oldest(self) -> int:
        """The oldest epoch that an interval here is in, or would start next."""
        return self._scheduler.oldest(self.version)

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int, horizon: int) -> float:
        """Return the loss of an epoch once its step is taken; no interval goes past `horizon`."""
        heard = time.monotonic()
        while self.version < epoch:
            self._start(horizon)
            nap = min(_LONGEST_NAP_SECONDS, self._runner.tick())
            moved = self._move() or self._listen(0.0)
            if not moved:
                began = time.perf_counter()
                moved = self._listen(nap)
                self.idle_seconds += time.perf_counter() - began
            self._step(optimiser)
            heard = time.monotonic() if moved else heard
            if time.monotonic() - heard > self._shard.world.deadline_seconds:
                raise self._stuck(epoch)
        return self._losses.pop(epoch)

    def _start(self, horizon: int) -> None:
        """Start intervals on epochs that may begin."""
        most = self._scheduler.most_epoch(self.version, horizon)
        while not self._full and self._given < most:  # a rank without nodes adds nothing
            self._given += 1
            zeros = [weight.flatten() for weight in self._weights]
            self._sums.give(self._given, torch.zeros_like(torch.cat([*zeros, zeros[0][:1]])))
        self._scheduler.start(self.version, horizon)

    def _begin(self, interval: int, epoch: int) -> Steps:
        passage = Passage(self._context, interval, epoch, self._stash.take())
        self._passages[interval] = passage
        return self.costs.watched(passage.steps())

    def _finish(self, interval: int, epoch: int) -> None:
        passage = self._passages.pop(interval)
        self._stash.release(passage.version)
        found = passage.gradient(list(self._names), list(self._weights))
        done = self._finished.setdefault(epoch, {})
        done[interval] = found
        if len(done) == len(self._full):
            self._sums.give(epoch, _added([done[i] for i in self._full]))
            del self._finished[epoch]

    def _move(self) -> bool:
        """Do one graph task, the most urgent that can be done; return whether there was one."""
        chosen = self._scheduler.next_graph_task()
        if chosen is None:
            return False
        interval, wait = chosen
        began, clock = time.time(), time.perf_counter()
        self._scheduler.resume(interval, {})
        seconds = time.perf_counter() - clock
        self.costs.note_gather(wait, seconds)
        if self._span is not None:
            name = f"{('gather', 'gather back')[wait.direction]} {wait.layer}"
            self._span(name, "graph", "graph", began, seconds)
        return True

    def _ready(self, epoch: int, wait: AwaitRows, intervals: list[int]) -> list[int]:
        channel = self._context.channels[wait.direction, wait.layer]
        oldest, most_age = self._oldest, self.most_age
        return [i for i in intervals if channel.is_ready(i, epoch, oldest, most_age)]

    @property
    def num_weights(self) -> int:
        """Numbers that are learnt."""
        return sum(weight.numel() for weight in self._weights)

    @property
    def most_age(self) -> int:
        """Epochs that a row may be old when it is read."""
        return self._scheduler.staleness + int(self._latest)

    def stop_lagging(self) -> None:
        """Have every gather wait for rows of its own epoch from now on; between epochs."""
        self._scheduler.staleness, self._latest = 0, False

    def _listen(self, seconds: float) -> bool:
        """Take in what has come, or comes within so long; return whether anything had."""
        came = False
        while True:
            try:
                waits = seconds > 0 and not came
                thing = self._inbox.get(timeout=seconds) if waits else self._inbox.get_nowait()
            except queue.Empty:
                return came
            came = True
            if isinstance(thing, SiafuError):
                raise thing
            if isinstance(thing, Mail):
                self._take_mail(thing)
            else:
                self._take_reply(thing)

    def _take_mail(self, mail: Mail) -> None:
        kind, epoch, channel, interval, _ = mail.subject
        if kind != _ROWS:
            self._sums.take(kind, epoch, mail.sender, mail.rows[0])
            return
        direction, layer = divmod(channel, len(self._context.parts))
        group = mail.sender * self._strategy.intervals + interval
        self._context.channels[direction, layer].write(epoch, group, mail.rows, self._oldest)

    def _take_reply(self, reply: Reply) -> None:
        interval = self._scheduler.answered(reply.number)
        if interval is None:
            return
        if reply.failure:
            raise PoolError(
                "A tensor task can't be done.", seen=reply.failure, fix="see the worker's error"
            )
        usage = reply.usage
        if self._span is not None:
            name = f"interval {interval} epoch {self._scheduler.epoch(interval)}"
            self._span(name, "tensor", usage.worker, usage.started, usage.seconds)
        self._scheduler.resume(interval, decode_rows(reply.tensors))

    def _send(self, direction: int, layer: int, interval: int, epoch: int, rows: Rows) -> None:
        """Give an interval's rows to the intervals here and on other ranks that read them."""
        channel, rank = self._context.channels[direction, layer], self._shard.world.rank
        flat = [tensor.flatten(1) for tensor in rows]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
        first = channel.side.bounds[interval]
        subject = _ROWS, epoch, direction * len(self._context.parts) + layer, interval
        purpose = "halo_forward" if direction == FORWARD else "halo_backward"
        num_bytes = 0
        for (peer, of), sent in channel.side.sends.items():
            if of == interval:
                self._mail.send(peer, subject, joined[sent - first], purpose)
                num_bytes += len(sent) * joined[:1].nbytes
        self.costs.note_sent(direction, layer, num_bytes)
        group = rank * self._strategy.intervals + interval
        channel.write(epoch, group, joined, self._oldest)

    def _step(self, optimiser: torch.optim.Optimizer) -> None:
        """Take the optimiser's step of the next epoch if its gradients are all there."""
        total = self._sums.result(self.version + 1)
        if total is None:
            return
        *pieces, loss = total.split([*(weight.numel() for weight in self._weights), 1])
        for weight, piece in zip(self._weights, pieces, strict=True):
            weight.grad = piece.view_as(weight)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        self.version += 1
        self._losses[self.version] = float(loss)
        self._stash.publish(self.version)

    def _stuck(self, epoch: int) -> CommError:
        waits = self._scheduler.waiting.items()
        rows = [f"interval {i} for rows of layer {w.layer}" for (_, w), own in waits for i in own]
        tasks = [f"interval {i} for task {n}" for n, i in self._scheduler.running.items()]
        return CommError(
            "A wait passed its deadline.",
            seen=f"rank {self._shard.world.rank} in epoch {epoch}: "
            f"{'; '.join([*rows, *tasks]) or 'sums of other ranks'}",
            fix="look at what other ranks last said; raise --deadline if the pool was only slow",
        )

    def close(self) -> None:
        """End the pool and the mail; all ranks call this together."""
        self._runner.close()
        self._mail.close()


def _added(terms: list[Tensor]) -> Tensor:
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total
