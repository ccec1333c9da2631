"""Ranks that make a folder together, over the store they met in.

The first rank leaves a note for each task; ranks draw items of it, one after another, and leave a
note for each that is done. All of them count up, now and then, as long as they are alive: work may
take hours, so what is waited for is that the others are there, not that they have ended.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from siafu import errors
from siafu.comm.overdue import translated
from siafu.comm.world import World
from siafu.errors import CommError, SiafuError, StoreError
from siafu.graph.array_stream import Array
from siafu.graph.crew import Crew, Help, Told
from siafu.ops.threads import in_order

_BEAT_SECONDS = 2.0
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.05
_END, _SEE = "end", "see a folder"
_SEEN_SECONDS = 10.0
"""Until a file made on one host is seen on another."""
_AGAIN = "see what that rank said; run the same command again, which goes on where it was"


class RankCrew(Crew):
    """The crew of all ranks of a world; a context, which others than rank 0 spend in `serve`."""

    def __init__(self, world: World) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self._store = PrefixStore("crew", world.store)
        self._tasks = 0
        self._stop = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._seen = dict[int, tuple[int, float]]()

    def __enter__(self) -> Self:
        self._beating.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.rank == 0:
            with suppress(RuntimeError):  # the store is gone: then so are the others
                self._note(str(self._tasks), {"task": _END})
        self._stop.set()
        self._beating.join()

    def share(
        self, task: str, work: Help, told: Told, items: Sequence[Any], *, at_once: int = 1
    ) -> Iterator[Any]:
        """Yield what comes of each item, in order, drawn by all ranks; see `Crew`."""
        number = self._begin({"task": task, "told": told, "items": items, "at_once": at_once})
        mine = threading.Thread(
            target=self._draw, args=(number, lambda item: work(told, item), items, at_once)
        )
        mine.start()
        try:
            for item in range(len(items)):
                yield self._answer(f"{number}/{item}")
        finally:
            self._store.add(f"{number}/next", len(items))  # nobody begins another one
            mine.join()

    def check_sees(self, folder: Path) -> None:
        """Raise unless all ranks see the same folder there."""
        file = folder.absolute() / f"seen-{secrets.token_hex(8)}"
        file.touch()
        try:
            with self.together(_SEE, {"file": str(file)}):
                pass
        finally:
            file.unlink(missing_ok=True)

    @contextmanager
    def together(self, task: str, told: Told) -> Iterator[None]:
        """Have all ranks do the task at the same time as what is inside."""
        number = self._begin({"task": task, "told": told})
        try:
            yield
        except CommError:  # of a rank that ended: its own error tells more
            for rank in range(1, self.size):
                if self._store.check([f"{number}/{rank}"]):
                    self._answer(f"{number}/{rank}")
            raise
        for rank in range(1, self.size):
            self._answer(f"{number}/{rank}")

    def joined(self, mine: Array) -> Array:
        """Return the arrays of all ranks one after another."""
        counts = [int(row[0]) for row in self.world.gather_numbers([float(len(mine))], "crew")]
        starts = np.concatenate([[0], np.cumsum(counts)])
        whole = np.zeros((starts[-1], *mine.shape[1:]), mine.dtype)
        whole[starts[self.rank] : starts[self.rank + 1]] = mine
        return self.added(whole)

    def added(self, mine: Array) -> Array:
        """Return the sum of the arrays of all ranks."""
        tensor = torch.from_numpy(np.ascontiguousarray(mine))
        return self.world.sum_in_place(tensor, "crew").numpy()

    def serve(self, helps: Mapping[str, Help]) -> None:
        """Do what rank 0 tells until it has no more to do."""
        helps = {**helps, _SEE: _see}
        while (asked := self._read(str(self._tasks), [0]))["task"] != _END:
            number, work, told = self._tasks, helps[asked["task"]], asked["told"]
            self._tasks += 1
            if "items" not in asked:
                with self._answering(f"{number}/{self.rank}") as answers:
                    answers.append(work(told, None))
                continue

            def do(item: Any, work: Help = work, told: Told = told) -> Any:
                return work(told, item)

            self._draw(number, do, asked["items"], asked["at_once"])

    def _begin(self, asked: Told) -> int:
        number = self._tasks
        self._note(str(number), asked)
        self._tasks += 1
        return number

    def _draw(
        self, number: int, work: Callable[[Any], Any], items: Sequence[Any], at_once: int
    ) -> None:
        """Do items that nobody has begun until there are none."""

        def drawn() -> Iterator[int]:
            while (item := self._store.add(f"{number}/next", 1) - 1) < len(items):
                yield item

        def do(item: int) -> None:
            with self._answering(f"{number}/{item}") as answers:
                answers.append(work(items[item]))

        with suppress(Exception) if self.rank == 0 else _raising():  # rank 0 reads its own answer
            for _ in in_order(do, drawn(), ahead=at_once):
                pass

    @contextmanager
    def _answering(self, key: str) -> Iterator[list[Any]]:
        """Note the answer, or the error, for rank 0."""
        answers = list[Any]()
        try:
            yield answers
        except BaseException as error:
            self._note(key, {"error": _told_error(error, self.world.named(self.rank))})
            raise
        self._note(key, {"answer": answers[0]})

    def _answer(self, key: str) -> Any:
        found = self._read(key, range(self.size))
        if "error" in found:
            raise _as_error(found["error"])
        return found["answer"]

    def _note(self, key: str, value: Told) -> None:
        with translated(f"{self.world.named(self.rank)} telling others", self._deadline):
            self._store.set(key, json.dumps(value, default=list))

    def _read(self, key: str, of: Sequence[int]) -> Told:
        """Return what is noted there, once it is, as long as these ranks are alive."""
        poll, looked = _SHORTEST_POLL, time.monotonic()
        what = f"{self.world.named(self.rank)} waiting for work of others"
        with translated(what, self._deadline):
            while not self._store.check([key]):
                time.sleep(poll)
                poll = min(2 * poll, _LONGEST_POLL)
                if time.monotonic() - looked > _BEAT_SECONDS:
                    looked = time.monotonic()
                    self._check_alive(of)
            found: Told = json.loads(self._store.get(key))
            return found

    @property
    def _deadline(self) -> float:
        return self.world.deadline_seconds

    def _check_alive(self, ranks: Sequence[int]) -> None:
        now = time.monotonic()
        for rank in ranks:
            beat = self._store.add(f"beat/{rank}", 0)
            if self._seen.get(rank, (-1, now))[0] != beat:
                self._seen[rank] = (beat, now)
            elif now - self._seen[rank][1] > self._deadline:
                raise CommError(
                    "A rank that shares the work is gone, or stands still.",
                    seen=f"{self.world.named(rank)} has not been heard of for "
                    f"{now - self._seen[rank][1]:.0f} s",
                    fix=_AGAIN,
                )

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone: who waits is told so
            while not self._stop.wait(_BEAT_SECONDS):
                self._store.add(f"beat/{self.rank}", 1)


def _see(told: Told, _: Any) -> None:
    file = Path(told["file"])
    latest = time.monotonic() + _SEEN_SECONDS
    while not file.exists():
        if time.monotonic() > latest:
            raise StoreError(
                "A rank does not see the folder that all ranks are to write to.",
                seen=f"{file.parent} of rank 0",
                fix="name a target on a disk that all hosts share, or start all ranks on one host",
            )
        time.sleep(_LONGEST_POLL)


@contextmanager
def _raising() -> Iterator[None]:
    yield


def _told_error(error: BaseException, who: str) -> list[Any]:
    if isinstance(error, SiafuError):
        return [type(error).__name__, error.problem, f"{error.seen} ({who})", error.fix]
    if isinstance(error, OSError):
        return ["OSError", error.errno, f"{error.strerror or error} ({who})"]
    return ["CommError", "A rank that shares the work failed.", f"{who}: {error!r}", _AGAIN]


def _as_error(told: list[Any]) -> Exception:
    kind, *what = told
    if kind == "OSError":
        return OSError(*what)
    made: Exception = getattr(errors, kind, CommError)(what[0], seen=what[1], fix=what[2])
    return made
