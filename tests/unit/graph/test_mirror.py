"""Folders under a URL: each file is fetched when it is read, once, whole and with its checksum."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import siafu
from siafu.errors import ConfigError, StoreError
from siafu.files import fetched_bytes
from siafu.graph import at_hand, folder_kind, made_for, open_folder, origin_of, write_folder
from siafu.partitioning import open_parts

ROWS = np.arange(5000, dtype=np.int64)


@pytest.fixture
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A store in memory, of a name of its own; the cache is empty."""
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    url = f"memory://{request.node.name}/graph.store"
    with made_for(url) as folder, write_folder(folder, "store") as writer:
        writer.save("rows", ROWS)
        writer.save("others", ROWS + 1)
        writer.facts["name"] = "little"
    return url


def far_file(url: str, name: str) -> str:
    return f"{url.removeprefix('memory:/')}/{name}"


def test_only_what_is_read_is_fetched_and_only_once(url: str) -> None:
    path = at_hand(url)
    assert folder_kind(path) == "store"
    assert origin_of(path / "rows.npy") == f"{url}/rows.npy"
    folder = open_folder(path, "store")
    before = fetched_bytes()
    assert np.array_equal(folder.load("rows"), ROWS)
    assert fetched_bytes() - before == (path / "rows.npy").stat().st_size
    assert not (path / "others.npy").exists()
    assert np.array_equal(open_folder(at_hand(url), "store").load("rows"), ROWS)
    manifest = (path / "manifest.json").stat().st_size
    assert fetched_bytes() - before == (path / "rows.npy").stat().st_size + manifest


@pytest.mark.parametrize("damage", ["flipped", "cut short", "longer"])
def test_damage_far_away_is_named_and_nothing_of_it_stays(
    url: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.files.remote._PAUSE_SECONDS", 0.0)
    system, file = importlib.import_module("fsspec").filesystem("memory"), far_file(url, "rows.npy")
    raw = bytearray(system.cat_file(file))
    raw[-1] ^= 1
    changed = {"flipped": raw, "cut short": raw[:-8], "longer": raw + bytes(1 << 17)}[damage]
    system.pipe_file(file, bytes(changed))
    path = at_hand(url)
    with pytest.raises(StoreError, match=r"Could not reach the data[^$]*rows\.npy"):
        open_folder(path, "store").load("rows")
    assert not (path / "rows.npy").exists()


def test_copy_that_was_damaged_here_is_fetched_again(url: str) -> None:
    path = at_hand(url)
    open_folder(path, "store").load("rows")
    for name in ("rows.npy", "manifest.json"):
        raw = bytearray((path / name).read_bytes())
        raw[-9] ^= 1
        (path / name).write_bytes(raw)
    folder = open_folder(path, "store")
    folder.verify()
    assert np.array_equal(folder.load("rows"), ROWS)


def test_other_contents_at_a_url_are_another_copy(url: str) -> None:
    before = at_hand(url)
    with pytest.raises(StoreError, match="exists already"), made_for(url):
        pass
    with made_for(url, overwrite=True) as folder, write_folder(folder, "store") as writer:
        writer.save("rows", ROWS + 2)
    now = at_hand(url)
    assert now != before
    assert np.array_equal(open_folder(now, "store").load("rows"), ROWS + 2)


@pytest.mark.parametrize(
    "bad", ["s3://key:secret@bucket/x", "ftp://host/x", "s3://b/../x", "file::s3://b/x", "s3://b?x"]
)
def test_urls_with_credentials_or_tricks_are_refused(bad: str) -> None:
    source = "s3://" + bad if "::" in bad and not bad.startswith("s3") else bad
    with pytest.raises(ConfigError, match="URL can't be used"):
        at_hand(source)


def test_folder_that_is_not_there_is_told_with_what_makes_one() -> None:
    with pytest.raises(StoreError, match="No siafu folder there") as caught:
        at_hand("memory://nowhere/at-all")
    assert "siafu partition" in caught.value.fix


@pytest.mark.usefixtures("runs_on_pool")
def test_training_by_url_is_that_on_the_disk_and_ranks_fetch_their_own_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    url, settings = f"file://{tmp_path}/far/g.parts", {"epochs": 2, "quiet": True}
    made = siafu.partition("planted:300", url, parts=3, method="hash", quiet=True)
    assert not list(made.path.rglob("*.npy")), "nothing is fetched to be opened"
    far = siafu.fit(url, out=tmp_path / "far-run", **settings)
    near = siafu.fit(tmp_path / "far" / "g.parts", out=tmp_path / "near", **settings)
    assert far.result["losses"] == near.result["losses"]
    assert far.predictions.equals(near.predictions)
    sizes = [
        sum(f.stat().st_size for f in (tmp_path / "far" / "g.parts" / f"part{k}").iterdir())
        for k in range(3)
    ]
    for part, (fetched, size) in enumerate(zip(far.result["fetched_bytes"], sizes, strict=True)):
        assert fetched < size + 0.3 * sum(sizes), f"rank {part} read more than its own part"
    assert siafu.infer(far.path, quiet=True).num_rows == 300
    assert open_parts(at_hand(url)).num_parts == 3
