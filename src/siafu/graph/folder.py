"""A folder of memory-mappable `.npy` files and a JSON manifest, written whole or not at all.

Stores, parts and checkpoints are such folders. The manifest names each array's shape, dtype and
sha256; nothing is ever pickled. A folder is written under a temporary name beside its target and
renamed when complete, so a reader never sees half of one.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import StoreError
from siafu.graph.array_stream import CHUNK_BYTES, Array, ArrayEntry, ArrayStream, damaged

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


@dataclass(slots=True)
class FolderWriter:
    """Collects the arrays, facts and sub-folders of one folder; `write_folder` makes one."""

    path: Path
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    _entries: dict[str, ArrayEntry] = field(default_factory=dict)
    _streams: dict[str, ArrayStream] = field(default_factory=dict)
    _children: dict[str, "FolderWriter"] = field(default_factory=dict)

    def save(self, name: str, array: Array, *, dtype: Any = None) -> None:
        """Write a whole array (a memory-mapped one is copied piece by piece)."""
        array = np.asarray(array)
        stream = self.stream(name, array.shape, array.dtype if dtype is None else dtype)
        row_bytes = max(1, array.nbytes // max(1, len(array)))
        step = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, len(array), step):
            stream.append(array[start : start + step])
        self.close(name)

    def stream(
        self, name: str, shape: tuple[int, ...], dtype: Any, *, kept_rows: int = 0
    ) -> ArrayStream:
        """Return a stream to append rows to; it is closed with the folder."""
        file = self.path / f"{name}.npy"
        stream = ArrayStream(file, shape, np.dtype(dtype), kept_rows=kept_rows)
        self._streams[name] = stream
        return stream

    def close(self, name: str) -> None:
        """Complete one stream now: a folder of many parts can't hold every file open."""
        self._entries[name] = self._streams.pop(name).close()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def load(self, name: str) -> Array:
        """Return an array that is complete already, memory-mapped."""
        empty = 0 in self._entries[name].shape
        return np.load(self.path / f"{name}.npy", mmap_mode=None if empty else "r")

    def child(self, name: str, kind: str) -> "FolderWriter":
        """Return the writer for a sub-folder, complete when this folder is."""
        if name not in self._children:
            (self.path / name).mkdir(exist_ok=True)
            self._children[name] = FolderWriter(self.path / name, kind)
        return self._children[name]

    def state(self) -> dict[str, Any]:
        """Return, for `restore`, what is complete: arrays, facts and the same of sub-folders."""
        return {
            "kind": self.kind,
            "facts": self.facts,
            "arrays": _rows_of_entries(self._entries),
            "children": {name: child.state() for name, child in self._children.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` told; arrays that were not complete then are written again."""
        self.facts, self._entries = dict(state["facts"]), _entries_of_rows(state["arrays"])
        for name, child in state["children"].items():
            self.child(name, child["kind"]).restore(child)

    def finish(self) -> None:
        """Close every stream and write the manifests."""
        for child in self._children.values():
            child.finish()
        for name in list(self._streams):
            self.close(name)
        manifest = {
            "format": f"siafu-{self.kind}",
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint(self._entries, self.facts),
            "facts": self.facts,
            "arrays": _rows_of_entries(self._entries),
        }
        write_text_atomically(self.path / MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def abandon(self) -> None:
        """Close every open file, complete or not."""
        for child in self._children.values():
            child.abandon()
        for stream in self._streams.values():
            stream.abandon()


def _rows_of_entries(entries: dict[str, ArrayEntry]) -> dict[str, Any]:
    return {
        name: {"shape": list(entry.shape), "dtype": entry.dtype, "sha256": entry.sha256}
        for name, entry in sorted(entries.items())
    }


def _entries_of_rows(rows: dict[str, Any]) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(tuple(row["shape"]), row["dtype"], row["sha256"])
        for name, row in rows.items()
    }


def fingerprint(entries: dict[str, ArrayEntry], facts: dict[str, Any]) -> str:
    """Return one hash over all contents, so that two folders of one graph can be told apart."""
    text = json.dumps([sorted((n, e.sha256) for n, e in entries.items()), facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Folder:
    """A complete folder, opened for reading; arrays are memory-mapped."""

    def __init__(self, path: Path, kind: str, manifest: dict[str, Any]) -> None:
        self.path, self.kind = path, kind
        self.facts: dict[str, Any] = manifest["facts"]
        self.fingerprint: str = manifest["fingerprint"]
        self.entries = _entries_of_rows(manifest["arrays"])

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def load(self, name: str) -> Array:
        """Return the array, memory-mapped read-only, after checking its header and length."""
        entry = self.entries[name]
        file = self.path / f"{name}.npy"
        try:
            array = np.load(file, mmap_mode="r" if 0 not in entry.shape else None)
        except (OSError, ValueError, EOFError) as error:
            raise damaged(file, str(error)) from error
        if array.shape != entry.shape or array.dtype.str != entry.dtype:
            seen = f"{array.dtype.str} {array.shape}, manifest says {entry.dtype} {entry.shape}"
            raise damaged(file, seen)
        _check_length(file, array)
        return array

    def load_if_present(self, name: str) -> Array | None:
        """Return the array, or None when the folder has none of that name."""
        return self.load(name) if name in self else None

    def verify(self) -> None:
        """Raise unless every array has the length, dtype and checksum the manifest states."""
        for name, entry in self.entries.items():
            array = self.load(name)
            digest = hashlib.sha256()
            # Read, not mapped: mapped pages would count as this process's memory.
            with (self.path / f"{name}.npy").open("rb") as file:
                file.seek(-array.nbytes, os.SEEK_END)
                while piece := file.read(CHUNK_BYTES):
                    digest.update(piece)
            if digest.hexdigest() != entry.sha256:
                seen = f"sha256 {digest.hexdigest()[:12]}..., manifest says {entry.sha256[:12]}..."
                raise damaged(self.path / f"{name}.npy", f"wrong checksum: {seen}")

    def child(self, name: str, kind: str) -> "Folder":
        """Return a sub-folder."""
        return open_folder(self.path / name, kind)


def _check_length(file: Path, array: Array) -> None:
    # A file that goes on after its array would be mapped without a word.
    if isinstance(array, np.memmap) and file.stat().st_size != array.offset + array.nbytes:
        seen = f"{file.stat().st_size} bytes long, {array.offset + array.nbytes} were written"
        raise damaged(file, seen)


def folder_kind(path: Path) -> str | None:
    """Return the kind of siafu folder at `path`, or None when it is no such folder."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        return str(manifest["format"]).removeprefix("siafu-")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_folder(path: Path | str, kind: str) -> Folder:
    """Return the folder at `path`, refusing one of another kind or version."""
    path = Path(path)
    make = f"check the path, or make it with `siafu {'ingest' if kind == 'store' else 'partition'}`"
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"No siafu {kind} there.", seen=str(path), fix=make) from error
    except (OSError, ValueError) as error:
        raise damaged(path / MANIFEST, str(error)) from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != f"siafu-{kind}":
        raise StoreError(f"Not a siafu {kind}.", seen=f"{path} holds {found!r}", fix=make)
    if manifest.get("version") != FORMAT_VERSION:
        raise StoreError(
            f"This {kind} was written by another version.",
            seen=f"format version {manifest.get('version')}, this siafu reads {FORMAT_VERSION}",
            fix="make it again with this version",
        )
    try:
        return Folder(path, kind, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path / MANIFEST, f"a section is missing or wrong: {error}") from error


def check_free(target: Path, overwrite: bool) -> None:
    """Raise where something is at the target that may not be replaced."""
    if target.exists() and not overwrite:
        raise StoreError(
            "The target exists already.",
            seen=str(target),
            fix="name another folder, remove it, or pass --overwrite",
        )


def publish(made: Path, target: Path) -> None:
    """Let a complete folder take the target's place."""
    if not target.exists():
        made.rename(target)
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def write_folder(
    target: Path | str, kind: str, *, overwrite: bool = False
) -> Iterator[FolderWriter]:
    """Yield a writer; on success the folder appears at `target` at once, on error not at all."""
    target = Path(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        check_free(target, overwrite)
        temporary.mkdir(parents=True)
        writer = FolderWriter(temporary, kind)
        try:
            yield writer
            writer.finish()
            publish(temporary, target)
        except BaseException:
            writer.abandon()
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise unwritable(target, error) from error


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failed write inside into an error that tells a user why."""
    try:
        yield
    except OSError as error:
        raise unwritable(target, error) from error


def unwritable(target: Path, error: OSError, *, go_on: str | None = None) -> StoreError:
    """Return the error that tells a user why `target` could not be written, and how to go on."""
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(_existing_parent(target)).free
        return StoreError(
            "The disk is full.",
            seen=f"{error.strerror} while writing {target} ({free / 2**20:.0f} MiB free)",
            fix="free some space or write to another disk; nothing half written was left"
            if go_on is None
            else f"free some space and {go_on}",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(
            "No permission to write there.",
            seen=f"{error.strerror}: {target}",
            fix="choose a folder you may write to",
        )
    return StoreError("Could not write.", seen=f"{error}: {target}", fix="check the path and disk")


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in [path, *path.absolute().parents] if parent.exists())


def write_text_atomically(path: Path, text: str) -> None:
    """Replace the file's contents at once; a reader sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
