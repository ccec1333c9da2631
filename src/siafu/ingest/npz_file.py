"""The arrays of an `.npz` file, read only when their sizes are plausible; nothing is unpickled."""

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import psutil

from siafu.errors import DataError
from siafu.graph import Array

Arrays = dict[str, Array]

_SMALL_BYTES = 1 << 28
_MOST_PACKED = 100
"""How many times larger than its file an archive may be, unless it is small: a few MB of zeros
unpack to gigabytes."""
_FORMAT = np.lib.format


def read_arrays(path: Path) -> Arrays:
    """Return every array of the file; raise where it is damaged or holds Python objects."""
    if path.exists() and not path.is_file():
        raise damaged(path, "no regular file")
    try:
        with path.open("rb") as file:
            if file.read(len(_FORMAT.MAGIC_PREFIX)) == _FORMAT.MAGIC_PREFIX:
                raise damaged(path, "one array, not an archive of named arrays")
            with zipfile.ZipFile(file) as archive:
                _check_sizes(path, archive)
                return {_name(entry): _read(path, archive, entry) for entry in archive.infolist()}
    except FileNotFoundError as error:
        raise DataError("The file does not exist.", seen=str(path), fix="check the path") from error
    except _DAMAGE as error:
        raise damaged(path, str(error)) from error


# What zipfile and numpy raise on bytes that are not what they should be.
_DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, OverflowError),
)


def array_names(path: Path) -> set[str]:
    """Return the names of the arrays in the file, none of which is read; nothing if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {_name(entry) for entry in archive.infolist()}
    except _DAMAGE:
        return set()


def damaged(path: Path, seen: str) -> DataError:
    """Return the error for a file that is no archive of arrays, or was one."""
    return DataError(
        "The .npz file can't be read.",
        seen=f"{path}: {seen or 'it ends too early'}",
        fix="copy or download it again; a file cut short looks like this",
    )


def _name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise where the arrays would not fit in memory, or unpack to far more than the file has."""
    names = [entry.filename for entry in archive.infolist()]
    if len(set(names)) < len(names):
        raise damaged(path, "it has two arrays of one name")
    size, total = path.stat().st_size, sum(entry.file_size for entry in archive.infolist())
    free = int(psutil.virtual_memory().available)
    if total > free:
        raise DataError(
            "The .npz file would not fit in memory.",
            seen=f"{path}: {total:,} bytes unpacked, {free:,} are available",
            fix="use Parquet or CSV tables, which are read piece by piece",
        )
    if total > max(_SMALL_BYTES, _MOST_PACKED * size):
        raise DataError(
            "The .npz file unpacks to far more than it holds.",
            seen=f"{path}: {size:,} bytes unpack to {total:,}",
            fix="if you trust it, save it unpacked: np.savez(NEW, **np.load(OLD))",
        )


def _read(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """Return one array, whose header must ask for just the bytes that are there."""
    with archive.open(entry) as file:
        is_first = _FORMAT.read_magic(file) == (1, 0)
        header = _FORMAT.read_array_header_1_0 if is_first else _FORMAT.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise DataError(
                "The file holds Python objects, which are never unpickled.",
                seen=f"{path}: {_name(entry)}",
                fix="save it again with plain arrays only (np.savez of numbers and text)",
            )
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if claimed != held or any(length < 0 for length in shape):
            seen = f"{_name(entry)} is {dtype} {shape}, {claimed:,} bytes, and has {held:,}"
            raise damaged(path, seen)
    with archive.open(entry) as file:
        array: Array = _FORMAT.read_array(file, allow_pickle=False)
    return array
