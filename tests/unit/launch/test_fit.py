"""Training from Python, and which failure of several is told."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import siafu
from siafu.errors import ConfigError, RankError
from siafu.launch import under_torchrun
from siafu.launch.local import first_error, read_failures, threads_for
from siafu.ops import num_threads


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_takes_a_graph_and_gives_predictions_by_id() -> None:
    graph = siafu.load("planted:300")
    run = siafu.fit(graph, epochs=5, model="sage", hidden=8)
    assert run.path == Path("runs/planted-sage-001")
    assert run.score.keys() == {"train", "val", "test"}
    assert sorted(run.predictions["id"].to_pylist()) == list(range(300))


def test_fit_on_ranks_puts_the_signal_handlers_back() -> None:
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(name) for name in names]
    run = siafu.fit("planted:300", ranks=2, epochs=3, hidden=8, partition="hash", threads=1)
    assert [signal.getsignal(name) for name in names] == before
    assert run.result["ranks"] == 2
    assert np.isfinite(run.result["losses"]).all()


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import numpy as np
import siafu
from siafu.ops import fast_paths
assert fast_paths()["numba"].startswith("off: "), fast_paths()
from siafu.ops.numba_jit import strict_kernel
square = strict_kernel(lambda number: number * number)
assert square(np.uint64(2**63 + 1)) == 1  # it wraps, and does not warn
run = siafu.fit("planted:200", epochs=2, hidden=8, model=sys.argv[1])
assert "torch._dynamo" not in sys.modules  # nothing is compiled: 1.2 s and 100 MB are spared
print(*run.result["losses"])
"""


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_training_without_numba_is_slow_but_right(model: str) -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_NUMBA, model]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    want = siafu.fit("planted:200", epochs=2, hidden=8, model=model).result["losses"]
    assert [float(word) for word in told.split()] == pytest.approx(want, rel=1e-5)


def test_unknown_setting_is_refused_before_anything_is_made(here: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        siafu.fit("planted:300", epoch=3)
    assert list(here.iterdir()) == []


def test_two_runs_into_one_folder_are_refused() -> None:
    siafu.fit("planted:300", epochs=1, hidden=8, out="mine")
    with pytest.raises(siafu.SiafuError, match="exists already"):
        siafu.fit("planted:300", epochs=1, hidden=8, out="mine")
    assert (Path("mine") / "result.json").exists()


def test_threads_share_the_cores() -> None:
    assert threads_for(10_000) == 1
    assert threads_for(1) >= threads_for(2) >= 1
    assert threads_for(4, asked=3) == 3


@pytest.mark.parametrize(("size", "is_under"), [("1", False), ("4", True)])
def test_torchrun_is_known_by_its_world_size(monkeypatch, size: str, is_under: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert under_torchrun() is is_under


def test_ranks_other_than_those_torchrun_started_are_refused(monkeypatch, here: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="ranks=2, but it started 4"):
        siafu.fit("planted:300", ranks=2)
    assert list(here.iterdir()) == []


def leave(folder: Path, rank: int, kind: str, time: float, user: bool = False) -> None:
    told = ("a problem", "something", "do this") if user else None
    failure = {"rank": rank, "time": time, "kind": kind, "text": f"text {rank}"}
    rest = {"traceback": f"traceback {rank}", "user_error": told}
    (folder / f"rank{rank}.json").write_text(json.dumps({**failure, **rest}))


def test_own_error_is_told_before_those_who_lost_a_peer(tmp_path: Path) -> None:
    leave(tmp_path, 0, "CommError", 1.0, user=True)
    leave(tmp_path, 2, "KeyError", 2.0)
    error = first_error(read_failures(tmp_path), {0: 2, 2: 1})
    assert isinstance(error, RankError)
    assert error.problem == "Rank 2 failed; the others were stopped."
    assert "traceback 2" in error.seen


def test_error_for_the_user_is_told_as_it_is(tmp_path: Path) -> None:
    leave(tmp_path, 1, "DataError", 1.0, user=True)
    error = first_error(read_failures(tmp_path), {1: 2})
    assert (error.problem, error.seen, error.fix) == ("a problem", "something", "do this")


@pytest.mark.parametrize(
    ("code", "told"),
    [(-9, "signal SIGKILL"), (-11, "signal SIGSEGV"), (-15, "signal SIGTERM"), (7, "exit code 7")],
)
def test_silent_rank_is_told_before_those_who_lost_it(tmp_path: Path, code: int, told: str) -> None:
    leave(tmp_path, 0, "CommError", 1.0, user=True)
    error = first_error(read_failures(tmp_path), {0: 2, 1: code}, again="go on")
    assert error.problem.startswith("Rank 1 ")
    assert told in error.seen


def test_lost_peers_are_told_when_nobody_else_failed(tmp_path: Path) -> None:
    leave(tmp_path, 0, "CommError", 2.0, user=True)
    assert first_error(read_failures(tmp_path), {0: 2}).problem == "a problem"


def test_rank_that_gave_no_sign_is_named_with_the_error_of_those_who_waited(tmp_path: Path) -> None:
    leave(tmp_path, 0, "CommError", 1.0, user=True)
    leave(tmp_path, 1, "CommError", 2.0, user=True)
    error = first_error(read_failures(tmp_path), {0: 2, 1: 2}, unheard={2: ""}, again="go on")
    assert error.problem == "a problem"
    assert "no sign of rank 2" in error.seen
    assert "memory" not in str(error)
    assert error.fix.endswith("go on")


def test_rank_that_a_signal_told_to_end_is_named(tmp_path: Path) -> None:
    leave(tmp_path, 0, "CommError", 1.0, user=True)
    leave(tmp_path, 1, "Terminated", 2.0)
    error = first_error(read_failures(tmp_path), {0: 2, 1: 143}, again="go on")
    assert error.problem.startswith("Rank 1 was told to end")
    assert (error.seen, error.fix) == ("text 1", "go on")


def test_silence_of_all_is_told(tmp_path: Path) -> None:
    assert "no rank told why" in first_error(read_failures(tmp_path), {}).seen


def test_one_rank_leaves_the_threads_of_the_caller(tmp_path: Path) -> None:
    before = num_threads()
    siafu.fit("planted:200", epochs=1, threads=before + 1, out=str(tmp_path / "run"))
    assert num_threads() == before


def test_packages_are_found_under_their_names() -> None:
    code = "import siafu; print(siafu.nn.DynamicGNN, siafu.graph.smooth, siafu.errors.SiafuError)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DynamicGNN" in found.stdout
