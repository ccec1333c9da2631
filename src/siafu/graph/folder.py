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
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy_format

from siafu.errors import StoreError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
_CHUNK_BYTES = 1 << 24

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """What the manifest says about one array."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str


class ArrayStream:
    """Appends rows to one `.npy` file whose shape is known beforehand, hashing as it writes."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.written_rows = 0
        self._path, self._hash = path, hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")
        header = {"descr": npy_format.dtype_to_descr(self.dtype), "fortran_order": False}
        npy_format.write_array_header_1_0(self._file, header | {"shape": shape})

    def append(self, rows: Array) -> None:
        """Write `rows` after those already written; their dtype is converted if need be."""
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape[1:] == self.shape[1:], f"rows of {self._path.name} changed shape"
        view = rows.reshape(-1).view(np.uint8)
        for start in range(0, view.size, _CHUNK_BYTES):
            piece = view[start : start + _CHUNK_BYTES].data
            self._hash.update(piece)
            self._file.write(piece)
        self.written_rows += len(rows)

    def close(self) -> ArrayEntry:
        """Flush to disk and return the manifest entry."""
        assert self.written_rows == self.shape[0], (
            f"{self._path.name}: {self.written_rows} rows written, {self.shape[0]} announced"
        )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ArrayEntry(self.shape, self.dtype.str, self._hash.hexdigest())

    def abandon(self) -> None:
        """Close the file without checking that it is complete."""
        self._file.close()


@dataclass(slots=True)
class FolderWriter:
    """Collects the arrays, facts and sub-folders of one folder; `write_folder` makes one."""

    path: Path
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    _entries: dict[str, ArrayEntry] = field(default_factory=dict)
    _streams: dict[str, ArrayStream] = field(default_factory=dict)
    _children: list["FolderWriter"] = field(default_factory=list)

    def save(self, name: str, array: Array) -> None:
        """Write a whole array (a memory-mapped one is copied piece by piece)."""
        array = np.asarray(array)
        stream = self.stream(name, array.shape, array.dtype)
        row_bytes = max(1, array.nbytes // max(1, len(array)))
        step = max(1, _CHUNK_BYTES // row_bytes)
        for start in range(0, len(array), step):
            stream.append(array[start : start + step])
        self.close(name)

    def stream(self, name: str, shape: tuple[int, ...], dtype: Any) -> ArrayStream:
        """Return a stream to append rows to; it is closed with the folder."""
        stream = ArrayStream(self.path / f"{name}.npy", shape, np.dtype(dtype))
        self._streams[name] = stream
        return stream

    def close(self, name: str) -> None:
        """Complete one stream now: a folder of many parts can't hold every file open."""
        self._entries[name] = self._streams.pop(name).close()

    def child(self, name: str, kind: str) -> "FolderWriter":
        """Return a writer for a sub-folder, complete when this folder is."""
        (self.path / name).mkdir()
        writer = FolderWriter(self.path / name, kind)
        self._children.append(writer)
        return writer

    def finish(self) -> None:
        """Close every stream and write the manifests."""
        for child in self._children:
            child.finish()
        for name in list(self._streams):
            self.close(name)
        manifest = {
            "format": f"siafu-{self.kind}",
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint(self._entries, self.facts),
            "facts": self.facts,
            "arrays": {
                name: {"shape": list(entry.shape), "dtype": entry.dtype, "sha256": entry.sha256}
                for name, entry in sorted(self._entries.items())
            },
        }
        write_text_atomically(self.path / MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def abandon(self) -> None:
        """Close every open file, complete or not."""
        for child in self._children:
            child.abandon()
        for stream in self._streams.values():
            stream.abandon()


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
        self.entries = {
            name: ArrayEntry(tuple(row["shape"]), row["dtype"], row["sha256"])
            for name, row in manifest["arrays"].items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def load(self, name: str) -> Array:
        """Return the array, memory-mapped read-only, after checking its header and length."""
        entry = self.entries[name]
        file = self.path / f"{name}.npy"
        try:
            array = np.load(file, mmap_mode="r" if 0 not in entry.shape else None)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(file, str(error)) from error
        if array.shape != entry.shape or array.dtype.str != entry.dtype:
            seen = f"{array.dtype.str} {array.shape}, manifest says {entry.dtype} {entry.shape}"
            raise _damaged(file, seen)
        return array

    def load_if_present(self, name: str) -> Array | None:
        """Return the array, or None when the folder has none of that name."""
        return self.load(name) if name in self else None

    def verify(self) -> None:
        """Raise unless every array has the length, dtype and checksum the manifest states."""
        for name, entry in self.entries.items():
            array = self.load(name)
            digest = hashlib.sha256()
            flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
            for start in range(0, flat.size, _CHUNK_BYTES):
                digest.update(flat[start : start + _CHUNK_BYTES].data)
            if digest.hexdigest() != entry.sha256:
                seen = f"sha256 {digest.hexdigest()[:12]}..., manifest says {entry.sha256[:12]}..."
                raise _damaged(self.path / f"{name}.npy", f"wrong checksum: {seen}")

    def child(self, name: str, kind: str) -> "Folder":
        """Return a sub-folder."""
        return open_folder(self.path / name, kind)


def _damaged(file: Path, seen: str) -> StoreError:
    return StoreError(
        f"{file.name} is damaged.",
        seen=f"{file}: {seen}",
        fix=f"make {file.parent.name!r} again from its source (siafu ingest, siafu partition)",
    )


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
        raise _damaged(path / MANIFEST, str(error)) from error
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
        raise _damaged(path / MANIFEST, f"a section is missing or wrong: {error}") from error


class _Target:
    """The rename at the end of `write_folder`: a temporary folder becomes the target."""

    def __init__(self, target: Path, overwrite: bool) -> None:
        self.target, self.overwrite = target, overwrite
        self.temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")

    def __enter__(self) -> Self:
        if self.target.exists() and not self.overwrite:
            raise StoreError(
                "The target exists already.",
                seen=str(self.target),
                fix="name another folder, remove it, or pass --overwrite",
            )
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.temporary.mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            return
        if self.target.exists():
            old = self.temporary.with_suffix(".old")
            self.target.rename(old)
            self.temporary.rename(self.target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.temporary.rename(self.target)


@contextmanager
def write_folder(
    target: Path | str, kind: str, *, overwrite: bool = False
) -> Iterator[FolderWriter]:
    """Yield a writer; on success the folder appears at `target` at once, on error not at all."""
    target = Path(target)
    try:
        with _Target(target, overwrite) as place:
            writer = FolderWriter(place.temporary, kind)
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


def unwritable(target: Path, error: OSError) -> StoreError:
    """Return the error that tells a user why `target` could not be written."""
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(_existing_parent(target)).free
        return StoreError(
            "The disk is full.",
            seen=f"{error.strerror} while writing {target} ({free / 2**20:.0f} MiB free)",
            fix="free some space or write to another disk; nothing half written was left",
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
