"""Files are replaced whole, on the disk with their folder, and read within limits."""

import os
from pathlib import Path

import pytest

from siafu.files import (
    open_regular,
    parse_json,
    publish,
    read_regular,
    read_text,
    replacing,
    replacing_folder,
    write_bytes_atomically,
    write_text_atomically,
)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is brought to the disk, in order, by name; renames among it."""
    told: list[str] = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def note(descriptor: int) -> None:
        told.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix or "folder")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "replace", lambda a, b: told.append("renamed") or replace(a, b))
    monkeypatch.setattr(Path, "rename", lambda a, b: told.append("renamed") or rename(a, b))
    return told


def test_a_file_and_then_its_folder_are_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    write_text_atomically(tmp_path / "note", "new")
    assert (tmp_path / "note").read_text() == "new"
    assert synced == [".tmp", "renamed", "folder"]


def test_a_published_folder_is_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        publish(tmp_path / name, tmp_path / "target")
    assert synced == ["renamed", "folder", "renamed", "renamed", "folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "note"
    write_bytes_atomically(file, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(file) as temporary:  # noqa: PT012
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with replacing_folder(target) as made:
        (made / "a").write_text("first")
        assert not target.exists()
    with pytest.raises(KeyError), replacing_folder(target) as made:  # noqa: PT012
        (made / "a").write_text("half")
        raise KeyError
    assert (target / "a").read_text() == "first"
    with replacing_folder(target) as made:
        (made / "b").write_text("second")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [target]


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            open_regular(path)


def test_links_are_followed_only_where_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "text"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(tmp_path / "link", follow=False)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    assert len(read_regular(tmp_path / "file", most_bytes=11)) == 11
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_regular(tmp_path / "file", most_bytes=10)


@pytest.mark.parametrize("depth", [33, 200, 100_000])
def test_deep_json_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="nested"):
        parse_json("[" * depth + "]" * depth)
    assert parse_json("[[1], {}]") == [[1], {}]
