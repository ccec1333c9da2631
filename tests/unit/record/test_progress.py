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
        with ProgressLine() as line:
            line.show("epoch 3 of 9", 0.3, note="loss 0.5")
            if end is not None:
                raise end

    if end is None:
        work()
    else:
        with pytest.raises(end):
            work()
    assert "epoch 3 of 9" in screen.getvalue()
    assert ends_clear(screen.getvalue())


def test_a_remark_goes_above_the_bar(screen: io.StringIO) -> None:
    with ProgressLine() as line:
        line.show("epoch 1 of 9", 0.1)
        line.say("Compiling [kernels] ...")
    lines = screen.getvalue().splitlines()
    at = next(k for k, text in enumerate(lines) if "Compiling [kernels] ..." in text)
    assert "━" not in lines[at].split("Compiling")[1]


def test_time_is_told_where_it_is_known(screen: io.StringIO) -> None:
    with ProgressLine() as line:
        line.show("epoch 1 of 9", 0.0)
    assert "left" not in screen.getvalue()
    with ProgressLine() as line:
        line.show("epoch 2 of 9", 0.25, left=3725.5, bound="at most ")
    assert "at most 1:02:0" in screen.getvalue()
    assert " 25 %" in screen.getvalue()


def test_without_a_terminal_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "notes", Console(file=written, width=100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with ProgressLine() as line:
        for epoch in range(1, 13):
            now[0] += 1
            line.show(f"epoch {epoch} of 12", epoch / 12, left=12.0 - epoch, note="loss 0.5")
    assert written.getvalue().splitlines() == [
        "epoch 5 of 12  42 %  0:00:07 left  loss 0.5",
        "epoch 10 of 12  83 %  0:00:02 left  loss 0.5",
    ]


def test_one_phase_takes_the_place_of_another(screen: io.StringIO) -> None:
    shown = PhaseProgress()
    shown("sorting edges", 5, 5)
    shown("reading edges", 1, None)
    shown("place 3", 1, 4)
    shown.close()
    text = screen.getvalue()
    assert ends_clear(text)
    assert "reading tables: edges" in text
    assert "cutting: placing nodes, pass 3, 25 %" in text


def test_the_share_of_preparing_never_goes_back() -> None:
    shown = PhaseProgress(quiet=True, spans=progress.BEFORE_TRAINING)
    shares = []
    for step in ("reading nodes", "reading edges", "sorting edges", "assign", "edges", "parts"):
        for done in range(5):
            shown(step, done, 4)
            shares.append(shown.share(done, 4))
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 0.15 < shares[-1] < 0.2


def test_reading_and_cutting_are_timed_apart() -> None:
    now = [0.0]
    shown = PhaseProgress(quiet=True, clock=lambda: now[0])
    now[0] = 3.0
    shown("reading edges", 1, 2)
    now[0] = 5.0
    shown("assign", 0, None)
    now[0] = 6.5
    shown.times.end()
    assert shown.times.seconds == {"reading data": 5.0, "cutting": 1.5}
