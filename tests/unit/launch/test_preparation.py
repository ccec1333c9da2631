"""Ranks that wait for rank 0's preparation, however long, and no longer than it lives."""

import time
from collections.abc import Iterator

import pytest

from siafu.comm import World
from siafu.errors import CommError, DataError
from siafu.launch.prepare import MOST_SECONDS, preparing, wait_for_preparation
from tests.unit.comm.pair import DEADLINE_SECONDS, GROUP_SECONDS, Pair


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two ranks with short deadlines."""
    ranks = Pair()
    yield ranks
    ranks.close()


def read_damaged_file() -> None:
    raise DataError("The file is damaged.", seen="x.npy", fix="copy it again")


def prepare(world: World, seconds: float, fails: bool) -> tuple[str, float]:
    """Prepare on rank 0 and return what the other was told, and after how long."""
    started = time.monotonic()
    try:
        if world.rank == 0:
            with preparing(world):
                time.sleep(seconds)
                if fails:
                    read_damaged_file()
        else:
            wait_for_preparation(world)
    except (CommError, DataError) as error:
        return str(error), time.monotonic() - started
    return f"text {world.share_text('of rank 0')}", time.monotonic() - started


def test_preparation_may_last_longer_than_any_deadline(pair: Pair) -> None:
    seconds = GROUP_SECONDS + 1
    (_, _), (told, waited) = pair.run(prepare, seconds, False)
    assert told == "text of rank 0"
    assert waited >= seconds - 0.5


def test_failed_preparation_ends_the_others_at_once(pair: Pair) -> None:
    (own, _), (told, waited) = pair.run(prepare, 0.0, True)
    assert own.startswith("The file is damaged.")
    assert "preparation on rank 0 failed" in told
    assert "x.npy" in told
    assert waited < 10.0  # the machine may be busy


def wait_for_nobody(world: World, most_seconds: float) -> str:
    if world.rank == 0:
        time.sleep(DEADLINE_SECONDS + 1.5)  # rank 0 keeps the store, and says nothing
        return ""
    try:
        wait_for_preparation(world, most_seconds=most_seconds)
    except CommError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("most_seconds", "seen"),
    [(MOST_SECONDS, "has not been heard of for"), (0.5, "it has taken")],
)
def test_silent_or_endless_preparation_is_named(pair: Pair, most_seconds: float, seen: str) -> None:
    told = pair.run(wait_for_nobody, most_seconds)[1]
    assert "preparation on rank 0 does not end" in told
    assert seen in told
    assert "`siafu partition`" in told
