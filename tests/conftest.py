"""Fixtures shared by all tests."""

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import RankPool, skip_sync, work_of_run

launch = importlib.import_module("siafu.launch.ranks")

# A shell that starts tests in the background has them ignore interrupts, and so all they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands, ranks and workers are some hundred processes, of which each would compile siafu anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests kill processes, not machines: what the kernel has is as good as what the disk has.
os.fsync = skip_sync

# Tensors here are small, and torch's threads spin while they wait: beside the ranks' processes two
# of them take 2.6 times the processor time of one.
torch.set_num_threads(1)

# Python's collector would look at a million objects of modules again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Let the collector work from now on, on what tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of tables, and trusted models, go to folders of the tests, not to the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SIAFU_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("SIAFU_CONFIG", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """A pool of four real ranks, started once."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def runs_on_pool(ranks: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs over several ranks have those of the pool, so that none has to start."""

    def run_ranks(
        num_ranks: int, run: Path, job: str, *, meanwhile: Any = None, **settings: Any
    ) -> None:
        with ThreadPoolExecutor(1) as helper:
            done = helper.submit(ranks.run, work_of_run, num_ranks, str(run.absolute()), job)
            while meanwhile is not None and not done.done():
                meanwhile()
                time.sleep(0.005)
            done.result()

    monkeypatch.setattr(launch, "run_ranks", run_ranks)
    monkeypatch.setattr(launch, "warm_process", lambda variables: None)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real graphs, or a skip that says what to set."""
    folder = os.environ.get("SIAFU_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real graphs: set SIAFU_DATA to a folder with cora.npz and others")
    return Path(folder)
