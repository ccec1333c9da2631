"""The `siafu` command for tests: in this process, or as one of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from siafu.cli.main import main


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command ended with."""

    code: int
    out: str
    err: str


class Command:
    """Calls the command line in a folder; `here` is that folder, and nothing outside is used."""

    def __init__(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.here = here
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Answer:
        """Return how `siafu ARGUMENTS` ended."""
        self._monkeypatch.setattr(sys, "argv", ["siafu", *map(str, arguments)])
        self._capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)


def start(*arguments: object, here: Path) -> subprocess.Popen[str]:
    """Return `siafu ARGUMENTS` running as a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "siafu", *map(str, arguments)],
        cwd=here,
        env={**os.environ, "SIAFU_CACHE": str(here / ".cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def listing(folder: Path) -> dict[str, int]:
    """Return every file and folder below, hidden ones too, with sizes of files."""
    # Python's own bytecode beside a user's model is no work of ours.
    paths = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(p.relative_to(folder)): p.stat().st_size if p.is_file() else -1 for p in paths}
