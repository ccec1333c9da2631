"""Ranks that agree, ranks that do not, and ranks that never come."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from siafu.comm import STORE_VARIABLE, HaloPlan, Meter, World, choose_device, exchange_halo
from siafu.comm.halo import start_exchange
from siafu.errors import CommError, ConfigError
from tests.harness import RankPool
from tests.unit.comm.pair import GROUP_SECONDS, Pair

SLACK = 10.0
"""The machine may be busy."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two ranks with short deadlines."""
    ranks = Pair()
    yield ranks
    ranks.close()


def told(action) -> tuple[str, float]:
    started = time.monotonic()
    try:
        action()
    except CommError as error:
        return str(error), time.monotonic() - started
    return "nothing", time.monotonic() - started


def plan_to_the_other(world: World) -> HaloPlan:
    counts = [2 * (rank != world.rank) for rank in range(world.size)]
    return HaloPlan.build(torch.tensor([0, 1]), counts, counts, num_owned=2)


def wait_for_rows(world: World) -> tuple[str, float]:
    world.step = "epoch 7"
    plan = plan_to_the_other(world)
    if world.rank == 1:
        return "absent", 0.0
    return told(lambda: exchange_halo(torch.ones(2, 3), plan, world))


def test_rank_that_sends_no_rows_is_named_at_the_deadline(pair: Pair) -> None:
    text, seconds = pair.run(wait_for_rows)[0]
    assert "passed its deadline" in text
    assert "rank 0 waiting for rank 1 in fetching halo rows, epoch 7" in text
    assert seconds < GROUP_SECONDS + SLACK


def wait_for_sum(world: World) -> tuple[str, float]:
    world.step = "epoch 3"
    if world.rank == 1:
        return "absent", 0.0
    return told(lambda: world.sum_in_place(torch.ones(3), "gradient"))


def test_rank_that_misses_a_sum_is_waited_for_until_the_deadline(pair: Pair) -> None:
    text, seconds = pair.run(wait_for_sum)[0]
    assert "passed its deadline" in text
    assert "rank 0 waiting for all ranks in the sum of gradient, epoch 3" in text
    assert seconds < GROUP_SECONDS + SLACK


def swapped(world: World, second: tuple[str, int]) -> tuple[str, float]:
    kinds = [("halo_forward", 3), second]
    counts = plan_to_the_other(world).send_counts

    def exchange_both() -> None:
        for purpose, width in kinds if world.rank == 0 else reversed(kinds):
            rows = torch.full((2, width), float(world.rank))
            start_exchange(rows, counts, counts, world, purpose).wait(world, purpose)

    return told(exchange_both)


@pytest.mark.parametrize("second", [("halo_backward", 3), ("halo_forward", 4)])
def test_ranks_out_of_step_are_told_instead_of_mixing_rows(pair: Pair, second) -> None:
    for text, _ in pair.run(swapped, second):
        assert "passed its deadline" in text or "went away" in text


def one_more(world: World) -> tuple[str, float]:
    plan = plan_to_the_other(world)
    extra = world.rank  # rank 1 has made an exchange that rank 0 has not
    world._next_tag += extra
    return told(lambda: exchange_halo(torch.ones(2, 3), plan, world))


def test_extra_exchange_is_told_instead_of_mixing_rows(pair: Pair) -> None:
    for text, _ in pair.run(one_more):
        assert "passed its deadline" in text or "went away" in text


def agreement(world: World, texts: list[str]) -> str:
    return told(lambda: world.check_agreement("settings", texts[world.rank]))[0]


def test_ranks_that_differ_are_named_on_every_rank(ranks: RankPool) -> None:
    assert ranks.run(agreement, 3, ["a", "a", "a"]) == ["nothing"] * 3
    for text in ranks.run(agreement, 3, ["a", "b", "a"]):
        assert "ranks do not agree on the settings" in text
        assert "ranks [1] differ from rank 0" in text


def shared(world: World, text: str) -> str:
    return world.share_text(text if world.rank == 0 else "not this")


@pytest.mark.parametrize("text", ["", "runs/é 蟻", "x" * 5000])
def test_text_of_rank_0_reaches_every_rank(ranks: RankPool, text: str) -> None:
    assert ranks.run(shared, 3, text) == [text] * 3
    assert World().share_text(text) == text


def gathered(world: World) -> list[list[float]]:
    return world.gather_numbers([float(world.rank), 0.1])


def test_numbers_come_by_rank(ranks: RankPool) -> None:
    assert ranks.run(gathered, 3) == [[[0.0, 0.1], [1.0, 0.1], [2.0, 0.1]]] * 3


RANK_THAT_OPTIMISES = """
import pathlib, sys, torch
from siafu.comm import World
with World.join(device="cpu") as world:
    torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    world.gather_numbers([1.0])
names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
sys.exit(any("gloo" in name for name in names))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads thread names from /proc")
def test_closed_world_leaves_no_thread_that_could_abort_at_exit(tmp_path: Path) -> None:
    common = {"WORLD_SIZE": "2", STORE_VARIABLE: str(tmp_path / "meet"), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_THAT_OPTIMISES],
            env={**os.environ, **common, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]


def test_world_of_one_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with World.join(device="cpu") as world:
        assert (world.rank, world.size, world.backend) == (0, 1, "none")
        assert world.sum_in_place(torch.ones(2), "gradient").tolist() == [1.0, 1.0]
        assert world.meter.bytes_sent == {}


def test_meter_adds_up_by_purpose() -> None:
    meter = Meter()
    meter.count("a", 10)
    meter.count("a", 5, num_messages=2)
    meter.count("b", 1)
    assert meter.bytes_sent == {"a": 15, "b": 1}
    assert meter.messages_sent == {"a": 3, "b": 1}


def test_meter_knows_whom_bytes_went_to_and_what_was_waited_for() -> None:
    meter = Meter()
    meter.count("rows", 10, 1, peer=2)
    meter.count("rows", 5, 1, peer=2)
    meter.count("sums", 7)
    meter.count("gradient", 9, 1, peer=1)  # a piece of a sum over all ranks
    meter.waited("rows", 1.0)
    meter.waited("sums", 0.5)
    ahead = threading.Thread(target=meter.waited, args=("rows", 9.0))
    ahead.start()
    ahead.join()
    assert meter.bytes_to == {2: 15}
    assert meter.seconds_waited == 1.5  # who works ahead holds nothing up


def test_unknown_or_absent_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown device"):
        choose_device("tpu", 0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="No CUDA device"):
            choose_device("cuda", 0)
        assert choose_device("auto", 3) == torch.device("cpu")
