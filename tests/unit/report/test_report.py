"""The page of runs: whole, for any run, and readable by people and by browsers."""

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.errors import CommError, StoreError
from siafu.record import RunFolder
from siafu.report import read_told, write_report
from siafu.report.plots import Series, line_plot, matrix_plot, stacked_bars, ticks
from siafu.report.verdict import would_more_ranks_help
from tests.command import Command

VOID = {"meta", "line", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """Reads a page; raises where its elements do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag == "rect" or tag == "circle":
            self.open.append(tag)
        if tag == "svg":
            self.images.append(str(dict(attrs)["aria-label"]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs of one rank."""
    place = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {"epochs": 3, "hidden": 8, "checkpoint_every": 1}
    return [
        siafu.fit("planted:300", model=model, out=str(place / model), **settings).path
        for model in ("gcn", "sage")
    ]


def test_run_has_a_page_with_every_plot(runs: list[Path]) -> None:
    page = Page((runs[0] / "report.html").read_text())
    assert page.images == [
        "Loss by epoch",
        "Score by epoch",
        "Seconds by epoch, from the second on",
        "Confusion matrix",
        "Calibration",
        "Seconds by phase and rank",
        "Seconds by phase of the whole run",
        "Peak memory by rank",
    ]
    assert "finished" in page.words


def test_page_shows_each_class_and_each_target(runs: list[Path], tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(runs[0], tmp_path / "run"))
    words = Page((folder.path / "report.html").read_text()).words
    quality = folder.read_result()["quality"]["test"]
    assert {"precision", "recall", "What is taken for what", "share that came true"} <= set(words)
    assert f"{quality['classes']['count'][0]:,}" in words
    answers = {"names": ["price", "rent <b>"], "test": {"rmse": [3.25, 4.5], "r2": [0.5, 0.25]}}
    folder.write_result(folder.read_result() | {"quality": answers})
    page = Page(_page(folder.path, tmp_path))
    place = page.words.index("rent <b>")
    assert page.words[place : place + 3] == ["rent <b>", "4.5000", "0.2500"]
    assert not {"Confusion matrix", "Calibration"} & set(page.images)


def test_runs_over_several_ranks_show_who_sends_what(
    runs_on_pool: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = siafu.fit("planted:300", ranks=3, epochs=2, hidden=8)
    page = Page((run.path / "report.html").read_text())
    assert {"Bytes by purpose", "Bytes of rows between ranks"} <= set(page.images)
    assert any("edges are cut" in words for words in page.words)


def test_widths_of_messages_are_drawn(runs: list[Path], tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(runs[0], tmp_path / "run"))
    widths = [
        {"epoch": epoch, "exchange": 0, "name": "layer 2", "direction": way, "rows": {"2": 20}}
        for epoch in (8, 53)
        for way in ("there", "back")
    ]
    two = {"direction": "there", "name": "layer 2", "bytes": 3 << 20}
    kept = [{"exchange": 0, "rows": 1234, **two}, {"exchange": 1, "rows": 5, **two}]
    kept += [{"exchange": 2, "direction": "back", "rows": 6, "bytes": 0}]  # of an earlier version
    folder.write_result(folder.read_result() | {"widths": widths, "kept": kept})
    text = _page(folder.path, tmp_path)
    assert "Rows by width and layer" in Page(text).images
    for epoch in (8, 53):
        assert f"epoch {epoch}: layer 2, rows" in text
        assert f"epoch {epoch}: layer 2, gradients" in text
    assert "<td>1,234</td><td>3.0 MiB</td>" in text
    assert "<td>1,245</td><td>6.0 MiB</td>" in text, "of all layers"
    assert "<td>20</td><td>2.00</td>" in text, "the mean of widths"
    assert "layer 2, exchange 1, rows<" in text
    assert "exchange 3, gradients<" in text


def test_page_needs_nothing_from_elsewhere(runs: list[Path], tmp_path: Path) -> None:
    text = write_report(runs, tmp_path / "two.html").read_text()
    assert len(text) < 2_000_000
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)


def test_two_runs_stand_side_by_side(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = Command(tmp_path, monkeypatch, capsys)("report", *runs, "--out", "both.html")
    page = Page((tmp_path / "both.html").read_text())
    assert answer.out.strip() == "both.html"
    assert "Settings that differ" in page.words
    assert page.words.count("gcn") >= 2  # its name, and the setting that differs


def test_failed_run_tells_the_error_first(runs: list[Path], tmp_path: Path) -> None:
    failed = shutil.copytree(runs[0], tmp_path / "failed")
    (failed / "result.json").unlink()
    error = CommError("A rank <b>went</b> away.", seen="rank 1", fix="go on with it")
    RunFolder(failed).note_failure(error)
    text = write_report([failed], tmp_path / "page.html").read_text()
    assert text.index("A rank &lt;b&gt;went") < text.index("state")
    assert "Loss by epoch" in Page(text).images
    assert read_told(failed).state == "failed"


def test_damaged_lines_are_counted_and_left_out(runs: list[Path], tmp_path: Path) -> None:
    damaged = shutil.copytree(runs[0], tmp_path / "damaged")
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([lines[0], "{", "7", *lines[1:]]) + "\n{")
    told = read_told(damaged)
    assert (len(told.rows), told.damaged) == (3, 3)
    assert "3 of metrics.jsonl, left out" in Page(_page(damaged, tmp_path)).words


@pytest.mark.parametrize("name", ["result.json", "environment.json", "job.json", "metrics.jsonl"])
@pytest.mark.parametrize("text", ["", "[1]", "{}", "\0"])
def test_any_damaged_file_leaves_a_page(
    runs: list[Path], tmp_path: Path, name: str, text: str
) -> None:
    damaged = shutil.copytree(runs[0], tmp_path / "damaged")
    (damaged / name).write_text(text)
    assert Page(_page(damaged, tmp_path)).words


def _page(run: Path, place: Path) -> str:
    return write_report([run], place / "page.html").read_text()


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No run is there"):
        write_report([tmp_path], tmp_path / "page.html")


def test_resumed_run_forgets_its_failure(runs: list[Path], tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(runs[0], tmp_path / "again"))
    folder.note_failure(CommError("It failed.", seen="a", fix="b"))
    siafu.resume(folder.path, epochs=4)
    assert not folder.failure.exists()
    assert "It failed." not in folder.report.read_text()


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.2, 0.21), (-3, 7), (5, 5), (0, 0), (1e-9, 2e9), (-1e-7, 0)]
)
def test_ticks_cover_the_range_in_round_steps(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low + 1e-12
    assert found[-1] >= high - 1e-12
    assert 2 <= len(found) <= 8


def test_plots_leave_out_what_is_not_finite() -> None:
    points = ((1.0, 2.0), (2.0, math.nan), (3.0, math.inf), (4.0, 1.0))
    drawn = line_plot([Series("a", points)], title="t", x_name="x", y_name="y")
    assert drawn.count("<circle") == 2
    assert "nan" not in drawn
    assert line_plot([Series("a", ())], title="t", x_name="x", y_name="y") == ""
    assert stacked_bars({}, title="t", x_name="x") == ""
    assert matrix_plot([[0.0]], title="t", rows_are="rank", tell=lambda i, j: "") == ""


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    points = tuple((float(epoch), 1.0 / epoch) for epoch in range(1, 5001))
    drawn = line_plot([Series("", points)], title="t", x_name="x", y_name="y")
    assert len(drawn) < 12_000
    assert drawn.count("<polyline") == 1


@pytest.mark.parametrize(
    ("seconds", "cores", "said"),
    [
        ({"computing": [9.0, 9.0], "waiting": [0.1, 0.1]}, 8, "more ranks shorten"),
        ({"computing": [1.0, 1.0], "waiting": [3.0, 3.0]}, 8, "fewer ranks"),
        ({"computing": [1.0, 3.0], "waiting": [2.0, 0.0]}, 8, "Rank 1 computes"),
        ({"computing": [6.0, 6.0], "waiting": [3.0, 3.0]}, 8, "less than in proportion"),
        ({"computing": [6.0, 6.0], "waiting": [3.0, 3.0]}, 1, "share the 1 cores"),
    ],
)
def test_verdict_on_more_ranks(
    runs: list[Path], tmp_path: Path, seconds: dict[str, list[float]], cores: int, said: str
) -> None:
    folder = RunFolder(shutil.copytree(runs[0], tmp_path / "run"))
    result = folder.read_result() | {"ranks": 2, "rank_seconds": seconds, "peak_mb": [1.0, 1.0]}
    folder.write_result(result)
    (folder.path / "environment.json").write_text(json.dumps({"cores": cores}))
    folder.forecast.unlink(missing_ok=True)  # of a model that no plan is made for
    assert said in would_more_ranks_help(read_told(folder.path))


@pytest.mark.parametrize("ranks", [1, 2])
def test_verdict_on_more_ranks_is_that_of_the_plan(
    runs: list[Path], tmp_path: Path, ranks: int
) -> None:
    folder = RunFolder(shutil.copytree(runs[0], tmp_path / "run"))
    told = json.loads(folder.forecast.read_text())
    assert set(told["more"]) == {"ranks", "helps", "times", "exchange"}
    seconds = {"computing": [1.0] * ranks, "waiting": [3.0 * (ranks - 1)] * ranks}
    folder.write_result(folder.read_result() | {"ranks": ranks, "rank_seconds": seconds})
    (folder.path / "environment.json").write_text(json.dumps({"cores": 8}))
    for helps, said in (
        (True, "4 ranks would be 1.7 times as fast"),
        (False, "4 ranks would not help"),
    ):
        more = {"ranks": 4, "helps": helps, "times": 0.6, "exchange": 0.4}
        folder.forecast.write_text(json.dumps({**told, "more": more}))
        assert said in would_more_ranks_help(read_told(folder.path))
    folder.forecast.write_text("{")  # damaged: it is left out
    assert "plan" not in would_more_ranks_help(read_told(folder.path))


@pytest.mark.skipif(not shutil.which("chromium"), reason="a browser: apt-get install chromium")
@pytest.mark.parametrize("width", [380, 1400])
def test_browser_shows_the_page(runs: list[Path], tmp_path: Path, width: int) -> None:
    page = write_report(runs, tmp_path / "two.html")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        ["chromium", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<polyline") >= 3
    drawn = re.findall(r"<svg.*?</svg>", done.stdout, re.DOTALL)
    assert drawn
    assert all("<polyline" in one or "<rect" in one or "<circle" in one for one in drawn)
