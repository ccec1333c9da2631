"""Starting ranks on the nodes of a Ray cluster, and ending them together.

Ray places the ranks, starts them and sees nodes die; what ranks say to each other goes past it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from siafu.comm import SOCKET_VARIABLE
from siafu.config import RunConfig, read_run_config
from siafu.elastic.pools.ray import RayConnection
from siafu.errors import NoRoomError, PoolError, RankError, SiafuError, StoreError, Terminated
from siafu.files import is_url
from siafu.launch import ray_rank
from siafu.launch.local import RankFailure, first_error
from siafu.launch.rank import Job
from siafu.launch.ray_rank import RayRank
from siafu.record import RunFolder

_POLL_SECONDS = 1.0
"""How long an actor waits for news before it says that there are none."""
_SILENCE_SECONDS = 30.0
"""An actor that says nothing for so long is lost with its node."""
_GRACE_SECONDS = 5.0
"""After a rank lost its peer, time to learn of the peer; twice as long ends it all."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor found itself."""

    node: str
    address: str
    num_cores: int
    gpus: list[str]
    problem: str
    """What this node lacks to run the rank; nothing if all is there."""


@dataclass(frozen=True, slots=True)
class News:
    """What a rank said and did since it was last asked."""

    output: str = ""
    exit_code: int | None = None
    """None while it runs; negative for a signal."""
    failures: list[str] = field(default_factory=list)
    """What it told of its failure, each one JSON object."""


def run_ranks_on_ray(config: RunConfig, run: Path, job: str, variables: dict[str, str]) -> None:
    """Run every rank of a job in an actor of its own; raise the first failure at the end.

    Returns, or raises, when no rank runs any more. `variables` are added to their environment.
    """
    ray.cloudpickle.register_pickle_by_value(ray_rank)
    address = None if config.ray_address == "local" else config.ray_address
    with _own_signals():
        connection = RayConnection(
            address,
            deadline_seconds=config.deadline,
            num_cpus=config.ranks * max(1, config.threads),
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _interrupt)
        ranks = _Ranks(config, run.absolute())
        try:
            ranks.place()
            ranks.start(job, variables)
            ranks.watch()
        finally:
            ranks.close()
            connection.close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Put back the caller's signal handlers, which Ray replaces for good."""
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in before.items():
                signal.signal(name, handler)


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise Terminated


class _Ranks:
    """The actors of a run."""

    def __init__(self, config: RunConfig, run: Path) -> None:
        self._config, self._run = config, run
        self._again = f"go on with `siafu train --resume {run}`"
        self._group: Any = None
        self._actors: list[Any] = []
        self._places: list[Place] = []
        self._failures: list[RankFailure] = []
        self._ended: dict[int, int] = {}
        """Exit codes of ranks that failed, the first first."""
        self._lost: dict[int, str] = {}

    def place(self) -> None:
        """Reserve cores for each rank, spread over the nodes, and put an actor there."""
        needs = {"CPU": float(max(1, self._config.threads))}
        if self._config.device == "cuda":
            needs["GPU"] = 1.0
        self._check_size(needs)
        self._group = placement_group([needs] * self._config.ranks, strategy="SPREAD")
        if not self._group.wait(self._config.deadline):
            raise PoolError(
                "The Ray cluster has no room for the ranks.",
                seen=f"waited {self._config.deadline:g} s for {self._config.ranks} times {needs}; "
                f"free now: {ray.available_resources()}",
                fix="wait for others to end, add nodes, or raise --deadline",
            )
        actor = ray.remote(max_restarts=0, max_task_retries=0)(RayRank)
        for rank in range(self._config.ranks):
            at = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
            self._actors.append(actor.options(scheduling_strategy=at, **options).remote())

    def _check_size(self, needs: dict[str, float]) -> None:
        """Raise at once where even an idle cluster would be too small."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(int(min(n.get(name, 0) // much for name, much in needs.items())) for n in nodes)
        if room < self._config.ranks:
            raise NoRoomError(
                "The Ray cluster is too small for the ranks.",
                seen=f"{self._config.ranks} ranks of {needs}; its {len(nodes)} nodes hold {room}",
                fix=f"use --ranks {room}, or add nodes" if room else "add nodes, or ask for less",
                room=room,
            )

    def start(self, job: str, variables: dict[str, str]) -> None:
        """Have each actor tell what its node sees, and start its rank."""
        self._look(job)
        first = self._places[0].address
        port = self._ask(self._actors[0].listen.remote(first))
        local_sizes = Counter(place.node for place in self._places)
        seen: Counter[str] = Counter()
        started, settings = [], json.dumps(read_run_config(RunFolder(self._run).config))
        for rank, (actor, place) in enumerate(zip(self._actors, self._places, strict=True)):
            here = local_sizes[place.node]
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(seen[place.node]),
                "WORLD_SIZE": str(self._config.ranks),
                "LOCAL_WORLD_SIZE": str(here),
                "MASTER_ADDR": first,
                "MASTER_PORT": str(port),
                SOCKET_VARIABLE: "of rank 0",
                "OMP_NUM_THREADS": str(self._config.threads or max(1, place.num_cores // here)),
            }
            if place.gpus:
                # All GPUs of the node's ranks, in their order: a rank takes that of its local rank.
                same = [gpu for p in self._places if p.node == place.node for gpu in p.gpus]
                own["CUDA_VISIBLE_DEVICES"] = ",".join(same)
            seen[place.node] += 1
            arguments = [str(self._run), job, settings]
            call = actor.start.remote(arguments, variables | own, place.address, os.getcwd())
            started.append(call)
        self._ask(started)

    def _look(self, job: str) -> None:
        """Note where actors are; those that see the run's files come first: rank 0 has to."""
        folder, parts = RunFolder(self._run), Job.from_text(job).parts
        files: dict[str, str | None] = {str(folder.config): folder.config.read_text()}
        if not is_url(parts):
            files[parts] = None
        answers = self._ask([actor.look.remote(files) for actor in self._actors])
        found = [
            (Place(**answer), actor) for answer, actor in zip(answers, self._actors, strict=True)
        ]
        found.sort(key=lambda pair: bool(pair[0].problem))
        self._places, self._actors = [place for place, _ in found], [actor for _, actor in found]
        if first := self._places[0].problem:
            raise StoreError(
                "No Ray node that has a rank sees the files of the run.",
                seen=f"on {self._places[0].address}: {first}",
                fix="start the command on a node that has room for a rank, or put --out and the "
                "data on a file system that nodes share",
            )

    def _ask(self, calls: Any) -> Any:
        """Return the answers of actors; raise where one can't be had."""
        try:
            return ray.get(calls, timeout=self._config.deadline)
        except (RayError, GetTimeoutError) as error:
            raise RankError(
                "A rank could not be started on Ray.",
                seen=f"{type(error).__name__}: {str(error).strip()}",
                fix="see `ray status` and the log of that node",
            ) from error

    def watch(self) -> None:
        """Show what ranks say until all have ended well; raise the first failure."""
        calls = {actor.poll.remote(_POLL_SECONDS): rank for rank, actor in enumerate(self._actors)}
        asked = dict.fromkeys(range(len(self._actors)), time.monotonic())
        failed_at = float("inf")
        while calls and not self._knows_cause():
            done, _ = ray.wait(list(calls), num_returns=1, timeout=_POLL_SECONDS)
            for call in done:
                rank = calls.pop(call)
                if self._hear(rank, call):
                    calls[self._actors[rank].poll.remote(_POLL_SECONDS)] = rank
                    asked[rank] = time.monotonic()
            now = time.monotonic()
            if self._ended:
                failed_at = min(failed_at, now)
            patience = _GRACE_SECONDS if failed_at <= now else _SILENCE_SECONDS
            for rank in calls.values():
                if now - asked[rank] > patience:
                    self._lost[rank] = f"its actor has not answered for {now - asked[rank]:.0f} s"
            if now - failed_at > 2 * _GRACE_SECONDS:
                break
        if self._ended or self._lost:
            raise self._first_error()

    def _knows_cause(self) -> bool:
        """Return whether a rank failed by itself; one that only lost a peer may speak first."""
        told = {failure.rank for failure in self._failures}
        is_own = any(failure.kind != "CommError" for failure in self._failures)
        return bool(self._lost) or is_own or bool(self._ended.keys() - told)

    def _hear(self, rank: int, call: Any) -> bool:
        """Take in the news of a rank and return whether it goes on."""
        try:
            news = News(**ray.get(call, timeout=_SILENCE_SECONDS))
        except (RayError, GetTimeoutError) as error:
            self._lost[rank] = " ".join(str(error).split())
            return False
        if news.output:
            sys.stderr.write(news.output)
            sys.stderr.flush()
        if news.exit_code:
            self._ended[rank] = news.exit_code
            self._failures += [RankFailure(**json.loads(text)) for text in news.failures]
        return news.exit_code is None

    def _first_error(self) -> SiafuError:
        if not self._lost:
            return first_error(self._failures, self._ended, again=self._again)
        rank, reason = next(iter(self._lost.items()))
        where = self._places[rank].address
        return RankError(
            f"Rank {rank} was lost; the others were stopped.",
            seen=f"on {where}: {reason}",
            fix=f"see `ray status` for nodes that died, then {self._again}",
            is_lost=True,
            lost=list(self._lost),
        )

    def close(self) -> None:
        """End every rank and its actor, and give the cores back."""
        stops = [actor.stop.remote() for actor in self._actors]
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=_GRACE_SECONDS)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            remove_placement_group(self._group)
