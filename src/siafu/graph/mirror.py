"""A folder of ours that lies under a URL, as a folder here whose files are fetched when first read.

The copy lies in the cache, under a name that tells the URL and its manifest: other contents have
another name. A file appears in it whole and with the right checksum, or not at all, so that ranks
of one machine share what was fetched, and each machine fetches what its own ranks read.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from siafu.errors import ConfigError, StoreError
from siafu.files import (
    LockedError,
    cache_folder,
    check_url,
    fetch_file,
    is_url,
    locked,
    read_url,
    remove_url,
    send_file,
    write_bytes_atomically,
)
from siafu.files.reading import MOST_BYTES
from siafu.graph.manifest import MANIFEST

REMOTE = "remote"
"""Where copies lie in the cache."""
_OUTGOING = "outgoing-"
_ORIGINS: dict[Path, str] = {}
"""The URL of each copy that this process has opened: a note on the disk could be anybody's."""
_POLL_SECONDS = 0.05
_MOST_SECONDS = 3600.0
"""How long to wait for another process that fetches the same file."""


def at_hand(source: Any) -> Any:
    """Return the folder here that a URL names, its copy in the cache; any other source as it is."""
    if not is_url(source):
        return source
    url = checked_url(source)
    try:
        said = read_url(f"{url}/{MANIFEST}")
    except FileNotFoundError as error:
        raise StoreError(
            "No siafu folder there.",
            seen=f"{url}: no {MANIFEST}",
            fix=f"check the URL, or make one with `siafu partition DATA {url} --parts RANKS`",
        ) from error
    except OSError as error:
        raise unreachable(url, error) from error
    copy = cache_folder().absolute() / REMOTE / hashlib.sha256(url.encode() + said).hexdigest()[:32]
    copy.mkdir(parents=True, exist_ok=True)
    if not (copy / MANIFEST).exists() or (copy / MANIFEST).read_bytes() != said:
        write_bytes_atomically(copy / MANIFEST, said)
    _ORIGINS[copy] = url
    return copy


def origin_of(path: Path) -> str | None:
    """Return the URL that a file or folder here is a copy of, or None."""
    path = path.absolute()
    for folder in (path, *path.parents):
        if (url := _ORIGINS.get(folder)) is not None:
            return "/".join([url, *path.relative_to(folder).parts])
    return None


def ensure_file(
    file: Path, *, most_bytes: int = MOST_BYTES, check: Callable[[Path], None] | None = None
) -> None:
    """Fetch a file of a copy, unless it is here; of any other folder nothing is done."""
    if not _ORIGINS or file.exists() or (url := origin_of(file)) is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(file.with_name(f".{file.name}.lock")))
                break
            except LockedError as error:
                if time.monotonic() - started > _MOST_SECONDS:
                    raise unreachable(url, OSError(f"{error} does not end fetching it")) from error
                time.sleep(_POLL_SECONDS)
        if file.exists():
            return
        try:
            fetch_file(url, file, most_bytes=most_bytes, check=check)
        except FileNotFoundError:
            return  # whoever reads it says what is missing
        except OSError as error:
            raise unreachable(url, error) from error


def _send_folder(folder: Path, url: str, *, overwrite: bool) -> None:
    """Bring a whole folder of ours to a URL; its manifest comes last, so it is whole or absent."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    last = folder / MANIFEST
    try:
        if overwrite:
            remove_url(f"{url}/{MANIFEST}")
        for file in [*(path for path in files if path != last), last]:
            send_file(file, "/".join([url, *file.relative_to(folder).parts]))
    except OSError as error:
        raise unreachable(url, error) from error


@contextmanager
def made_for(target: Path | str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield where to make a folder that is to be at `target`; it is sent to a URL once it is whole.

    What is made for a URL lies in the cache until then, so that the same command goes on with it.
    """
    if not isinstance(target, str) or not is_url(target):
        yield Path(target)
        return
    url = checked_url(target)
    _check_free(url, overwrite=overwrite)
    name = f"{_OUTGOING}{hashlib.sha256(url.encode()).hexdigest()[:32]}"
    made = cache_folder().absolute() / REMOTE / name
    made.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(made, ignore_errors=True)  # whole, but not sent
    yield made
    _send_folder(made, url, overwrite=overwrite)
    shutil.rmtree(made, ignore_errors=True)


def _check_free(url: str, *, overwrite: bool) -> None:
    """Raise where a folder is at a URL already, or where it can't be asked."""
    try:
        read_url(f"{url}/{MANIFEST}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreachable(url, error) from error
    if not overwrite:
        raise StoreError(
            "The target exists already.", seen=url, fix="name another URL, or pass --overwrite"
        )


def checked_url(source: str) -> str:
    """Return a URL without the slash at its end, refusing those that can't be read."""
    try:
        check_url(source)
    except ValueError as error:
        raise ConfigError(
            "The URL can't be used.", seen=f"{source}: {error}", fix="name it as s3://BUCKET/FOLDER"
        ) from error
    return source.rstrip("/")


def unreachable(url: str, error: OSError) -> StoreError:
    """Return the error that tells why a URL could not be read or written."""
    scheme = url.partition("://")[0]
    return StoreError(
        "Could not reach the data.",
        seen=f"{url}: {error.strerror or error}",
        fix=f"check the URL, the network and the credentials of {scheme}:// in the environment",
    )
