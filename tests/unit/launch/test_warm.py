"""Ranks are forked from a process that has loaded: once, with the caller's variables and files."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from siafu.comm import STORE_VARIABLE
from siafu.config import make_config
from siafu.errors import RankError
from siafu.launch import ranks, warm

LOADS_WITHIN = 120.0
JOB = json.dumps({"verb": "train", "parts": "none"})


@pytest.fixture(scope="module")
def loaded() -> Iterator[warm.WarmProcess]:
    """A warm process of this file's own."""
    process = warm.WarmProcess(dict(os.environ))
    yield process
    process.close()


def end_of(fork: warm.Fork) -> int:
    deadline = time.monotonic() + LOADS_WITHIN
    while (code := fork.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return code


def variables(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "RANK": "3", "SIAFU_ERRORS": str(tmp_path), **more}


def waiting(tmp_path: Path) -> dict[str, str]:
    """Return variables of a rank that waits for another, which never comes."""
    (tmp_path / "config.yaml").write_text("data: planted\n")
    sizes = {"WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5", "LOCAL_RANK": "3"}
    return variables(tmp_path, **sizes, **{STORE_VARIABLE: str(tmp_path / "store")})


def test_a_fork_fails_as_a_rank_does_and_its_code_is_told(
    loaded: warm.WarmProcess, tmp_path: Path
) -> None:
    # no settings in that folder
    fork = loaded.fork([str(tmp_path), JOB], variables(tmp_path))
    assert end_of(fork) in (1, 2)
    assert json.loads((tmp_path / "rank3.json").read_text())["rank"] == 3


def test_a_fork_writes_where_the_caller_writes_now(
    loaded: warm.WarmProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fork = loaded.fork([str(tmp_path)], variables(tmp_path))  # an argument too few
    assert end_of(fork) == 1
    assert "missing 1 required positional argument" in capfd.readouterr().err


def test_a_signal_is_told_as_popen_tells_it(loaded: warm.WarmProcess, tmp_path: Path) -> None:
    waits = waiting(tmp_path)
    fork = loaded.fork([str(tmp_path), JOB], waits)
    assert psutil.Process(fork.pid).ppid() == loaded._process.pid
    fork.send_signal(signal.SIGKILL)
    assert end_of(fork) == -signal.SIGKILL
    fork.send_signal(signal.SIGKILL)  # ended: nobody is signalled
    fork.end()


def test_the_next_run_has_the_same_process_unless_variables_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm, "_warm", None)
    first = warm.warm_process({"OMP_NUM_THREADS": "1"})
    try:
        monkeypatch.setenv("SIAFU_ANYTHING", "read when it is needed")
        assert warm.warm_process({"OMP_NUM_THREADS": "1"}) is first
        second = warm.warm_process({"OMP_NUM_THREADS": "2"})
        assert second is not first
        assert not first.is_alive
    finally:
        warm._end_warm()
    assert not second.is_alive


def test_without_its_warm_process_a_fork_is_told_as_killed(tmp_path: Path) -> None:
    process = warm.WarmProcess(dict(os.environ))
    waits = waiting(tmp_path)
    fork = process.fork([str(tmp_path), JOB], waits)
    process.close()
    assert end_of(fork) == -signal.SIGKILL
    with pytest.raises(RankError, match="did not answer"):
        process.fork([str(tmp_path), JOB], waits)


def test_ranks_are_started_with_one_arena_unless_told_otherwise(monkeypatch):
    """Set when they begin: once they have loaded torch it would be too late."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(ranks, "warm_process", asked.append)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    ranks.begin_loading(make_config(data="planted", ranks=2))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    ranks.begin_loading(make_config(data="planted", ranks=2))
    assert [variables["MALLOC_ARENA_MAX"] for variables in asked] == ["1", "4"]
