"""Files that have a URL, in an object store or elsewhere, read and written through fsspec.

Credentials come from the environment, as each store's own tools read them, and never from a URL,
which is noted in run folders. S3, Google and Azure work without further packages, by Arrow's file
systems; where the fsspec package of one is installed (s3fs, gcsfs, adlfs), that is used. What can't
be read or written is an OSError.
"""

import errno
import importlib
import importlib.util
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from siafu.files.reading import MOST_BYTES
from siafu.files.writing import replacing

_URL = re.compile(r"([a-z][a-z0-9]*)://(.+)", re.DOTALL)
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""fsspec's package for each scheme that Arrow can serve as well."""
SCHEMES = (*_PACKAGES, "hf", "file", "memory")
PIECE_BYTES = 1 << 23
_TRIES, _PAUSE_SECONDS = 3, 0.5
_FETCHED, _LOCK = [0], threading.Lock()


def is_url(source: object) -> bool:
    """Return whether a source is named by a URL."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def fetched_bytes() -> int:
    """Return how many bytes this process has fetched so far."""
    return _FETCHED[0]


def read_url(url: str, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the contents of a small file."""
    pieces: list[bytes] = []
    _repeated(url, lambda: _pass_on(url, most_bytes, pieces.append), pieces.clear)
    return b"".join(pieces)


def fetch_file(
    url: str, target: Path, *, most_bytes: int, check: Callable[[Path], None] | None = None
) -> None:
    """Bring a file here, at once or not at all; `check` raises an OSError where it is damaged."""

    def fetch() -> None:
        with replacing(target) as temporary:
            with temporary.open("wb") as file:
                _pass_on(url, most_bytes, file.write)
            if check is not None:
                check(temporary)

    _repeated(url, fetch)


def send_file(source: Path, url: str) -> None:
    """Bring a file of this machine to a URL."""

    def send() -> None:
        system, path = _opened(url)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        with source.open("rb") as file, system.open(path, "wb") as target:
            while piece := file.read(PIECE_BYTES):
                target.write(piece)

    _repeated(url, send)


def remove_url(url: str) -> None:
    """Remove a file, if it is there."""
    system, path = _opened(url)
    if system.exists(path):
        system.rm_file(path)


def _pass_on(url: str, most_bytes: int, take: Callable[[bytes], Any]) -> None:
    """Hand over a file in pieces; raise where it is longer than it may be."""
    system, path = _opened(url)
    left = most_bytes
    with system.open(path, "rb") as file:
        while piece := file.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", url)
            take(piece)
            with _LOCK:
                _FETCHED[0] += len(piece)


def _repeated(url: str, act: Callable[[], None], forget: Callable[[], None] | None = None) -> None:
    """Do something with a file, a few times where the network fails; raise an OSError."""
    for left in reversed(range(_TRIES)):
        try:
            return act()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # each store's library has errors of its own
            local = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG)
            if local or not left:
                raise error if isinstance(error, OSError) else _failed(url, error) from error
        if forget is not None:
            forget()
        time.sleep(_PAUSE_SECONDS * (_TRIES - left))
    raise AssertionError("the last try raises")


def _failed(url: str, error: Exception) -> OSError:
    lines = str(error).strip().splitlines() or [""]
    return OSError(errno.EIO, f"{type(error).__name__}: {lines[0]}", url)


def check_url(url: str) -> None:
    """Raise a ValueError unless a URL is one that can be read."""
    found = _URL.fullmatch(url)
    assert found is not None, "is_url comes first"
    scheme, rest = found.groups()
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is none of {', '.join(f'{s}://' for s in SCHEMES)}")
    if "@" in rest.partition("/")[0] and scheme != "hf":
        raise ValueError("a name or key before '@': credentials belong into the environment")
    parts = rest.split("/")
    if "::" in rest or ".." in parts or any(letter in rest for letter in "?#*\n\0"):
        raise ValueError("'..', '::' and the letters ? # * have no place in it")


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there."""
    check_url(url)
    scheme, _, path = url.partition("://")
    fsspec = importlib.import_module("fsspec")
    package = _PACKAGES.get(scheme)
    if package is not None and importlib.util.find_spec(package) is None:
        return _of_arrow(scheme), path
    try:
        system = fsspec.filesystem(scheme)
    except ImportError as error:
        raise OSError(errno.ENOPKG, f"{error}", url) from error
    return system, system._strip_protocol(url)


def _of_arrow(scheme: str) -> Any:
    """Return Arrow's own file system of an object store."""
    arrow = importlib.import_module("pyarrow.fs")
    wrapper = importlib.import_module("fsspec.implementations.arrow").ArrowFSWrapper
    if scheme == "s3":
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        place = next((os.environ[name] for name in names if os.environ.get(name)), None)
        return wrapper(
            arrow.S3FileSystem(endpoint_override=place, connect_timeout=20, request_timeout=60)
        )
    if scheme in ("gs", "gcs"):
        return wrapper(arrow.GcsFileSystem())
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    return wrapper(arrow.AzureFileSystem(account, account_key=key))
