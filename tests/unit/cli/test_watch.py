"""`siafu watch`: a run of another process, whatever becomes of it. Nothing here sleeps."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from siafu.cli import watch as watching
from siafu.errors import DataError
from siafu.files import locked
from siafu.launch.watching import look, sparkline
from siafu.record import LiveFile, ProgressLine, RunFolder, read_live
from tests.command import Command
from tests.unit.cli.test_runs import made_run

NOW = 1e9


def told(run: RunFolder, what: str, at: float = NOW, left: float = 80.0) -> None:
    LiveFile(run.live, clock=lambda: at).tell(what, 0.25, left, "at most ")


def finish(run: RunFolder) -> None:
    """Write what a run of two ranks leaves at its end."""
    run.weights.touch()
    run.predictions.mkdir()
    seconds = {"computing": [2.0, 3.0], "waiting": [1.5, 0.5]}
    result: dict[str, Any] = {"epochs": 2, "best_epoch": 1, "metric": "accuracy", "losses": [0.5]}
    result |= {"score": {"test": 0.5}, "ended": "all 2 epochs done", "rank_seconds": seconds}
    run.write_result(result)


def sleeping(*steps: Callable[[], object]) -> Callable[[float], None]:
    """Return a sleep that does one thing after the other instead."""
    left = list(steps)

    def sleep(seconds: float) -> None:
        assert seconds == 1.0
        left.pop(0)()

    return sleep


def screen(monkeypatch: pytest.MonkeyPatch, **how: Any) -> io.StringIO:
    """Return where the command prints to from now on."""
    text = io.StringIO()
    monkeypatch.setattr(watching, "out", Console(file=text, width=100, highlight=False, **how))
    return text


def test_a_running_run_tells_how_far_it_is(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", epochs=3)
    told(run, "epoch 4 of 9, step 2 of 5")
    with locked(run.path / "lock"):
        sight = look(run, NOW + 30)
        assert not sight.is_over
        assert sight.doing() == "epoch 4 of 9, step 2 of 5"
        assert (sight.share, sight.left()) == (0.25, "at most 0:00:50 left")
        assert sight.line() == (
            "epoch 4 of 9, step 2 of 5  25 %  at most 0:00:50 left  loss 0.3333  "
            "val accuracy 50.00 %"
        )
        assert sight.lines(80)[1:] == [
            "loss 0.3333  █▃▁",
            "val accuracy 50.00 %",
            "rank 0: 2.00 s per epoch",
        ]


def test_a_run_that_says_nothing_is_called_silent(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    told(run, "evaluating")
    for file in (run.config, run.metrics):
        file.touch()
    now = run.metrics.stat().st_mtime
    told(run, "evaluating", at=now)
    with locked(run.path / "lock"):
        assert look(run, now + 50).doing() == "evaluating"
        assert look(run, now + 120).doing() == "evaluating; nothing was heard of it for 2 min 0 s"
        assert look(run, now + 120).left() == ""


@pytest.mark.parametrize("end", ["finished", "killed", "failed", "damaged"])
def test_a_run_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    run = made_run(tmp_path / "run", epochs=1)
    told(run, "epoch 2 of 9")
    lock = locked(run.path / "lock")
    lock.__enter__()

    def go_on() -> None:
        run.append_metrics({"epoch": 2, "loss": 0.5, "seconds": 2.0})

    def stop() -> None:
        if end == "finished":
            finish(run)
        elif end == "failed":
            run.note_failure(DataError("The disk is full.", seen="x", fix="y"))
        elif end == "damaged":
            run.result.write_text("{")
        lock.__exit__(None, None, None)

    printed = screen(monkeypatch)
    is_finished = watching.follow_in_lines(run, 1.0, sleeping(go_on, stop))
    text = printed.getvalue()
    assert is_finished == (end == "finished")
    words = {
        "finished": ["finished: all 2 epochs done", "rank 1: computing 3.00 s, waiting 0.50 s"],
        "killed": ["stopped or killed after 2 epochs, last seen at epoch 2 of 9", "--resume"],
        "failed": ["failed: The disk is full", "--resume"],
        "damaged": ["damaged: result.json of the run can't be read"],
    }
    for word in words[end]:
        assert word in " ".join(text.split())
    assert "test accuracy 50.00 %  (epoch 1)" in text or end != "finished"


def test_on_a_terminal_the_run_is_drawn_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path / "run")
    told(run, "compiling kernels, once")
    run.note_warning("one class alone")
    lock = locked(run.path / "lock")
    lock.__enter__()

    def stop() -> None:
        finish(run)
        lock.__exit__(None, None, None)

    printed = screen(monkeypatch, force_terminal=True, color_system=None)
    assert watching.follow_live(run, 1.0, sleeping(lambda: None, stop))
    text = printed.getvalue()
    assert re.search("compiling kernels, once .*25 %", text)
    assert "warning: one class alone" in text
    assert "finished: all 2 epochs done" in text


def test_the_command_follows_the_newest_run_and_ends_with_a_code(siafu: Command) -> None:
    assert siafu("watch").code == 2, "no runs there"
    run = made_run(siafu.here / "runs" / "a")
    answer = siafu("watch", "--every", "0.1")
    assert answer.code == 1
    assert "stopped or killed after 2 epochs" in answer.out
    finish(run)
    answer = siafu("watch", "runs/a")
    assert (answer.code, "finished" in answer.out) == (0, True)


def test_a_run_keeps_the_file_while_it_goes_on_alone(
    siafu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    tell = LiveFile.tell

    def note(file: LiveFile, what: str, *rest: Any) -> None:
        tell(file, what, *rest)
        live = read_live(siafu.here / "runs" / "a" / "live.json")
        seen.append("" if live is None else live.what)

    monkeypatch.setattr(LiveFile, "tell", note)
    settings = ("--epochs", 2, "--hidden", 4, "--quiet", "--out", "runs/a")
    assert siafu("train", "planted:60", *settings).code == 0
    assert {"epoch 1 of 2", "evaluating", "writing predictions"} <= set(seen)
    assert not (siafu.here / "runs" / "a" / "live.json").exists()


def test_the_file_is_written_at_most_every_second_but_for_new_words(tmp_path: Path) -> None:
    now = [NOW]
    file = LiveFile(tmp_path / "live.json", clock=lambda: now[0])
    found = []
    for seconds, what in (
        (0, "epoch 1 of 9"),
        (0.01, "compiling kernels, once"),
        (0.02, "epoch 1 of 9"),
        (0.2, "epoch 2 of 9"),
        (0.9, "epoch 3 of 9"),
        (1.3, "epoch 4 of 9"),
    ):
        now[0] = NOW + seconds
        file.tell(what, None, None, "")
        live = read_live(tmp_path / "live.json")
        assert live is not None
        found.append(live.what)
    assert found == [
        "epoch 1 of 9",
        "compiling kernels, once",
        "compiling kernels, once",
        "epoch 2 of 9",
        "epoch 2 of 9",
        "epoch 4 of 9",
    ]


def test_what_can_not_be_written_or_read_is_left_out(tmp_path: Path) -> None:
    with ProgressLine(quiet=True, live=tmp_path / "gone" / "live.json") as line:
        line.show("training", 0.5)
    for text in ("", "{", "[]", '{"at": "x"}', json.dumps({"at": 1, "what": "x"})):
        (tmp_path / "live.json").write_text(text)
        assert read_live(tmp_path / "live.json") is None


def test_losses_are_drawn_as_blocks() -> None:
    assert sparkline([3, 2, 1], 8) == "█▅▁"
    assert sparkline([float(k) for k in range(100)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert sparkline([1.0, float("nan")], 8) == ""
