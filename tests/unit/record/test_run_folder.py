"""Run folders are new, numbered and removable; progress says little."""

from pathlib import Path

import pytest

from siafu.errors import StoreError
from siafu.record import PhaseProgress, ProgressLine, RunFolder, environment, installed
from siafu.record import progress as progress_module


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_numbered() -> None:
    paths = [str(RunFolder.create(None, "planted-gcn").path) for _ in range(3)]
    assert paths == [f"runs/planted-gcn-00{number}" for number in (1, 2, 3)]


def test_existing_folder_is_refused_and_kept(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "note").write_text("keep")
    with pytest.raises(StoreError, match="exists already"):
        RunFolder.create(here / "mine", "x")
    assert (here / "mine" / "note").read_text() == "keep"


def test_folder_below_a_file_is_refused(here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(StoreError, match="can't be made"):
        RunFolder.create(here / "file" / "run", "x")


def test_discarded_folder_leaves_nothing(here: Path) -> None:
    first, second = (RunFolder.create(None, "a") for _ in range(2))
    first.write_environment()
    first.discard()
    assert [path.name for path in (here / "runs").iterdir()] == ["a-002"]
    second.discard()
    assert list(here.iterdir()) == []


def test_discarding_a_named_folder_keeps_its_parent(here: Path) -> None:
    (here / "mine").mkdir()
    RunFolder.create(here / "mine" / "run", "a").discard()
    assert list(here.iterdir()) == [here / "mine"]


def test_metrics_and_result_come_back(here: Path) -> None:
    run = RunFolder.create(here / "run", "a")
    assert run.read_metrics() == []
    rows = [{"epoch": epoch, "loss": 0.1 * epoch} for epoch in (1, 2, 3)]
    for row in rows:
        run.append_metrics(row)
    assert run.read_metrics() == rows
    run.keep_metrics(2)
    assert run.read_metrics() == rows[:2]
    run.write_result({"a": 1})
    assert sorted(path.name for path in run.path.iterdir()) == ["metrics.jsonl", "result.json"]


def test_environment_names_versions_and_machine() -> None:
    facts = environment()
    assert {"python", "platform", "cores", "memory_gib", "packages"} <= facts.keys()
    assert facts["packages"]["torch"] == installed("torch")
    assert installed("no-such-package-at-all") is None


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as line:
        for done in range(1, 4):
            line.show("epoch", done / 3)
    assert capsys.readouterr() == ("", "")


def test_phases_are_added_up_over_processes(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "a")
    assert run.read_phases() == {}
    run.note_phases({"cutting": 2.0})
    run.note_phases({"training": 1.5, "cutting": 0.25})
    assert run.read_phases() == {"cutting": 2.25, "training": 1.5}
    assert run.last_phase()[1] == 1.75
    run.write_result({"a": 1})
    assert run.read_result() == {"a": 1, "phases": run.read_phases()}
    run.phases.write_text('{"at": "noon"}\n')
    assert run.read_phases() == {}


def test_quiet_work_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 600, 6))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: float(next(now)))
    progress = PhaseProgress(quiet=True)
    progress("edges", 1, 3)
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_damaged_lines_of_metrics_are_dropped(here: Path) -> None:
    run = RunFolder(here)
    run.append_metrics({"epoch": 1, "loss": 1.0})
    with run.metrics.open("ab") as file:
        file.write(b'{"epoch": 2, "lo\n\xff\xfe\n[3]\n{"loss": 0.1}\n{"epoch": 3, "loss": 0.3}\n')
    run.keep_metrics(3)
    assert [row["epoch"] for row in run.read_metrics()] == [1, 3]
