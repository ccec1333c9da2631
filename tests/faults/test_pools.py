"""Worker processes that are killed, hang or can't start, and an owner that is killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from siafu.elastic.dispatch import Dispatcher
from siafu.elastic.pools import process as worker_process
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.pools.process import ProcessPool
from siafu.elastic.task import Bundle
from siafu.errors import PoolError
from tests.unit.elastic.pings import ANSWERS_WITHIN, Replies, once, ping, wait_until

OWNER = """
import time
import torch
from siafu.elastic.pools.process import ProcessPool
from siafu.elastic.task import Bundle
from tests.unit.elastic.pings import Replies, ping
replies = Replies()
pool = ProcessPool(replies.deliver, workers=1, deadline_seconds=30)
pool.start(ping(0, Bundle("kept", {"w": torch.ones(1000)}, "run")))
assert replies.next().failure == ""
print(*pool.process_ids, flush=True)
time.sleep(600)
"""


@pytest.fixture
def replies() -> Replies:
    return Replies()


@pytest.fixture
def pool(replies: Replies) -> Iterator[ProcessPool]:
    """One worker, ready, that is taken for hung after a short while."""
    before = threading.active_count()
    pool = ProcessPool(replies.deliver, workers=1, deadline_seconds=2)
    pool.start(ping(0, once(0)))
    assert replies.next().failure == ""
    yield pool
    pool.close()
    assert threading.active_count() == before


def ended(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_killed_and_hung_workers_fail_their_task_and_are_replaced(
    pool: ProcessPool, replies: Replies
) -> None:
    (first,) = pool.process_ids
    os.kill(first, signal.SIGSTOP)
    pool.start(ping(1, once(1)))
    pool.start(ping(2, once(2)))
    wait_until(lambda: len(pool._queue) == 1, "the first to be taken")
    os.kill(first, signal.SIGKILL)
    reply = replies.next()
    assert (reply.number, reply.is_final) == (1, False)
    assert "died" in reply.failure
    assert replies.next().failure == "", "the other waits for the next worker"
    (second,) = pool.process_ids
    assert second != first
    os.kill(second, signal.SIGSTOP)
    pool.start(ping(3, once(3)))
    assert "hung" in replies.next().failure
    wait_until(lambda: ended(second), "the hung worker to end")


def test_an_idle_worker_that_is_killed_costs_no_task_and_a_busy_one_ends_on_close(
    pool: ProcessPool, replies: Replies
) -> None:
    (first,) = pool.process_ids
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: pool.process_ids not in ([], [first]), "another worker")
    pool.start(ping(1, once(1)))
    assert replies.next().failure == ""
    (second,) = pool.process_ids
    os.kill(second, signal.SIGSTOP)
    pool.start(ping(2, once(2)))
    pool.start(ping(3, once(3)))
    wait_until(lambda: len(pool._queue) == 1, "the first to be taken")
    pool.close()
    assert ended(second)
    assert replies.is_empty
    with pytest.raises(PoolError, match="closed"):
        pool.start(ping(4, once(4)))


def test_a_dispatcher_answers_every_task_though_workers_are_killed() -> None:
    replies, said = Replies(), list[str]()
    pools: list[ProcessPool] = []

    def make_pool(deliver: Deliver) -> ProcessPool:
        pools.append(ProcessPool(deliver, workers=2, deadline_seconds=30))
        return pools[0]

    dispatcher = Dispatcher(make_pool, replies.deliver, say=said.append)
    (pool,) = pools
    wait_until(lambda: len(pool.process_ids) == 2, "two workers")
    victim = pool.process_ids[0]
    weights = Bundle("weights", {"w": torch.ones(1000)}, "run")
    for number in range(400):
        dispatcher.start(ping(number, weights, once(number)))
        if number == 200:
            os.kill(victim, signal.SIGKILL)
    wait_until(lambda: dispatcher.tick() >= 0 and not dispatcher.outstanding, "all answers")
    dispatcher.close()
    answers = replies.many(400)
    assert replies.is_empty
    assert all(answers[number].tensors["out_x"][0] == number for number in range(400))
    assert all(answer.tensors["out_w"].sum() == 1000 for answer in answers.values())
    assert not said


def test_workers_that_cannot_start_leave_failures(
    replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process.sys, "executable", "/bin/false")
    pool = ProcessPool(replies.deliver, workers=2, deadline_seconds=5)
    for number in range(3):
        pool.start(ping(number, once(number)))
    assert all("kept dying" in answer.failure for answer in replies.many(3).values())
    assert pool.workers == 0
    pool.start(ping(3, once(3)))
    assert "kept dying" in replies.next().failure
    pool.close()


def test_a_worker_ends_with_an_owner_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (owner.pid, worker)]
        # Now it reads nothing, and can't see its pipe end.
        os.kill(worker, signal.SIGSTOP)
        owner.kill()
        owner.wait(ANSWERS_WITHIN)
    wait_until(lambda: ended(worker), "the worker to end")
    assert not any("/dev/shm" in text for text in maps), "memory with a name would stay behind"
