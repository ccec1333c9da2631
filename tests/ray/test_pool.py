"""Tasks on a real Ray cluster: the same results, and an answer whatever dies."""

import queue
import threading
from collections.abc import Iterator

import pytest
import ray
import torch

from siafu.elastic.pools.ray import RayPool, pack, unpack
from siafu.elastic.task import Bundle, Reply, Task
from tests.ray.conftest import WITHIN_SECONDS, TwoNodes, kill_all, wait_until


class Answers:
    """A pool and the replies it delivers."""

    def __init__(self, address: str, deadline_seconds: float = WITHIN_SECONDS) -> None:
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.pool = RayPool(
            self.replies.put,
            workers=4,
            address=address,
            deadline_seconds=deadline_seconds,
        )

    def next(self) -> Reply:
        return self.replies.get(timeout=WITHIN_SECONDS)


@pytest.fixture
def answers(joined: TwoNodes) -> Iterator[Answers]:
    made = Answers(joined.address)
    yield made
    made.pool.close()
    assert made.replies.empty()
    assert "siafu-ray-pool" not in {thread.name for thread in threading.enumerate()}


def ping(number: int, *bundles: Bundle, code: str = "ping") -> Task:
    return Task(number, code, "test", {}, bundles)


def once(**tensors: torch.Tensor) -> Bundle:
    return Bundle("", tensors, "once")


def test_both_nodes_run_tasks_with_the_same_results(answers: Answers, joined: TwoNodes) -> None:
    rows = torch.randn(50_000, 8, generator=torch.Generator().manual_seed(0))
    kept = Bundle("x", {"x": rows, "half": rows[:3].bfloat16()}, "run")
    tasks = [ping(k, kept, once(number=torch.tensor([k]))) for k in range(24)]
    for task in tasks:
        answers.pool.start(task)
    replies = sorted((answers.next() for _ in tasks), key=lambda reply: reply.number)
    for task, reply in zip(tasks, replies, strict=True):
        assert not reply.failure
        for name, tensor in task.tensors().items():
            assert torch.equal(reply.tensors[f"out_{name}"], tensor)
            assert reply.tensors[f"out_{name}"].dtype == tensor.dtype
            reply.tensors[f"out_{name}"].zero_()  # the caller's own
    assert {reply.usage.worker.split("/")[0] for reply in replies} == {joined.head, joined.second}
    sent = sorted(reply.usage.sent_bytes for reply in replies)
    assert sent == [8] * 23 + [8 + kept.num_bytes], "kept tensors go once"
    assert {reply.usage.received_bytes for reply in replies} == {8 + kept.num_bytes}
    assert all(reply.usage.seconds > 0 and reply.usage.started > 1e9 for reply in replies)


def test_forgotten_bundle_travels_again(answers: Answers) -> None:
    version = Bundle("w", {"w": torch.ones(1000)}, "version")
    sent = []
    for number in range(3):
        answers.pool.start(ping(number, version))
        sent.append(answers.next().usage.sent_bytes)
        if number == 1:
            answers.pool.forget("w")
            answers.pool.forget("never named")
    assert sent == [version.num_bytes, 0, version.num_bytes]


def test_no_more_than_the_workers_run_at_once(answers: Answers) -> None:
    answers.pool.resize(0)
    answers.pool.start(ping(0, once(x=torch.ones(1))))
    assert not answers.pool._running
    answers.pool.resize(1)
    assert len(answers.pool._running) == 1
    assert answers.next().number == 0


def test_a_pool_leaves_the_cluster_to_whoever_joined(joined: TwoNodes) -> None:
    made = Answers(joined.address)
    made.pool.start(ping(0, once(x=torch.ones(1))))
    assert not made.next().failure
    made.pool.close()
    assert ray.is_initialized(), "whoever joined leaves"


def test_unknown_code_is_a_final_failure(answers: Answers) -> None:
    answers.pool.start(ping(0, once(x=torch.ones(1)), code="shell"))
    reply = answers.next()
    assert reply.is_final
    assert "unknown code" in reply.failure


def test_sparse_tensor_is_a_final_failure(answers: Answers) -> None:
    answers.pool.start(ping(0, once(x=torch.eye(2).to_sparse())))
    reply = answers.next()
    assert reply.is_final
    assert "dense" in reply.failure


def free_cores() -> float:
    return ray.available_resources().get("CPU", 0.0)


def tried_again(answers: Answers, dead: int) -> Reply:
    """Return the first success; Ray may still hold as many dead workers for alive."""
    for number in range(100, 101 + dead):
        answers.pool.start(ping(number, once(x=torch.ones(1))))
        reply = answers.next()
        assert not reply.is_final
        if not reply.failure:
            break
    return reply


def test_killed_worker_is_a_failure_that_may_be_tried_again(
    answers: Answers, joined: TwoNodes
) -> None:
    wait_until(lambda: free_cores() == 4, "earlier tasks to give their cores back")
    stopped = []
    for number in range(5):
        stopped += joined.stop_workers()
        answers.pool.start(ping(number, once(x=torch.ones(1))))
        wait_until(
            lambda: free_cores() == 3 or not answers.replies.empty(), "a worker to have the task"
        )
        if answers.replies.empty():
            break
        answers.next()  # of a worker that Ray has started since the others were halted
    kill_all(stopped)
    reply = answers.next()
    assert "died" in reply.failure
    assert not reply.is_final
    assert not tried_again(answers, len(stopped)).failure


def test_task_that_takes_too_long_is_a_failure(joined: TwoNodes) -> None:
    made = Answers(joined.address, deadline_seconds=0.0)
    made.pool.start(ping(0, once(x=torch.ones(1))))
    reply = made.next()
    assert "no answer from Ray within 0 s" in reply.failure
    assert not reply.is_final
    made.pool.close()


def test_killed_node_is_a_failure_and_the_other_goes_on(answers: Answers, joined: TwoNodes) -> None:
    for number in range(8):
        answers.pool.start(ping(number, once(x=torch.ones(1))))
    assert not any(answers.next().failure for _ in range(8))
    wait_until(lambda: free_cores() == 4, "earlier tasks to give their cores back")
    stopped = joined.stop_workers(second_only=True)
    for number in range(4):
        answers.pool.start(ping(number, once(x=torch.ones(1))))
    joined.kill_second()
    replies = [answers.next() for _ in range(4)]
    kill_all(stopped)
    # Which tasks were on that node is Ray's choice; none is left without an answer.
    assert not any(reply.is_final for reply in replies)
    reply = tried_again(answers, len(stopped))
    assert not reply.failure
    assert reply.usage.worker.startswith(joined.head)
    joined.replace_second()


def test_closing_drops_what_runs(joined: TwoNodes) -> None:
    stopped = joined.stop_workers()
    made = Answers(joined.address)
    for number in range(8):
        made.pool.start(ping(number, once(x=torch.ones(1))))
    made.pool.close()
    kill_all(stopped)
    assert made.replies.empty()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_packed_tensors_come_back_whole(dtype: torch.dtype) -> None:
    tensors = {
        "x": torch.tensor([[0.0, 1.0], [2.0, -1.0]]).to(dtype).T,
        "one": torch.ones(()).to(dtype),
    }
    back = unpack(pack(tensors))
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name].to(torch.complex64), tensor.to(torch.complex64))
