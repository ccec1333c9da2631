"""Exchanges keep NCCL's rules, and give what they give over Gloo; see strict.py."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed import DebugLevel

from siafu.comm import World
from siafu.comm.halo import start_exchange
from siafu.comm.overdue import Overdue
from siafu.errors import CommError
from siafu.ingest import load
from siafu.nn import ModelSpec
from siafu.partitioning import partition_graph
from siafu.strategy import Strategy, TimeStrategy
from tests.dynamic.steps import Way
from tests.dynamic.steps import distributed_steps as steps_in_time
from tests.dynamic.test_parity import assert_same as assert_same_in_time
from tests.harness import RankPool
from tests.parity.steps import assert_same, distributed_steps, single_steps
from tests.parity.strict import strict_nccl
from tests.unit.engine.runs import run_engine

EXACT = {"rtol": 1e-10, "atol": 1e-12}
SPEC = ModelSpec(name="gcn", in_width=6, out_width=3, hidden=8, layers=2, norm="batch")
STRATEGIES = {
    "halo": Strategy(),
    "stages": Strategy(stages=4, recompute=True),
    "columns": Strategy(by_columns=True),
}


def static_under_nccl(world: World, *given: Any) -> Any:
    with strict_nccl(world) as (strict_world, strict):
        found = distributed_steps(strict_world, *given)
    assert strict.batches
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_steps_over_nccl_equal_one_process(ranks: RankPool, parts_of, name: str) -> None:
    want = single_steps(parts_of("hash", 1, True), SPEC)
    got = ranks.run(static_under_nccl, 3, parts_of("hash", 3, True), SPEC, STRATEGIES[name])
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize("hosts", ["aab", "aabb"])
def test_ranks_of_a_host_share_rows_over_nccl(ranks: RankPool, parts_of, hosts: str) -> None:
    size = len(hosts)
    want = single_steps(parts_of("hash", 1, True), SPEC)
    given = (SPEC, Strategy(), hosts)
    got = ranks.run(static_under_nccl, size, parts_of("hash", size, True), *given)
    assert_same(got, want, **EXACT)


def trained_under_nccl(world: World, *given: Any) -> Any:
    with strict_nccl(world) as (strict_world, strict):
        found = run_engine(strict_world, *given)
    return found, strict.batches, strict.host_messages


ENGINES: dict[str, dict[str, Any]] = {
    "rounded": {"wire": 4},
    "adaptive": {"strategy": "adaqp", "wire_period": 3},
    "changes": {"wire": 2, "changes": True},
    "late": {"staleness": 1},
    "late changes": {"wire": 4, "changes": True, "staleness": 1},
    "minibatches": {"strategy": "batchgnn", "batch_size": 20},
    "minibatches of all": {"strategy": "batchgnn", "batch_size": 20, "seed_order": "global"},
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nccl") / "3.parts"
    partition_graph(load("planted:200"), folder, num_parts=3, method="hash")
    return folder


@pytest.mark.parametrize("name", ENGINES)
def test_runs_over_nccl_are_those_over_gloo(
    ranks: RankPool, planted: Path, tmp_path: Path, name: str
) -> None:
    settings = {"model": "sage", "hidden": 24, "epochs": 7} | ENGINES[name]
    want = ranks.run(run_engine, 3, planted, tmp_path / "gloo", False, settings)
    got = ranks.run(trained_under_nccl, 3, planted, tmp_path / "nccl", False, settings)
    for (found, batches, host_messages), gloo in zip(got, want, strict=True):
        assert found["losses"] == gloo["losses"]
        torch.testing.assert_close(found["last"], gloo["last"], rtol=0, atol=0)
        assert batches > 0
        assert (host_messages > 0) is ("minibatches" in name), "samples go from host to host"
    if name == "adaptive":
        assert want[0]["summary"]["widths"], "formats were assigned anew"


def test_rows_kept_of_some_stages_over_nccl(ranks: RankPool, parts_of) -> None:
    spec, strategy = replace(SPEC, name="gat", heads=2), Strategy(stages=4, recompute=0.5)
    want = single_steps(parts_of("hash", 1, True), spec)
    got = ranks.run(static_under_nccl, 3, parts_of("hash", 3, True), spec, strategy)
    assert_same(got, want, **EXACT)


def in_time_under_nccl(world: World, *given: Any) -> Any:
    with strict_nccl(world) as (strict_world, _):
        return steps_in_time(strict_world, *given)


@pytest.mark.parametrize(
    ("model", "exchange", "block"),
    [
        ("cd-gcn", "all-to-all", 4),
        ("tm-gcn", "banded", 4),
        ("cd-gcn", "wavefront", 0),
        ("cd-gcn", "wavefront", 4),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_steps_in_time_over_nccl_equal_the_reference(ranks, model, exchange, block, size) -> None:
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=3)
    assert_same_in_time(ranks.run(in_time_under_nccl, size, model, strategy), model)


def test_a_step_per_block_over_nccl(ranks: RankPool) -> None:
    strategy, way = TimeStrategy(block=4, exchange="wavefront", chunks=3), Way(by_block=True)
    got = ranks.run(in_time_under_nccl, 3, "cd-gcn", (strategy, way))
    assert_same_in_time(got, "cd-gcn", way, 4)


def bytes_to_each(world: World) -> list[int]:
    """Return bytes that came from the others, as many as 3 + my number from each."""
    with strict_nccl(world) as (strict_world, _):
        me, size = world.rank, world.size
        sent = [0 if rank == me else 3 + rank for rank in range(size)]
        rows = torch.full((sum(sent),), me, dtype=torch.uint8)
        got = [0 if rank == me else 3 + me for rank in range(size)]
        pending = start_exchange(rows, tuple(sent), tuple(got), strict_world, "control")
        return pending.wait(strict_world, "bytes").tolist()


def test_bytes_leave_from_even_addresses(ranks: RankPool) -> None:
    assert ranks.run(bytes_to_each, 3) == [
        [1] * 3 + [2] * 3,
        [0] * 4 + [2] * 4,
        [0] * 5 + [1] * 5,
    ]


def out_of_step(world: World) -> str:
    """Return what is said when one rank does another exchange of equal size."""
    counts = tuple(int(rank != world.rank) for rank in range(world.size))
    debug = patch("siafu.comm.peers.get_debug_level", return_value=DebugLevel.INFO)
    with strict_nccl(world) as (strict_world, _), debug:
        purpose = "halo_forward" if world.rank == 0 else "halo_backward"
        pending = start_exchange(torch.ones(1, 4), counts, counts, strict_world, purpose)
        try:
            pending.wait(strict_world, "rows")
        except CommError as error:
            return str(error)
    return "nothing"


def test_ranks_out_of_step_are_told_in_debug_runs(ranks: RankPool) -> None:
    for said in ranks.run(out_of_step, 2):
        assert "out of step" in said


class Stuck:
    """Something that never ends, or has failed."""

    def __init__(self, error: str = "") -> None:
        self.error = error

    def is_completed(self) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return False


@pytest.mark.parametrize(
    ("work", "said"),
    [(Stuck(), "passed its deadline"), (Stuck("ncclRemoteError\nmore"), "(ncclRemoteError)")],
)
def test_what_nccl_does_not_end_is_told_with_our_words(work: Stuck, said: str) -> None:
    told: list[CommError] = []
    is_told = threading.Event()

    def give_up(error: CommError) -> None:
        told.append(error)
        is_told.set()

    overdue = Overdue(0.01, give_up)
    overdue.note(work, "rank 0 waiting for rank 1 in rows, epoch 3")
    assert is_told.wait(60)
    overdue.close()
    assert said in str(told[0])
    assert "rank 0 waiting for rank 1 in rows, epoch 3" in str(told[0])
