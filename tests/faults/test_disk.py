"""A full disk and a disk that may not be written: told plainly, nothing half written."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command import Command, listing


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a disk of a size and gives its folder."""
    mounted = []

    def mount(size: str) -> Path:
        place = tmp_path_factory.mktemp("disk")
        try:
            _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("a small disk: needs root and the right to mount")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


@pytest.fixture
def read_only(small_disk: Callable[[str], Path]) -> Path:
    place = small_disk("1m")
    _mount("-o", "remount,ro", str(place))
    return place


TOO_MUCH = "planted:20000"
"""About 5 MB as a store."""


@pytest.mark.parametrize("command", ["ingest", "partition", "train", "train-2"])
def test_full_disk_leaves_nothing(siafu: Command, small_disk, command: str) -> None:
    disk = small_disk("2m")
    name, _, ranks = command.partition("-")
    if name == "train":
        arguments = ("--out", disk / "new", "--ranks", ranks or 1, "--partition", "hash")
    else:
        arguments = (disk / "new",)
    answer = siafu(name, TOO_MUCH, *arguments, "--quiet")
    assert answer.code == 2, answer
    assert "error: The disk is full." in answer.err
    assert "Traceback" not in answer.err
    assert listing(disk) == {}


@pytest.mark.parametrize("ranks", [1, 2])
def test_disk_that_fills_while_training_keeps_whole_checkpoints(
    siafu: Command, small_disk, ranks: int
) -> None:
    disk = small_disk("3m")
    # One checkpoint is 0.6 MB of weights, best weights and two moments; a few fit, not all files.
    settings = ("--hidden", 1024, "--checkpoint-every", 1, "--epochs", 30, "--partition", "hash")
    (disk / "ballast").write_bytes(bytes(1 << 20))
    answer = siafu(
        "train", "planted:300", "--out", disk / "run", "--ranks", ranks, *settings, "--quiet"
    )
    assert answer.code == 2, answer
    assert "error: The disk is full." in answer.err
    assert "Traceback" not in answer.err
    assert not [name for name in listing(disk) if name.endswith(".tmp")]
    (disk / "ballast").unlink()
    assert siafu("inspect", disk / "run", "--verify").code == 0


@pytest.mark.parametrize("command", ["ingest", "partition", "train"])
def test_folder_without_permission_is_told(siafu: Command, read_only: Path, command: str) -> None:
    out = ("--out",) if command == "train" else ()
    answer = siafu(command, "planted:200", *out, read_only / "new", "--quiet")
    assert answer.code == 2, answer
    assert "permission" in answer.err.lower() or "read-only" in answer.err.lower()
    assert "Traceback" not in answer.err
    assert listing(read_only) == {}


def test_default_run_folder_without_permission_is_told(
    siafu: Command, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(read_only)
    answer = siafu("train", "planted:200")
    assert answer.code == 2
    assert "--out" in answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the disk test covers it")
def test_folder_of_another_user_is_told(siafu: Command, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    answer = siafu("ingest", "planted:200", tmp_path / "closed" / "store")
    assert answer.code == 2
    assert "No permission to write there" in answer.err
