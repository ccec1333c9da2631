"""Being told to end."""

import os
import signal

import pytest

from siafu import signals
from siafu.errors import Stopped, Terminated


def told_again(number: int, times: int) -> None:
    """Tell this process to end so often, and end the epoch then."""
    with signals.heeding() as order:
        assert not order()
        for _ in range(times):
            os.kill(os.getpid(), number)
        assert order()
        raise Stopped(3)


def test_an_echo_of_sigterm_is_the_same_order() -> None:
    with pytest.raises(Terminated) as told:
        told_again(signal.SIGTERM, 3)  # of a scheduler, and of torchrun
    assert isinstance(told.value.__cause__, Stopped), "the epoch has ended first"


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, Terminated), (2, KeyboardInterrupt)])
def test_a_second_signal_ends_at_once(
    number: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    with pytest.raises(kind) as told:
        told_again(number, 2)
    assert told.value.__cause__ is None
