"""Folders are written whole or not at all, and damage is found and named."""

import json
from pathlib import Path

import numpy as np
import pytest

from siafu.errors import StoreError
from siafu.files import write_text_atomically
from siafu.graph import folder_kind, open_folder, unwritable, write_folder


def write(target: Path, **options) -> None:
    with write_folder(target, "store", **options) as writer:
        writer.save("rows", np.arange(12, dtype=np.int64).reshape(4, 3))
        writer.save("none", np.empty((0, 2), np.float32))
        writer.facts["name"] = "little"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "made")
    return tmp_path / "made"


def edit_manifest(folder: Path, **changes) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def test_arrays_and_facts_come_back(folder: Path) -> None:
    opened = open_folder(folder, "store")
    opened.verify()
    assert opened.load("rows").tolist() == np.arange(12).reshape(4, 3).tolist()
    assert opened.load("none").shape == (0, 2)
    assert opened.load_if_present("absent") is None
    assert opened.facts == {"name": "little"}
    assert folder_kind(folder) == "store"


def test_loaded_arrays_are_mapped_and_read_only(folder: Path) -> None:
    array = open_folder(folder, "store").load("rows")
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_crash_while_writing_leaves_nothing(tmp_path: Path, error) -> None:
    with pytest.raises(error), write_folder(tmp_path / "made", "store") as writer:  # noqa: PT012
        writer.save("rows", np.arange(3))
        writer.stream("open", (5,), np.int64).append(np.arange(2))
        writer.child("part0", "part").stream("open", (5,), np.int64)
        raise error
    assert list(tmp_path.iterdir()) == []


def test_crash_while_overwriting_keeps_the_old_folder(folder: Path) -> None:
    with pytest.raises(RuntimeError), write_folder(folder, "store", overwrite=True):
        raise RuntimeError
    assert [path.name for path in folder.parent.iterdir()] == ["made"]
    open_folder(folder, "store").verify()


def test_existing_target_is_refused_unless_overwritten(folder: Path) -> None:
    with pytest.raises(StoreError, match="exists already"):
        write(folder)
    with write_folder(folder, "parts", overwrite=True) as writer:
        writer.save("other", np.arange(2))
    assert folder_kind(folder) == "parts"
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_truncated_array_is_named(folder: Path) -> None:
    file = folder / "rows.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StoreError, match=r"rows\.npy is damaged") as caught:
        open_folder(folder, "store").load("rows")
    assert str(file) in caught.value.seen


def test_array_cut_inside_its_header_is_named(folder: Path) -> None:
    (folder / "rows.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(StoreError, match=r"rows\.npy is damaged"):
        open_folder(folder, "store").load("rows")


def test_missing_array_is_named(folder: Path) -> None:
    (folder / "rows.npy").unlink()
    with pytest.raises(StoreError, match=r"rows\.npy is damaged"):
        open_folder(folder, "store").verify()


def test_flipped_bit_fails_verification_only(folder: Path) -> None:
    file = folder / "rows.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    opened = open_folder(folder, "store")
    opened.load("rows")
    with pytest.raises(StoreError, match="wrong checksum"):
        opened.verify()


def test_array_of_another_shape_is_refused(folder: Path) -> None:
    np.save(folder / "rows.npy", np.arange(5))
    with pytest.raises(StoreError, match=r"manifest says <i8 \(4, 3\)"):
        open_folder(folder, "store").load("rows")


def test_pickled_objects_are_never_loaded(folder: Path) -> None:
    np.save(folder / "rows.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(StoreError, match=r"rows\.npy is damaged"):
        open_folder(folder, "store").load("rows")


def test_folder_of_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="Not a siafu parts") as caught:
        open_folder(folder, "parts")
    assert "siafu-store" in caught.value.seen


def test_folder_of_another_version_is_refused(folder: Path) -> None:
    edit_manifest(folder, version=99)
    with pytest.raises(StoreError, match="format version 99"):
        open_folder(folder, "store")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "\x00\xff"])
def test_unreadable_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(StoreError):
        open_folder(folder, "store")
    assert folder_kind(folder) is None


@pytest.mark.parametrize("missing", ["facts", "arrays", "fingerprint"])
def test_manifest_without_a_section_is_refused(folder: Path, missing: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest[missing]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        open_folder(folder, "store")


def test_nothing_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No siafu store there") as caught:
        open_folder(tmp_path / "absent", "store")
    assert "siafu ingest" in caught.value.fix
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="No siafu store there"):
        open_folder(tmp_path / "file", "store")


def test_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "same")
    with write_folder(tmp_path / "other", "store") as writer:
        writer.save("rows", np.arange(3))
    one, same, other = (
        open_folder(tmp_path / name, "store").fingerprint for name in ("one", "same", "other")
    )
    assert one == same != other


def test_text_is_replaced_at_once(tmp_path: Path) -> None:
    file = tmp_path / "note"
    write_text_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(file, "\ud800")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_write_errors_say_what_to_do(tmp_path: Path) -> None:
    full = unwritable(tmp_path / "a" / "b", OSError(28, "No space left on device"))
    denied = unwritable(tmp_path, OSError(13, "Permission denied"))
    odd = unwritable(tmp_path, OSError(5, "Input/output error"))
    assert full.problem == "The disk is full."
    assert "MiB free" in full.seen
    assert denied.problem == "No permission to write there."
    assert "Input/output error" in odd.seen
