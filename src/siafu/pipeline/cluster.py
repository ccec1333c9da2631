"""A cluster in virtual time: servers whose intervals go through epochs, and pools of workers.

What decides is what decides in a run: `Scheduler`, `Dispatcher`, `Autotuner`, `SimulatedPool`. What
takes time is told: core seconds of graph and tensor tasks, bytes, cards that they pass. One thread
runs all of it, the same events in the same order for the same seed.

Left out on purpose: which groups of rows an interval reads. It waits for all of them, as it does
where nodes of an interval have neighbours everywhere. Rows of an interval arrive at all servers at
once, when the slowest card has passed them.
"""

from collections import Counter
from collections.abc import Callable, Generator
from functools import lru_cache

import torch

from siafu.elastic import Bundle, Deliver, Reply, Task, Tensors
from siafu.elastic.dispatch import Dispatcher, RetryPolicy
from siafu.elastic.pools.pool import Pool
from siafu.elastic.pools.simulated import Links, SimulatedPool
from siafu.elastic.runner import Autotuner, PoolUse, Runner
from siafu.elastic.task import Usage
from siafu.elastic.timer import Card, VirtualTimer
from siafu.errors import PoolError
from siafu.pipeline.cluster_plan import ClusterPlan, ClusterRun, GraphWork, Script, TensorWork
from siafu.pipeline.scheduler import AwaitRows, AwaitTask, Hooks, Scheduler, Wait

_TICK_SECONDS, _TUNED_TICK_SECONDS = 1.0, 0.1
"""Between looks at what takes too long; a tuner is told of its queues as often as in a run."""


class _Costed:
    """An inner pool that tells what a task takes, and does nothing."""

    workers = 1

    def __init__(self, deliver: Deliver, replies: dict[str, tuple[Tensors, Usage]]) -> None:
        self._deliver, self._replies = deliver, replies

    def start(self, task: Task) -> None:
        """Answer at once."""
        tensors, usage = self._replies[task.kind]
        self._deliver(Reply(task.number, tensors, usage=usage))

    def resize(self, workers: int) -> None:
        """Do nothing."""

    def forget(self, key: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _OnServer(_Costed):
    """Does tensor tasks on the cores of the server."""

    def __init__(
        self,
        deliver: Deliver,
        replies: dict[str, tuple[Tensors, Usage]],
        timer: VirtualTimer,
        cores: Card,
    ) -> None:
        super().__init__(deliver, replies)
        self._timer, self._cores = timer, cores

    def start(self, task: Task) -> None:
        """Queue for the cores."""
        tensors, usage = self._replies[task.kind]
        reply = Reply(task.number, tensors, usage=usage)
        self._timer.at(self._cores.pass_through(usage.seconds), lambda: self._deliver(reply))


@lru_cache(maxsize=4096)
def _meta(num_bytes: int) -> Tensors:
    """Return tensors that have so many bytes and take none."""
    return {"t": torch.empty(num_bytes, dtype=torch.uint8, device="meta")}


class _Channel:
    """How far all groups have got with the rows of one layer and direction."""

    def __init__(self, groups: int) -> None:
        self._groups, self._arrived = groups, Counter[int]()
        self.complete = 0
        """The last epoch whose rows are all there."""

    def arrive(self, epoch: int) -> bool:
        """Note the rows of a group; return whether an epoch became complete."""
        self._arrived[epoch] += 1
        before = self.complete
        while self._arrived[self.complete + 1] == self._groups:
            self.complete += 1
            del self._arrived[self.complete]
        return self.complete > before


class _Server:
    """A graph server: real decisions, virtual time."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        plan, timer = cluster.plan, cluster.timer
        self._cluster, self._number, self._is_busy = cluster, number, False
        self.out, self.into = Card(timer, plan.card_bytes), Card(timer, plan.card_bytes)
        self.cores = Card(timer, plan.cores)
        self.use = PoolUse(plan.cloud.billing_seconds if plan.cloud else 0.001)
        self._finished: Counter[int] = Counter()
        self._numbers = 0
        self._constants: dict[tuple[str, int], Bundle] = {}
        self._weights: dict[str, Bundle] = {}
        self.runner = self._open()
        self.scheduler = Scheduler(
            list(range(plan.intervals)),
            self.runner,
            Hooks(begin=self._begin, finish=self._finish, ready=self._ready),
            staleness=plan.staleness,
            overlap=plan.overlap,
        )

    def _open(self) -> Runner:
        plan, timer, replies = self._cluster.plan, self._cluster.timer, self._cluster.replies
        tuner, workers = None, plan.workers or plan.intervals
        if plan.cloud is not None and plan.workers is None:
            tuner = Autotuner(intervals=plan.intervals)
            workers = tuner.wanted

        def on_server(deliver: Deliver) -> Pool:
            return _OnServer(deliver, replies, timer, self.cores)

        def make_pool(deliver: Deliver) -> Pool:
            if plan.cloud is None:
                return on_server(deliver)
            pool = SimulatedPool(
                self._noting_failures(self.use.counting(deliver)),
                model=plan.cloud,
                workers=workers,
                seed=plan.seed + self._number,
                make_inner=lambda told: _Costed(told, replies),
                timer=timer,
                links=Links(
                    self.out, self.into, self.cores, plan.serving_per_byte, plan.serving_per_task
                ),
            )
            self.use.paid = lambda: (pool.bill.requests, pool.bill.seconds)
            return pool

        dispatcher = Dispatcher(
            make_pool,
            self._take,
            say=self._cluster.say,
            policy=RetryPolicy(),
            make_local=on_server,
            clock=timer.now,
        )
        return Runner(dispatcher, self.use, tuner, clock=timer.now)

    def _noting_failures(self, deliver: Deliver) -> Deliver:
        def take(reply: Reply) -> None:
            deliver(reply)
            if reply.failure:  # nobody is told of it before the next look
                timer = self._cluster.timer
                timer.at(timer.now() + _TUNED_TICK_SECONDS, self._look)

        return take

    def watch(self) -> None:
        """Look after tasks that take too long, again and again."""
        self._look()
        longest = _TICK_SECONDS if self.runner.tuner is None else _TUNED_TICK_SECONDS
        timer = self._cluster.timer
        timer.at(timer.now() + longest, self.watch)

    def _look(self) -> None:
        self.runner.tick()
        self.wake()

    def wake(self) -> None:
        """Start what may start, and one graph task if none is under way."""
        if self._is_busy:
            return
        cluster = self._cluster
        self.scheduler.start(cluster.version, cluster.horizon)
        chosen = self.scheduler.next_graph_task()
        if chosen is None:
            return
        interval, wait = chosen
        self._is_busy = True
        done = self.cores.pass_through(cluster.gathers[wait.direction, wait.layer])
        cluster.timer.at(done, lambda: self._gathered(interval))

    def _gathered(self, interval: int) -> None:
        self._is_busy = False
        self.scheduler.resume(interval, {})
        self.wake()

    def _take(self, reply: Reply) -> None:
        interval = self.scheduler.answered(reply.number)
        if interval is None:
            return
        if reply.failure:
            raise PoolError(
                "A simulated task can't be done.", seen=reply.failure, fix="give workers memory"
            )
        self.scheduler.resume(interval, reply.tensors)
        self.wake()

    def _begin(self, interval: int, epoch: int) -> Generator[Wait, Tensors, None]:
        for work in self._cluster.script:
            if isinstance(work, TensorWork):
                yield AwaitTask(self._task(work, interval))
            else:
                self._cluster.send(self, work, epoch)
                yield AwaitRows(work.direction, work.layer)

    def _task(self, work: TensorWork, interval: int) -> Task:
        bundles = [Bundle("once", _meta(work.sent_bytes), "once")]
        for name, num_bytes in work.constants:
            if (name, interval) not in self._constants:
                key = f"{name}/{interval}"
                self._constants[name, interval] = Bundle(key, _meta(num_bytes), "run")
            bundles.append(self._constants[name, interval])
        if work.weight_bytes:
            bundles.append(self._weights[work.kind])
        self._numbers += 1
        return Task(self._numbers, "", work.kind, {}, tuple(bundles))

    def publish(self, version: int) -> None:
        """Take in new weights; those that nobody uses any more are let go of."""
        for work in self._cluster.script:
            if isinstance(work, TensorWork) and work.weight_bytes:
                key = f"w/{version}/{work.kind}"
                self._weights[work.kind] = Bundle(key, _meta(work.weight_bytes), "version")
                self.runner.forget(f"w/{version - self.scheduler.staleness - 2}/{work.kind}")

    def _finish(self, interval: int, epoch: int) -> None:
        self._finished[epoch] += 1
        if self._finished[epoch] == self._cluster.plan.intervals:
            del self._finished[epoch]
            self._cluster.give(self)

    def _ready(self, epoch: int, wait: AwaitRows, intervals: list[int]) -> list[int]:
        plan = self._cluster.plan
        complete = self._cluster.channels[wait.direction, wait.layer].complete
        return intervals if complete >= max(1, epoch - plan.staleness - plan.latest) else []


class Cluster:
    """Servers in virtual time; `run` takes them through epochs."""

    def __init__(
        self, plan: ClusterPlan, script: Script, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.plan, self.script, self.say, self.timer = plan, script, say, VirtualTimer()
        self.version = self.horizon = self._given = 0
        graph = [work for work in script if isinstance(work, GraphWork)]
        groups = plan.servers * plan.intervals
        self.channels = {(work.direction, work.layer): _Channel(groups) for work in graph}
        self.gathers = {(work.direction, work.layer): work.core_seconds for work in graph}
        self.replies = {
            work.kind: (_meta(work.received_bytes), Usage(seconds=work.core_seconds))
            for work in script
            if isinstance(work, TensorWork)
        }
        self._ends: list[float] = [0.0]
        self._notes: list[tuple[float, ...]] = []
        self.servers = [_Server(self, number) for number in range(plan.servers)]

    def run(self, epochs: int, *, skipped: int = 1) -> ClusterRun:
        """Return what an epoch takes, of all but the first ones."""
        assert 0 < skipped < epochs, "an epoch is left to be timed"
        self.horizon = epochs
        self._note()
        for server in self.servers:
            server.publish(0)
            server.watch()
        self.timer.run(lambda: self.version == epochs)
        return self._told(epochs, skipped)

    def send(self, sender: _Server, work: GraphWork, epoch: int) -> None:
        """Have an interval's rows arrive everywhere."""
        channel = self.channels[work.direction, work.layer]
        done, others = self.timer.now(), self.plan.servers - 1
        if work.sent_bytes and others:
            done = max(done, sender.out.pass_through(work.sent_bytes))
            for server in self.servers:
                if server is not sender:
                    done = max(done, server.into.pass_through(work.sent_bytes / others))
            done += self.plan.message_seconds

        def arrive() -> None:
            if channel.arrive(epoch):
                for server in self.servers:
                    server.wake()

        self.timer.at(done, arrive)

    def give(self, server: _Server) -> None:
        """Take in a server's gradients; the last one's are followed by the optimiser's step."""
        share = 2 * (self.plan.servers - 1) / self.plan.servers
        done = server.out.pass_through(share * self.plan.weight_bytes)
        self.timer.at(done + self.plan.message_seconds, self._gave)

    def _gave(self) -> None:
        self._given += 1
        if self._given % self.plan.servers == 0:
            self.timer.at(self.timer.now() + self.plan.step_seconds, self._step)

    def _step(self) -> None:
        self.version += 1
        self._ends.append(self.timer.now())
        self._note()
        for server in self.servers:
            server.publish(self.version)
        for server in self.servers:
            server.wake()

    def _note(self) -> None:
        uses = [server.use for server in self.servers]
        paid = [use.totals() for use in uses]
        self._notes.append(
            (
                float(sum(requests for requests, _ in paid)),
                sum(seconds for _, seconds in paid),
                float(sum(use.sent_bytes for use in uses)),
                float(sum(use.received_bytes for use in uses)),
                sum(server.cores.busy_seconds for server in self.servers),
                sum(server.out.busy_seconds for server in self.servers),
            )
        )

    def _told(self, epochs: int, skipped: int) -> ClusterRun:
        seconds, timed = self._ends[-1] - self._ends[skipped], epochs - skipped
        first, last = self._notes[skipped], self._notes[-1]
        each = [(b - a) / timed for a, b in zip(first, last, strict=True)]
        requests, billed, sent, received, cores, card = each
        counters = Counter[str]()
        for server in self.servers:
            found = server.runner.dispatcher.counters
            for name in ("relaunched", "duplicates", "failures", "rescued"):
                counters[name] += getattr(found, name)
        count = self.plan.servers
        return ClusterRun(
            epoch_seconds=seconds / timed,
            first_seconds=self._ends[1],
            requests=requests,
            billed_seconds=billed,
            sent_bytes=sent,
            received_bytes=received,
            workers=sum(s.runner.dispatcher.workers for s in self.servers) / count,
            core_share=cores / (count * seconds / timed),
            card_share=card / (count * seconds / timed),
            counters=dict(counters),
            num_events=self.timer.num_events,
        )
