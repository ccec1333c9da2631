"""A folder of memory-mappable `.npy` files and a JSON manifest, written whole or not at all.

Stores, parts and checkpoints are such folders. The manifest names each array's shape, dtype and
sha256; nothing is ever pickled. A folder is written under a temporary name beside its target and
renamed when complete, so a reader never sees half of one. What is read is not trusted: only plain
files in the folder are opened, and only as long as the manifest says.
"""

import copy
import errno
import hashlib
import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.lib import format as npy_format

from siafu.errors import StoreError
from siafu.files import open_regular, replacing_folder, write_text_atomically
from siafu.graph.array_stream import CHUNK_BYTES, Array, ArrayStream
from siafu.graph.manifest import (
    MANIFEST,
    ArrayEntry,
    Manifest,
    damaged,
    make_manifest,
    manifest_kind,
    read_manifest,
)
from siafu.graph.mirror import ensure_file, origin_of

_MOST_HEADER_BYTES = 1 << 16


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
        manifest = make_manifest(self.kind, self._entries, self.facts)
        text = json.dumps(manifest.model_dump(), indent=1)
        write_text_atomically(self.path / MANIFEST, text + "\n")

    def abandon(self) -> None:
        """Close every open file, complete or not."""
        for child in self._children.values():
            child.abandon()
        for stream in self._streams.values():
            stream.abandon()


def _rows_of_entries(entries: dict[str, ArrayEntry]) -> dict[str, Any]:
    return {name: entry.model_dump(mode="json") for name, entry in sorted(entries.items())}


def _entries_of_rows(rows: dict[str, Any]) -> dict[str, ArrayEntry]:
    return {name: ArrayEntry.model_validate(row) for name, row in rows.items()}


class Check(Protocol):
    """What is asked of an array's numbers while they pass by once, in pieces."""

    def see(self, numbers: Array) -> None:
        """Look at the next piece."""
        ...

    def fault(self) -> str | None:
        """Return what is wrong with what was seen, or None."""
        ...


class Folder:
    """A complete folder, opened for reading; arrays are memory-mapped."""

    def __init__(self, path: Path, kind: str, manifest: Manifest) -> None:
        self.path, self.kind = path, kind
        self.facts = manifest.facts
        self.fingerprint = manifest.fingerprint
        self.entries = manifest.arrays

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str) -> ArrayEntry:
        """Return what the manifest says about an array that must be there."""
        if name not in self.entries:
            raise self.damaged(MANIFEST, f"it names no array {name!r}")
        return self.entries[name]

    def damaged(self, file: str, seen: str) -> StoreError:
        """Return the error that names a file of this folder and what is wrong with it."""
        return damaged(self.path / file, seen, kind=self.kind)

    def load(self, name: str) -> Array:
        """Return the array, memory-mapped read-only, after checking its header and length."""
        entry = self.entry(name)
        with self._opened(name) as file:
            offset = file.tell()
            if 0 in entry.shape:
                return np.empty(entry.shape, entry.dtype)
            return np.memmap(file, np.dtype(entry.dtype), "r", offset, entry.shape)

    def load_if_present(self, name: str) -> Array | None:
        """Return the array, or None when the folder has none of that name."""
        return self.load(name) if name in self else None

    def verify(
        self, checks: Mapping[str, Check] | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Raise unless every array (or those named) is as long as stated, with the right checksum.

        Each file is read once; `checks` look at the numbers of some arrays on the way.
        """
        for name in self.entries if names is None else names:
            check = (checks or {}).get(name)
            file = self.path / f"{name}.npy"
            if origin_of(file) is None:
                self._verify(name, check)
                continue
            try:
                self._verify(name, copy.deepcopy(check))
            except StoreError:  # of a copy that was damaged since it was fetched
                file.unlink(missing_ok=True)
                self._verify(name, check)

    def _verify(self, name: str, check: Check | None) -> None:
        digest, entry = hashlib.sha256(), self.entry(name)
        # A truth value is a byte: another than 0 and 1 would be counted wrongly.
        dtype = np.dtype("|u1" if entry.dtype == "|b1" else entry.dtype)
        # Read, not mapped: mapped pages would count as this process's memory.
        with self._opened(name) as file:
            piece = file.read(CHUNK_BYTES)
            while piece:
                hashing = threading.Thread(target=digest.update, args=(piece,))
                hashing.start()
                try:
                    if check is not None:
                        check.see(np.frombuffer(piece, dtype))
                    following = file.read(CHUNK_BYTES)
                finally:
                    hashing.join()
                piece = following
        if digest.hexdigest() != entry.sha256:
            seen = f"sha256 {digest.hexdigest()[:12]}..., manifest says {entry.sha256[:12]}..."
            raise self.damaged(f"{name}.npy", f"wrong checksum: {seen}")
        if check is not None and (fault := check.fault()) is not None:
            raise self.damaged(f"{name}.npy", fault)

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        """Yield an array's file at its first number, if it is a plain one as the manifest says."""
        entry = self.entry(name)
        self._ensure(name, entry)
        try:
            with open_regular(self.path / f"{name}.npy", follow=False) as file:
                self._check_header(name, entry, file)
                yield file
        except (OSError, ValueError) as error:
            raise self.damaged(f"{name}.npy", str(error)) from error

    def _ensure(self, name: str, entry: ArrayEntry) -> None:
        """Have the file of an array here, where the folder is a copy of one elsewhere."""

        def check(made: Path) -> None:
            with open_regular(made) as file:
                self._check_header(name, entry, file)
                if _sha256(file) != entry.sha256:
                    raise OSError(errno.EIO, "wrong checksum of what was fetched")

        most = math.prod(entry.shape) * np.dtype(entry.dtype).itemsize + _MOST_HEADER_BYTES
        ensure_file(self.path / f"{name}.npy", most_bytes=most, check=check)

    def _check_header(self, name: str, entry: ArrayEntry, file: IO[bytes]) -> None:
        try:
            version = npy_format.read_magic(file)
            shape, is_fortran, dtype = npy_format.read_array_header_1_0(file)
        except Exception as error:  # numpy reads the header as a piece of Python
            raise self.damaged(f"{name}.npy", f"its header: {error}") from error
        is_ours = version == (1, 0) and not (is_fortran and len(shape) > 1)
        if shape != entry.shape or dtype.str != entry.dtype or not is_ours:
            seen = f"{dtype.str} {shape}, manifest says {entry.dtype} {entry.shape}"
            raise self.damaged(f"{name}.npy", seen)
        length = file.tell() + math.prod(shape) * dtype.itemsize
        found = os.fstat(file.fileno()).st_size
        if found != length:
            raise self.damaged(f"{name}.npy", f"{found} bytes long, {length} were written")

    def child(self, name: str, kind: str) -> "Folder":
        """Return a sub-folder."""
        path = self.path / name
        if path.is_symlink():
            raise self.damaged(name, "a symbolic link, not a folder")
        return open_folder(path, kind)


def _sha256(file: IO[bytes]) -> str:
    """Return the checksum of what is left of a file."""
    digest = hashlib.sha256()
    while piece := file.read(CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def folder_kind(path: Path) -> str | None:
    """Return the kind of siafu folder at `path`, or None when it is no such folder."""
    return manifest_kind(path)


def open_folder(path: Path | str, kind: str) -> Folder:
    """Return the folder at `path`, refusing one of another kind, a later version, or damaged."""
    path = Path(path)
    file = path / MANIFEST
    ensure_file(file)
    try:
        return Folder(path, kind, read_manifest(path, kind))
    except StoreError:
        if origin_of(file) is None:
            raise
        file.unlink(missing_ok=True)  # of a copy that was damaged since it was fetched
        ensure_file(file)
        return Folder(path, kind, read_manifest(path, kind))


def check_free(target: Path, overwrite: bool) -> None:
    """Raise where something is at the target that may not be replaced."""
    if target.exists() and not overwrite:
        raise StoreError(
            "The target exists already.",
            seen=str(target),
            fix="name another folder, remove it, or pass --overwrite",
        )


@contextmanager
def write_folder(
    target: Path | str, kind: str, *, overwrite: bool = False
) -> Iterator[FolderWriter]:
    """Yield a writer; on success the folder appears at `target` at once, on error not at all."""
    target = Path(target)
    try:
        check_free(target, overwrite)
        with replacing_folder(target) as temporary:
            writer = FolderWriter(temporary, kind)
            try:
                yield writer
                writer.finish()
            except BaseException:
                writer.abandon()
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
