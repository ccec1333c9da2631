"""Folders made in steps: what ended stays, what did not is made again, and nothing else remains."""

import os
from pathlib import Path

import numpy as np
import pytest

from siafu.errors import DataError, StoreError
from siafu.graph import make_in_steps, open_folder, partial, write_folder
from siafu.graph.array_stream import ArrayStream

JOB = {"parts": 2}


@pytest.fixture(autouse=True)
def _write_every_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "STEP_SECONDS", 0.0)


def _fail_after_one_step(target: Path, error: BaseException, **options) -> None:
    told = StoreError if isinstance(error, OSError) else type(error)
    with pytest.raises(told), make_in_steps(target, "store", **options) as steps:  # noqa: PT012
        steps.writer.save("kept", np.arange(5))
        steps.writer.child("inner", "part").save("deep", np.arange(3))
        steps.save("first", {"scratch": np.arange(4)}, number=7)
        steps.writer.save("half", np.arange(9))
        raise error


def _finish(target: Path, **options) -> list[str]:
    with make_in_steps(target, "store", **options) as steps:
        ended = steps.ended
        if not steps.has("first"):
            steps.writer.save("kept", np.arange(5))
            steps.writer.child("inner", "part").save("deep", np.arange(3))
            steps.save("first", {"scratch": np.arange(4)}, number=7)
        assert steps.facts("first")["number"] == 7
        assert steps.load("first", "scratch").tolist() == [0, 1, 2, 3]
        steps.writer.save("half", np.arange(2))
    return ended


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt(), RuntimeError()])
def test_a_step_that_ended_is_not_done_again(tmp_path: Path, error) -> None:
    _fail_after_one_step(tmp_path / "x", error, job=JOB)
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
    assert _finish(tmp_path / "x", job=JOB) == ["first"]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert _finish(tmp_path / "whole", job=JOB) == []
    made, whole = (open_folder(tmp_path / name, "store") for name in ("x", "whole"))
    made.verify()
    assert made.fingerprint == whole.fingerprint
    assert made.child("inner", "part").fingerprint == whole.child("inner", "part").fingerprint
    assert sorted(path.name for path in made.path.iterdir()) == [
        "half.npy",
        "inner",
        "kept.npy",
        "manifest.json",
    ]


def test_wrong_data_and_jobs_without_a_name_leave_nothing(tmp_path: Path) -> None:
    wrong = DataError("Wrong.", seen="this", fix="that")
    _fail_after_one_step(tmp_path / "x", wrong, job=JOB)
    _fail_after_one_step(tmp_path / "x", OSError(28, "full"))
    assert list(tmp_path.iterdir()) == []


def test_another_job_is_refused_and_replaces_only_when_told(tmp_path: Path) -> None:
    _fail_after_one_step(tmp_path / "x", RuntimeError(), job=JOB)
    with pytest.raises(StoreError, match="parts was 2, now 3") as caught:
        _finish(tmp_path / "x", job={"parts": 3})
    assert "x.partial" in caught.value.fix
    assert _finish(tmp_path / "x", job={"parts": 3}, overwrite=True) == []


def test_a_target_that_exists_is_refused_before_any_work(tmp_path: Path) -> None:
    _finish(tmp_path / "x", job=JOB)
    with pytest.raises(StoreError, match="exists already"):
        _finish(tmp_path / "x", job=JOB)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_a_note_needs_stays_until_a_later_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), make_in_steps(tmp_path / "x", "store", job=JOB) as steps:  # noqa: PT012
        file = steps.scratch / "input"
        file.write_bytes(b"needed")
        steps.note("reading", position=1)
        steps.discard(file)
        raise RuntimeError
    assert (tmp_path / "x.partial" / "scratch" / "input").exists()
    with make_in_steps(tmp_path / "x", "store", job=JOB) as steps:
        steps.discard(steps.scratch / "input")
        steps.end("reading")
        assert not (steps.scratch / "input").exists()


@pytest.mark.parametrize("kept", [1, 4])
@pytest.mark.parametrize("shape", [(-1, 3), (7, 3)])
def test_a_stream_taken_up_equals_one_written_at_once(tmp_path: Path, shape, kept: int) -> None:
    rows = np.arange(21, dtype=np.float32).reshape(7, 3)
    with write_folder(tmp_path / "whole", "store") as writer:
        writer.save("x", rows)
    file = tmp_path / "x.npy"
    stream = ArrayStream(file, shape, np.dtype(np.float32))
    stream.append(rows[:5])
    stream.abandon()
    again = ArrayStream(file, shape, np.dtype(np.float32), kept_rows=kept)
    again.append(rows[kept:])
    assert again.close() == open_folder(tmp_path / "whole", "store").entries["x"]
    assert file.read_bytes() == (tmp_path / "whole" / "x.npy").read_bytes()


def test_a_stream_that_lost_rows_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    stream = ArrayStream(file, (-1,), np.dtype(np.int64))
    stream.append(np.arange(5))
    stream.abandon()
    with pytest.raises(StoreError, match=r"x\.npy is damaged"):
        ArrayStream(file, (-1,), np.dtype(np.int64), kept_rows=6)


def test_what_a_killed_process_left_of_the_same_folder_goes(tmp_path: Path) -> None:
    left = tmp_path / ".x.parts.abcd.tmp"
    left.mkdir()
    (left / "lock").touch()
    os.utime(left, (0, 0))
    with make_in_steps(tmp_path / "x.parts", "parts"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x.parts"]
