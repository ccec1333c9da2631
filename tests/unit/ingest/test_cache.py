"""The cache: what it holds, and that emptying it touches nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from siafu.errors import StoreError
from siafu.graph import save_store
from siafu.ingest import cache as module
from siafu.ingest import empty_cache, list_cache, load, processes_using

MADE, HALF = "mine-0123456789abcdef", "other-fedcba9876543210.partial"
UNFINISHED = ".ogbn-products.01234567.tmp"
FETCHED = {"ogbn-arxiv.zip", "ogbn-arxiv.zip.sha256", ".ogbn-products.zip.01234567.tmp"}
USERS_FILES = {"holiday.zip", "cora", "cora.zip", ".holiday.removed", "ogbn-arxiv.sha256"}
SIAFUS = FETCHED | {MADE, HALF, UNFINISHED, "ogbn-arxiv"}
USERS = USERS_FILES | {"notes", "link", "results", "run-0123"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a store, work half done, a download, and things that are not siafu's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SIAFU_CACHE", str(folder))
    for name in ("tables", "named", "downloads"):
        (folder / name).mkdir(parents=True)
    graph = load("planted:50")
    save_store(graph, folder / "tables" / MADE)
    save_store(graph, folder / "named" / "ogbn-arxiv")
    for half in (f"tables/{HALF}", f"named/{UNFINISHED}"):
        (folder / half).mkdir()
        (folder / half / "lock").touch()
    for name in FETCHED:
        (folder / "downloads" / name).write_bytes(b"12345")
    for name in USERS_FILES:
        (folder / "downloads" / name).write_bytes(b"not siafu's")
    (folder / "tables" / "notes").mkdir()
    for name in ("tables/results", "tables/run-0123", "named/cora"):
        save_store(graph, folder / name)
    save_store(graph, tmp_path / "elsewhere")
    (folder / "tables" / "link").symlink_to(tmp_path / "elsewhere")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/*")}


def test_only_what_siafu_put_there_is_listed_and_removed(home: Path, tmp_path: Path) -> None:
    before = json.loads((tmp_path / "elsewhere" / "manifest.json").read_text())
    held = {kept.path.name: kept.num_bytes for kept in list_cache()}
    assert held.keys() == SIAFUS
    assert held["ogbn-arxiv.zip"] == 5
    assert held[MADE] > 1000
    assert {kept.path.name for kept in empty_cache()} == held.keys()
    assert names(home) == USERS
    assert json.loads((tmp_path / "elsewhere" / "manifest.json").read_text()) == before
    assert list_cache() == []


def test_a_store_half_removed_is_none_and_goes_next_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            empty_cache()
    assert MADE not in names(home)
    empty_cache()
    assert names(home) == USERS


HOLDS = """
import mmap, sys
file = open(sys.argv[1], "rb")
view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
file.close()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="other processes can't be seen")
def test_a_store_in_use_stays(home: Path) -> None:
    array = max((home / "tables" / MADE).rglob("*"), key=lambda p: p.stat().st_size)
    assert array.stat().st_size > 0
    command = [sys.executable, "-c", HOLDS, str(array)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="in use") as caught:
            empty_cache()
        assert str(holder.pid) in caught.value.seen
        assert MADE in names(home)
        holder.communicate(timeout=60)
    assert processes_using([home]) == []
    empty_cache()
    assert MADE not in names(home)
