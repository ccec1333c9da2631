"""Worker processes that share memory with their owner."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from siafu.elastic.pools.process import ProcessPool
from siafu.elastic.pools.shared_memory import map_block, write_block
from siafu.elastic.task import Bundle
from siafu.errors import PoolError, TaskError
from tests.unit.elastic.pings import Replies, once, ping, wait_until

TENSORS = {
    "plain": torch.randn(5, 3),
    "turned": torch.randn(4, 7).T,
    "number": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0, 3),
    "flags": torch.tensor([True, False, True]),
    "half": torch.randn(3).to(torch.bfloat16),
    "ids": torch.tensor([2**40, -1]),
    "grown": torch.randn(2, requires_grad=True),
}


@pytest.fixture(scope="module")
def replies() -> Replies:
    return Replies()


@pytest.fixture(scope="module")
def pool(replies: Replies) -> Iterator[ProcessPool]:
    """Two workers, both started."""
    before = threading.active_count()
    pool = ProcessPool(replies.deliver, workers=2, deadline_seconds=30)
    wait_until(lambda: len(pool.process_ids) == 2, "two workers")
    yield pool
    pool.close()
    assert threading.active_count() == before
    assert blocks_of("self") == 0


def blocks_of(process: int | str) -> int:
    """Return how many blocks a process has mapped or holds a descriptor of."""
    maps = Path(f"/proc/{process}/maps").read_text()
    held = [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir() if entry.exists()]
    return maps.count("siafu-block") + sum("siafu-block" in name for name in held)


def test_a_block_keeps_every_kind_of_tensor() -> None:
    block = write_block(TENSORS)
    tensors = map_block(block.descriptor, block.layout)
    block.close()
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        name: tensor.dtype for name, tensor in TENSORS.items()
    }
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    del tensors
    assert not map_block_is_held()


def map_block_is_held() -> bool:
    return "siafu-block" in Path("/proc/self/maps").read_text()


def test_writing_to_a_mapped_block_changes_no_other_mapping() -> None:
    block = write_block({"x": torch.zeros(3)})
    first, second = (map_block(block.descriptor, block.layout)["x"] for _ in range(2))
    block.close()
    first += 1
    assert second.sum() == 0


def test_a_sparse_tensor_is_refused_by_name() -> None:
    with pytest.raises(TaskError, match="links"):
        write_block({"links": torch.eye(2).to_sparse()})


def test_results_equal_what_was_sent(pool: ProcessPool, replies: Replies) -> None:
    pool.start(ping(1, Bundle("all", TENSORS, "once")))
    reply = replies.next()
    assert reply.failure == ""
    assert all(torch.equal(reply.tensors[f"out_{name}"], TENSORS[name]) for name in TENSORS)
    assert reply.usage.received_bytes == sum(tensor.nbytes for tensor in TENSORS.values())
    assert reply.usage.worker.startswith("process")
    assert reply.usage.started > 0
    assert reply.usage.seconds > 0


def test_every_task_is_answered_with_its_own_tensors(pool: ProcessPool, replies: Replies) -> None:
    for number in range(100):
        pool.start(ping(number, once(number)))
    answers = replies.many(100)
    assert all(answers[number].tensors["out_x"][0] == number for number in range(100))
    assert {answer.usage.worker for answer in answers.values()} == {"process 0", "process 1"}


def test_a_kept_bundle_reaches_each_worker_once(pool: ProcessPool, replies: Replies) -> None:
    weights = Bundle("weights", {"w": torch.randn(1000)}, "version")
    for number in range(40):
        pool.start(ping(number, weights, once(number)))
    answers = replies.many(40).values()
    assert all(torch.equal(a.tensors["out_w"], weights.tensors["w"]) for a in answers)
    with_weights = [a.usage.worker for a in answers if a.usage.sent_bytes > weights.num_bytes]
    assert len(with_weights) == len(set(with_weights)) <= 2
    pool.forget("weights")


def test_a_forgotten_bundle_is_freed_everywhere(pool: ProcessPool, replies: Replies) -> None:
    bundles = [Bundle(f"kept {n}", {f"w{n}": torch.randn(100)}, "run") for n in range(3)]
    for number in range(20):
        pool.start(ping(number, *bundles))
    assert all(answer.failure == "" for answer in replies.many(20).values())
    assert blocks_of("self") == 3
    assert any(blocks_of(process) == 3 for process in pool.process_ids)
    for bundle in bundles:
        pool.forget(bundle.key)
    assert blocks_of("self") == 0
    wait_until(lambda: not any(map(blocks_of, pool.process_ids)), "workers to forget")


def test_an_attempt_that_waits_may_name_a_forgotten_bundle(
    pool: ProcessPool, replies: Replies
) -> None:
    weights = Bundle("late", {"w": torch.ones(3)}, "version")
    for process in pool.process_ids:
        os.kill(process, signal.SIGSTOP)
    for number in range(5):
        pool.start(ping(number, weights))
    pool.forget("late")
    for process in pool.process_ids:
        os.kill(process, signal.SIGCONT)
    assert all(answer.tensors["out_w"].sum() == 3 for answer in replies.many(5).values())
    wait_until(lambda: blocks_of("self") == 0, "the bundle to go")
    wait_until(lambda: not any(map(blocks_of, pool.process_ids)), "workers to forget")


def test_a_task_that_is_wrong_fails_for_good(pool: ProcessPool, replies: Replies) -> None:
    pool.start(ping(1, once(1), code="nonsense"))
    reply = replies.next()
    assert reply.is_final
    assert "nonsense" in reply.failure


def test_a_tensor_that_cannot_travel_fails_for_good(pool: ProcessPool, replies: Replies) -> None:
    pool.start(ping(1, Bundle("odd", {"x": torch.eye(2).to_sparse()}, "once")))
    assert replies.next().is_final
    pool.start(ping(2, once(2)))
    assert replies.next().failure == ""


def test_a_retired_worker_finishes_its_task(pool: ProcessPool, replies: Replies) -> None:
    processes = pool.process_ids
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    pool.start(ping(1, once(1)))
    pool.start(ping(2, once(2)))
    wait_until(lambda: not pool._queue, "both to be taken")
    pool.resize(1)
    assert pool.workers == 1
    for process in processes:
        os.kill(process, signal.SIGCONT)
    assert [answer.failure for answer in replies.many(2).values()] == ["", ""]
    wait_until(lambda: not Path(f"/proc/{processes[1]}").exists(), "the retired worker to end")
    pool.start(ping(3, once(3)))
    assert replies.next().usage.worker == "process 0"
    pool.resize(2)
    assert pool.workers == 2, "the second still starts when the pool is closed"
    with pytest.raises(PoolError, match="needs workers"):
        pool.resize(0)
