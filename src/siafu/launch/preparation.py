"""Rank 0 prepares while the others wait: for hours if need be, yet not for a rank that is gone.

Rank 0 leaves notes in the store of the run: a count that grows while it works, then how it ended.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from siafu.comm import World
from siafu.errors import CommError

_BEAT, _END = "siafu/preparation/beat", "siafu/preparation/end"
_DONE = "done"
_POLL_SECONDS = 0.1
_MOST_BEAT_SECONDS = 5.0
MOST_SECONDS = 24 * 3600.0


@contextmanager
def preparing(world: World) -> Iterator[None]:
    """Tell the waiting ranks, from rank 0, that the work inside goes on and how it ends."""
    store, stop = world.store, threading.Event()
    pause = min(_MOST_BEAT_SECONDS, world.deadline_seconds / 10)

    def beat() -> None:
        while not stop.wait(pause):
            store.add(_BEAT, 1)

    thread = threading.Thread(target=beat, name="siafu-preparation", daemon=True)
    thread.start()
    end = "it was stopped"
    try:
        yield
        end = _DONE
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
        raise
    finally:
        stop.set()
        thread.join()
        store.set(_END, end)


def wait_for_preparation(world: World, *, most_seconds: float = MOST_SECONDS) -> None:
    """Wait until rank 0 is done; raise when it fails, falls silent or takes more than a day."""
    store, started = world.store, time.monotonic()
    beats, heard = 0, started
    with world.waiting("preparation on rank 0", peer=0):
        while not store.check([_END]):
            now, count = time.monotonic(), store.add(_BEAT, 0)
            if count != beats:
                beats, heard = count, now
            if now - heard > world.deadline_seconds:
                raise _too_long(world, f"rank 0 has not been heard of for {now - heard:.0f} s")
            if now - started > most_seconds:
                raise _too_long(world, f"it has taken {now - started:.0f} s")
            time.sleep(_POLL_SECONDS)
        end = store.get(_END).decode()
    if end != _DONE:
        raise CommError(
            "The preparation on rank 0 failed.", seen=end, fix="rank 0 tells the same, and more"
        )


def _too_long(world: World, seen: str) -> CommError:
    return CommError(
        "The preparation on rank 0 does not end.",
        seen=f"rank {world.rank} waits for it; {seen}",
        fix="cut the graph beforehand with `siafu partition` and train on the parts",
    )
