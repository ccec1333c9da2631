"""Fixtures of whole runs on dynamic graphs."""

from pathlib import Path

import pytest

from siafu.graph import save_dynamic
from tests.command import Command
from tests.dynamic.graphs import awkward_dynamic


@pytest.fixture
def command(tmp_path: Path, monkeypatch, capsys) -> Command:
    """The command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dynamic graph on disk."""
    target = tmp_path_factory.mktemp("dynamic") / "awkward"
    save_dynamic(awkward_dynamic(), target)
    return target
