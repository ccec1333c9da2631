"""`siafu runs`: runs side by side, in whatever state they are."""

import json
import os
from pathlib import Path

import pytest

from siafu.errors import PlanError
from siafu.files import locked
from siafu.ingest import cache_folder
from siafu.launch.run_list import (
    RunSummary,
    differing_settings,
    list_runs,
    sorted_runs,
    summary_of,
)
from siafu.record import RunFolder
from tests.command import Command


def summary(name: str, **facts) -> RunSummary:
    return RunSummary(run=name, path=name, state="finished", **facts)


def made_run(path: Path, *, data: str = "planted:60", epochs: int = 2) -> RunFolder:
    """Return the folder of a run that trained for some epochs and was not finished."""
    run = RunFolder.create(path, "run")
    run.config.write_text(f"data: {data}\nmodel: gcn\nepochs: 9\n")
    for epoch in range(1, epochs + 1):
        row = {"epoch": epoch, "loss": 1.0 / epoch, "seconds": 2.0, "accuracy": {"val": 0.5}}
        run.append_metrics(row)
    return run


def test_runs_are_sorted_best_first_and_those_without_a_score_come_last():
    runs = [
        summary("a", begun=3.0, scores={"test": {"accuracy": 0.5}}, seconds=9.0),
        summary("b", begun=1.0, scores={"test": {"accuracy": 0.9, "f1": 0.1}}, seconds=1.0),
        summary("c", begun=2.0),
        summary("d", begun=4.0, scores={"test": {"accuracy": 0.7, "f1": 0.8}}),
    ]

    def order(by: str) -> str:
        return "".join(run.run for run in sorted_runs(runs, by))

    assert order("time") == "bcad"
    assert order("name") == "abcd"
    assert order("test") == order("accuracy") == "bdac"
    assert order("f1")[:2] == "db"
    assert order("seconds")[:2] == "ba"


def test_errors_are_better_when_lower():
    runs = [summary(n, scores={"test": {"rmse": v}}) for n, v in (("a", 2.0), ("b", 1.0))]
    assert [run.run for run in sorted_runs(runs, "test")] == ["b", "a"]


def test_runs_of_different_metrics_are_not_compared_with_each_other():
    scores = [("a", "rmse", 0.3), ("b", "accuracy", 0.5), ("c", "rmse", 0.1), ("d", "f1", 0.9)]
    runs = [summary(run, scores={"test": {name: value}}) for run, name, value in scores]
    assert [run.run for run in sorted_runs(runs, "test")] == ["c", "a", "b", "d"]


def test_settings_that_differ_are_told():
    runs = [summary("a", settings={"lr": 0.1, "hidden": 8}), summary("b", settings={"hidden": 8})]
    assert differing_settings(runs) == ["lr"]


def test_a_run_has_a_state_whatever_became_of_it(tmp_path: Path):
    states = {}
    for name in ("going", "failed", "killed", "damaged", "lost", "young"):
        made_run(tmp_path / name, epochs=0 if name == "young" else 2)
    failure = PlanError("The loss is not finite.", seen="nan", fix="a lower rate")
    RunFolder(tmp_path / "failed").note_failure(failure)
    (tmp_path / "damaged" / "config.yaml").write_text("data: [")
    (tmp_path / "lost" / "config.yaml").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "note.txt").write_text("not a run")
    with locked(tmp_path / "going" / "lock"):
        states = {run.run: run.state for run in list_runs(tmp_path)}
    assert states["going"] == "running"
    assert states["failed"] == "failed: The loss is not finite"
    assert states["killed"] == "unfinished"
    assert states["young"] == "unfinished, before its first epoch"
    assert states["damaged"].startswith("damaged: ")
    assert states["lost"].startswith("damaged: ")
    assert states.keys() == {"going", "failed", "killed", "damaged", "lost", "young"}


def test_an_unfinished_run_tells_its_last_scores_and_its_seconds(tmp_path: Path):
    run = summary_of(made_run(tmp_path / "run"))
    assert (run.epochs, run.loss, run.seconds) == (2, 0.5, 4.0)
    assert run.scores == {"val": {"accuracy": 0.5}}
    assert (run.data, run.model, run.settings) == ("planted:60", "gcn", {"epochs": 9})


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"metric": 3, "losses": [], "epochs": "x"}'])
def test_a_result_that_can_not_be_read_hides_no_other_run(
    siafu: Command, tmp_path: Path, content: str
) -> None:
    made_run(siafu.here / "runs" / "a").result.write_text(content)
    made_run(siafu.here / "runs" / "b")
    told = json.loads(siafu("runs", "--json").out)["runs"]
    assert [run["run"] for run in told] == ["a", "b"]
    assert told[0]["state"].startswith("damaged")
    assert siafu("runs").code == 0


def test_runs_are_listed_with_what_differs(siafu: Command) -> None:
    for name, lr in (("a", 0.01), ("b", 0.1)):
        settings = ("--epochs", 2, "--lr", lr, "--hidden", 4, "--quiet", "--out", f"runs/{name}")
        assert siafu("train", "planted:60", *settings).code == 0
    for flags in ([], ["--all"]):
        answer = siafu("runs", "--sort", "test", *flags)
        assert answer.code == 0, answer
        words = answer.out.split()
        assert "lr" in words
        assert "hidden" not in words
    assert "All: model gcn, data planted:60, ranks 1, metric accuracy, state finished" in answer.out
    told = json.loads(siafu("runs", "runs", "--sort", "val", "--json").out)
    best = [run["scores"]["val"]["accuracy"] for run in told["runs"]]
    assert best == sorted(best, reverse=True)


def test_what_can_not_be_listed_or_sorted_by_is_said(siafu: Command) -> None:
    assert "No runs there" in siafu("runs").err
    made_run(siafu.here / "runs" / "a")
    answer = siafu("runs", "--sort", "acuracy")
    assert answer.code == 2
    assert "did you mean 'accuracy'?" in answer.err


def test_a_failed_run_says_why_in_the_list(siafu: Command) -> None:
    assert siafu("train", "planted:60", "--lr", 1e30, "--quiet", "--out", "runs/a").code == 2
    (run,) = json.loads(siafu("runs", "--json").out)["runs"]
    assert run["state"] == "failed: The loss is not finite: the training can't go on"
    assert siafu("train", "--resume", "runs/a", "--quiet", "--epochs", 1).code == 0
    assert json.loads(siafu("runs", "--json").out)["runs"][0]["state"] == "finished"


def test_a_narrow_screen_cuts_nothing(siafu: Command) -> None:
    run = made_run(siafu.here / "runs" / "a-run-with-a-rather-long-name-of-its-own")
    run.config.write_text("data: planted:60\nmodel: gcn\nepochs: 9\nhidden: 77\nlr: 0.0123\n")
    made_run(siafu.here / "runs" / "b", data="planted:70")
    text = siafu("runs", "--all").out
    assert "settings that differ" in text
    for words in ("a-run-with-a-rather-long-name-of-its-own", "0.0123", "planted:70", "50.00 %"):
        assert words in text


def test_eight_runs_fit_a_screen_of_80_columns(siafu: Command) -> None:
    for number in range(8):
        run = made_run(siafu.here / "runs" / f"transactions-sage-{number:03}")
        run.config.write_text(
            f"data: planted:60\nmodel: gcn\nepochs: 9\nseed: {number}\nsplit: 0.{number + 1},0.1\n"
            f"weight_decay: 0.{number}\nmetric: average-precision\ndropout: 0.{number}5\n"
        )
    failure = PlanError("A reason that is told at length. " * 5, seen="nan", fix="none")
    RunFolder(siafu.here / "runs" / "transactions-sage-003").note_failure(failure)
    answer = siafu("runs")
    assert answer.code == 0, answer
    lines = answer.out.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:4] == ["run", "model", "val", "accuracy"]
    row = next(line for line in lines if line.startswith("transactions-sage-003"))
    assert {"gcn", "50.00", "2", "failed"} <= set(row.split())
    assert sum(line.startswith("transactions-sage-003 failed: A reason") for line in lines) == 1
    assert len(lines) == 2 + 8 + 1 + 1, "a head, a row for each, a reason, the other settings"


def test_a_folder_of_runs_has_a_report_of_the_newest(siafu: Command) -> None:
    for number in range(14):
        run = made_run(siafu.here / "runs" / f"run-{13 - number:02}")
        for file in (run.config, run.metrics):
            os.utime(file, (1e9 + number, 1e9 + number))
    answer = siafu("report", "runs")
    assert answer.code == 0, answer
    assert answer.out.strip() == "runs/report.html"
    assert "the newest 12 of 14 runs" in answer.err
    page = (siafu.here / "runs" / "report.html").read_text()
    assert [f"run-{number:02}" in page for number in range(14)] == [True] * 12 + [False] * 2
    assert siafu("report", siafu.here / "runs" / "..").code == 2, "no runs there"
    assert siafu("report").out.strip() == "runs/run-00/report.html"


def test_frames_are_listed_by_what_they_were_given_as(siafu: Command) -> None:
    run = made_run(siafu.here / "runs" / "a")
    kept = cache_folder() / "frames" / ("0" * 16)
    run.config.write_text(f"data: {kept}/edges.parquet\nnodes: {kept}/nodes.parquet\n")
    told = siafu("runs", "--all").out
    assert "the frame given as edges" in told
    assert "parquet" not in told


def test_a_finished_run_without_a_checkpoint_due_is_given_more_epochs(siafu: Command) -> None:
    given = ("--hidden", 4, "--quiet")
    assert siafu("train", "planted:60", "--epochs", 3, *given, "--out", "runs/a").code == 0
    assert siafu("train", "--resume", "runs/a", "--epochs", 5, "--quiet").code == 0
    assert siafu("train", "planted:60", "--epochs", 5, *given, "--out", "runs/b").code == 0
    more, whole = (RunFolder(siafu.here / "runs" / name).read_result() for name in "ab")
    assert more["losses"] == whole["losses"]
