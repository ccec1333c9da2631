"""A cluster in virtual time: what is known by hand, what must never happen, and the same twice."""

from dataclasses import replace

import pytest

from siafu.elastic.pools.cloud import CloudModel
from siafu.pipeline.cluster import Cluster
from siafu.pipeline.cluster_plan import ClusterPlan, ClusterRun, GraphWork, TensorWork
from siafu.pipeline.scheduler import BACKWARD, FORWARD

SCRIPT = (
    TensorWork("forward 0", 0.1, 1_000, 500),
    GraphWork(FORWARD, 0, 0.2, 0),
    TensorWork("finish 1", 0.05, 500, 500),
    GraphWork(BACKWARD, 0, 0.2, 0),
    TensorWork("backward 0", 0.1, 1_500, 100),
)
CORE_SECONDS = 0.65
"""Of an interval's epoch."""
PLAN = ClusterPlan(servers=3, intervals=4, cores=2)


def run(plan: ClusterPlan, script: tuple[TensorWork | GraphWork, ...] = SCRIPT) -> ClusterRun:
    return Cluster(plan, script).run(5)


@pytest.mark.parametrize("overlap", [True, False])
def test_servers_alone_take_what_their_cores_take(overlap: bool) -> None:
    found = run(replace(PLAN, overlap=overlap))
    assert found.epoch_seconds == pytest.approx(4 * CORE_SECONDS / 2)
    assert found.core_share == pytest.approx(1)
    assert found.requests == 0


def test_workers_take_the_tensor_work_off_the_servers() -> None:
    found = run(replace(PLAN, cloud=CloudModel(), workers=4))
    # All four forward at once, then gathers one by one, and so on: no pipeline across barriers.
    gathers = 2 * 4 * 0.1
    assert gathers < found.epoch_seconds < gathers + 3 * 0.25 + 0.001
    assert found.requests == 3 * 4 * 3
    assert found.billed_seconds == pytest.approx(3 * 4 * 0.25)
    assert found.received_bytes == 3 * 4 * 1_100


def test_latency_is_hidden_by_a_pipeline_and_not_by_turns() -> None:
    far = CloudModel.ideal(latency_seconds=0.1)
    lags = replace(PLAN, cloud=far, workers=4, latest=True)
    near = run(replace(lags, cloud=CloudModel())).epoch_seconds
    piped, turns = run(lags).epoch_seconds, run(replace(lags, overlap=False)).epoch_seconds
    assert piped < turns
    assert turns > near + 0.25


def test_a_card_bounds_what_workers_are_sent() -> None:
    script = (TensorWork("forward 0", 0.0, 10**6, 0), GraphWork(FORWARD, 0, 0.0, 0))
    found = run(replace(PLAN, cloud=CloudModel(), workers=4, card_bytes=1e6), script)
    assert found.epoch_seconds == pytest.approx(4)
    assert found.card_share == pytest.approx(1)


def test_rows_between_servers_pass_both_cards() -> None:
    script = (GraphWork(FORWARD, 0, 0.0, 10**6),)
    found = run(replace(PLAN, card_bytes=1e6, message_seconds=0.5), script)
    assert found.epoch_seconds == pytest.approx(4.5 + 0.5, abs=0.01)  # and the gradients' latency


def test_serving_workers_costs_cores() -> None:
    plan = replace(PLAN, cloud=CloudModel(), workers=4)
    free, dear = run(plan), run(replace(plan, serving_per_byte=1e-3))
    moved = dear.sent_bytes + dear.received_bytes
    paid = dear.core_share * dear.epoch_seconds - free.core_share * free.epoch_seconds
    assert paid * PLAN.servers == pytest.approx(1e-3 * moved / PLAN.cores)
    assert dear.epoch_seconds > free.epoch_seconds


def test_memory_is_bounded_and_workers_are_picked_by_chance() -> None:
    script = (
        TensorWork("forward 0", 0.1, 0, 0, 0, (("x", 600_000),)),
        GraphWork(FORWARD, 0, 0.0, 0),
    )
    wide = CloudModel(memory_gb=1.0)
    plan = replace(PLAN, intervals=16, cloud=wide, workers=16)
    roomy = Cluster(plan, script).run(40, skipped=20)
    tight = replace(plan, cloud=replace(wide, memory_gb=1e6 / 2**30))
    cramped = Cluster(tight, script).run(40, skipped=20)
    sent_whole = 3 * 16 * 600_000
    assert roomy.sent_bytes < 0.6 * sent_whole
    assert 0.8 * sent_whole < cramped.sent_bytes < sent_whole


def test_what_no_worker_can_hold_is_done_by_the_server() -> None:
    tiny = CloudModel(memory_gb=100 / 2**30)
    found = run(replace(PLAN, cloud=tiny, workers=4))
    assert found.counters["rescued"] > 0


def test_mishaps_are_outlived_and_repeat() -> None:
    cloud = replace(CloudModel.aws_lambda(), failure=0.05, loss=0.02, duplicate=0.1)
    plan = replace(PLAN, cloud=cloud, workers=None, intervals=8)
    first, second = run(plan), run(plan)
    assert first == second
    assert first.counters["failures"] > 0
    assert first.counters["duplicates"] > 0
    assert run(replace(plan, seed=1)) != first
