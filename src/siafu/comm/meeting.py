"""How ranks that torchrun started find each other, within a deadline, in every attempt anew.

Its store outlives the ranks: when they are started again it still holds the addresses of the
earlier ones, and on several machines not even the number of the attempt is the same. So rank 0
gives each attempt a name, and the others wait until it has answered them under that name.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from siafu.errors import CommError

_NAME = "attempt"
_POLL_SECONDS = 0.05
_SLACK_SECONDS = 5.0
"""Time for torch's own timeouts to come first: they tell more."""

GiveUp = Callable[[CommError], None]
"""Ends this process after telling the error."""


def lasting_store(rank: int, size: int, timeout: timedelta) -> Store:
    """Return torchrun's store; what is noted there outlives the ranks, not the run of torchrun."""
    store = next(iter(rendezvous("env://", rank, size, timeout=timeout)))[0]
    return PrefixStore(f"siafu/{os.environ.get('TORCHELASTIC_RUN_ID', '')}", store)


def meet(store: Store, rank: int, size: int, deadline_seconds: float) -> Store:
    """Return the part of the store that is of this attempt alone; all of its ranks call this."""
    latest = time.monotonic() + deadline_seconds
    if rank == 0:
        return _receive(store, size, latest, deadline_seconds)
    mine, name = secrets.token_hex(8), ""
    while time.monotonic() < latest:
        if store.check([_NAME]) and (found := store.get(_NAME).decode()) != name:
            name = found
            store.set(f"{name}/rank{rank}", mine)
        # The name may be of an earlier attempt: then this rank is not among those answered.
        if name and store.check([f"{name}/all"]) and mine in store.get(f"{name}/all").decode():
            return PrefixStore(name, store)
        time.sleep(_POLL_SECONDS)
    raise _late(f"rank {rank} of {size}: rank 0 did not answer", deadline_seconds)


def _receive(store: Store, size: int, latest: float, deadline_seconds: float) -> Store:
    name = secrets.token_hex(8)
    store.set(_NAME, name)
    missing = list(range(1, size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"{name}/rank{rank}"])]
        if missing and time.monotonic() > latest:
            raise _late(f"rank 0 of {size}: ranks {missing} did not come", deadline_seconds)
        time.sleep(_POLL_SECONDS if missing else 0)
    came = [store.get(f"{name}/rank{rank}").decode() for rank in range(1, size)]
    store.set(f"{name}/all", " ".join(came))
    return PrefixStore(name, store)


@contextmanager
def in_time(what: str, deadline_seconds: float, give_up: GiveUp | None = None) -> Iterator[None]:
    """End this process when what is inside takes longer: torch's own waits may never return."""
    end = give_up or end_process
    seconds = min(deadline_seconds + _SLACK_SECONDS, threading.TIMEOUT_MAX)
    timer = threading.Timer(seconds, lambda: end(_late(what, deadline_seconds)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_process(error: CommError) -> None:
    """Tell the error and end this process at once."""
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()
    os._exit(2)


def _late(what: str, deadline_seconds: float) -> CommError:
    return CommError(
        "The ranks did not find each other in time.",
        seen=f"{what}, within {deadline_seconds:g} s",
        fix="see what the missing ranks said; raise --deadline if they only start slowly",
    )
