"""Bars leave nothing behind, remarks go above them, and no time is made up."""

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from siafu.record import PhaseProgress, ProgressLine, progress

CLEARED = "\x1b[2K"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal whose characters are kept."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, highlight=False, markup=False)
    monkeypatch.setattr(progress, "notes", console)
    yield written
    assert written.getvalue().count("\x1b[?25l") == written.getvalue().count("\x1b[?25h")


def ends_clear(text: str) -> bool:
    """Return whether the line of the bar was taken away and nothing was written after that."""
    return text.rstrip("\r\n").endswith(CLEARED) or CLEARED in text[text.rindex("━") :]


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, ValueError])
def test_a_bar_is_gone_however_it_ends(
    screen: io.StringIO, end: type[BaseException] | None
) -> None:
    def work() -> None:
        with ProgressLine("epoch", 9) as line:
            line.update(3, "loss 0.5")
            if end is not None:
                raise end

    if end is None:
        work()
    else:
        with pytest.raises(end):
            work()
    assert "epoch" in screen.getvalue()
    assert ends_clear(screen.getvalue())


def test_a_remark_goes_above_the_bar(screen: io.StringIO) -> None:
    with ProgressLine("epoch", 9) as line:
        line.update(1)
        line.say("Compiling [kernels] ...")
    lines = screen.getvalue().splitlines()
    at = next(k for k, text in enumerate(lines) if "Compiling [kernels] ..." in text)
    assert "━" not in lines[at].split("Compiling")[1]


def test_no_time_is_told_before_two_steps_are_done(screen: io.StringIO) -> None:
    with ProgressLine("epoch", 9) as line:
        line.update(1)
        line.remark("writing predictions")
    assert "left" not in screen.getvalue()
    assert "-:--" not in screen.getvalue()


def test_one_phase_takes_the_place_of_another(screen: io.StringIO) -> None:
    shown = PhaseProgress()
    shown("sorting edges", 5, 5)
    shown("reading", 1, None)
    shown.close()
    assert ends_clear(screen.getvalue())
