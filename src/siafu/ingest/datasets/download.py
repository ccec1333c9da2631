"""Fetching a public file once, checked and whole, and unpacking archives safely."""

import hashlib
import http.client
import stat
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from siafu.errors import DataError
from siafu.files import replacing, replacing_folder, write_text_atomically
from siafu.graph import unwritable
from siafu.record import Progress, silent

_CHUNK_BYTES = 1 << 20


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout_seconds: float = 60.0,
) -> Path:
    """Return `target`, downloaded unless it is there, after checking its sum.

    Where nobody published a sum (`sha256` is None), the sum of the first download is kept beside
    the file and later uses are checked against that: it finds damage on this disk, but says
    nothing about what the server sent the first time.
    """
    recorded = target.with_name(f"{target.name}.sha256")
    if target.exists():
        known = sha256 or (recorded.read_text().strip() if recorded.exists() else None)
        _check_sum(target, _sum_of(target), known)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            digest = hashlib.sha256()
            with temporary.open("wb") as file:
                for chunk in _chunks(url, timeout_seconds, progress or silent):
                    file.write(chunk)
                    digest.update(chunk)
            _check_sum(Path(url), digest.hexdigest(), sha256)
            write_text_atomically(recorded, digest.hexdigest() + "\n")
    except OSError as error:
        raise unwritable(target, error) from error
    return target


def _chunks(url: str, timeout_seconds: float, progress: Progress) -> Iterator[bytes]:
    """Yield the body of an answer; whatever goes wrong on the way is a DataError."""
    done = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "siafu"})
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            while chunk := answer.read(_CHUNK_BYTES):
                done += len(chunk)
                progress("downloading", done, total)
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise _unreachable(url, f"HTTP status {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise _unreachable(url, reason) from error
    if total is not None and done != total:
        raise _unreachable(url, f"the answer ended after {done} of {total} bytes")


def _unreachable(url: str, reason: str) -> DataError:
    return DataError(
        "The data set could not be downloaded.",
        seen=f"{url}: {reason}",
        fix="go online and try again, or put NAME.npz into a folder and set SIAFU_DATA to it",
    )


def _sum_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_sum(what: Path, found: str, known: str | None) -> None:
    if known is not None and found != known:
        raise DataError(
            "A downloaded file has the wrong checksum.",
            seen=f"{what}: sha256 {found[:12]}..., expected {known[:12]}...",
            fix="delete it and download it again",
        )


def unpack_archive(archive: Path, target: Path) -> None:
    """Unpack a zip at `target`, whole or not at all; refuse entries that point outside of it."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                _check_entry(archive, entry)
            with replacing_folder(target) as temporary:
                opened.extractall(temporary)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            "The archive can't be read.",
            seen=f"{archive}: {error}",
            fix="delete it and download it again",
        ) from error
    except OSError as error:
        raise unwritable(target, error) from error


def _check_entry(archive: Path, entry: Any) -> None:
    path = PurePosixPath(entry.filename.replace("\\", "/"))
    is_link = stat.S_ISLNK(entry.external_attr >> 16)
    if path.is_absolute() or ".." in path.parts or ":" in entry.filename or is_link:
        raise DataError(
            "The archive has an entry that points outside of it.",
            seen=f"{archive}: {entry.filename}",
            fix="do not use this archive; get the data from its official home",
        )
