"""Ranks meet anew in every attempt, though the store is full of what earlier ranks left."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from siafu.comm import meeting
from siafu.comm.meeting import in_time, meet
from siafu.errors import CommError

PATIENCE = 60.0


def attempt(store: HashStore, size: int, *, last: int) -> list[str]:
    """Let ranks meet, `last` after all others wait, and return what each reads of rank 0's note."""
    with ThreadPoolExecutor(size) as pool:
        order = [*(rank for rank in range(size) if rank != last), last]
        met = {rank: pool.submit(meet, store, rank, size, PATIENCE) for rank in order}
        parts = [met[rank].result(PATIENCE) for rank in range(size)]
    assert not parts[0].check(["address"]), "nothing of an earlier attempt is seen"
    parts[0].set("address", f"of {id(parts[0])}")
    return [part.get("address").decode() for part in parts]


@pytest.mark.parametrize("last", [0, 2])
def test_every_attempt_has_its_own_notes(last: int) -> None:
    store = HashStore()
    seen = [attempt(store, size, last=last) for size in (3, 3, 4)]
    assert all(len(set(notes)) == 1 for notes in seen)


def test_ranks_that_did_not_come_are_named() -> None:
    with pytest.raises(CommError, match=r"ranks \[1, 2\] did not come"):
        meet(HashStore(), 0, 3, 0.1)


def test_rank_0_that_did_not_answer_is_named() -> None:
    store = HashStore()
    attempt(store, 2, last=1)
    with pytest.raises(CommError, match="rank 1 of 2: rank 0 did not answer"):
        meet(store, 1, 2, 0.2)


def test_joining_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_SLACK_SECONDS", 0.0)
    told, done = list[CommError](), threading.Event()

    def give_up(error: CommError) -> None:
        told.append(error)
        done.set()

    with in_time("rank 1 joining 2 ranks", 0.05, give_up):
        assert done.wait(PATIENCE)
    assert "rank 1 joining 2 ranks, within 0.05 s" in told[0].seen


def test_joining_in_time_is_left_alone() -> None:
    with in_time("rank 1 joining", 0.0, pytest.fail):
        pass
