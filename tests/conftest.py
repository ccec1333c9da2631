"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """A pool of four real ranks, started once."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real graphs, or a skip that says what to set."""
    folder = os.environ.get("SIAFU_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real graphs: set SIAFU_DATA to a folder with cora.npz and others")
    return Path(folder)
