"""Locks end with their holder, and scratch folders of killed processes go at the next start."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from siafu.files import LockedError, is_locked, locked, scratch_folder

OLD = 1_000_000.0
HOLD = """
import sys, time
from pathlib import Path
from siafu.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_lock_is_held_once_and_let_go(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with locked(file):
        assert is_locked(file)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on "), locked(file):
            pass
    assert not file.exists()
    with locked(file):
        pass


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=f"process {process.pid} on "), locked(file):
            pass
        process.send_signal(signal.SIGKILL)
    assert file.exists()
    with locked(file):
        pass


def test_scratch_of_killed_processes_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "siafu-scratch-left"
    for folder in (left, tmp_path / "siafu-scratch-new", tmp_path / "mine"):
        folder.mkdir()
        (folder / "lock").touch()
    with scratch_folder() as used:
        os.utime(used, (OLD, OLD))
        for name in ("siafu-scratch-left", "mine"):
            os.utime(tmp_path / name, (OLD, OLD))
        with scratch_folder():
            assert used.exists()
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "siafu-scratch-new"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "letters.txt"
    victim.write_text("mine")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert victim.read_text() == "mine"
