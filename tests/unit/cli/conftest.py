"""The command line in an empty folder."""

from pathlib import Path

import pytest

from tests.command import Command


@pytest.fixture
def siafu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`siafu(...)` runs the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache" / "tables").mkdir(parents=True)
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / ".cache"))
    monkeypatch.delenv("SIAFU_DATA", raising=False)
    return Command(tmp_path, monkeypatch, capsys)
