"""Locks that end with the process that holds them, however it ends, and scratch folders they guard.

A killed process leaves nothing for good: the next one clears what no lock holds.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # without it two processes at one folder are not noticed
    fcntl = None  # type: ignore[assignment]

_PREFIX = "siafu-scratch-"
_LOCK = "lock"
_LEAST_AGE_SECONDS = 60.0
"""A folder that is younger may be on its way to be locked."""


class LockedError(Exception):
    """Another process holds the lock; the text says which, as far as it told."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that the file at `path` stands for; raise `LockedError` where it is held.

    The file is there while the lock is held, and says by whom.
    """
    file = _hold(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def is_locked(path: Path) -> bool:
    """Return whether a process may hold the lock of that file now."""
    try:
        with _opened(path, os.O_RDWR) as file:
            return not _take(file)
    except FileNotFoundError:
        return False
    except LockedError:
        return True


def _hold(path: Path) -> IO[str]:
    while True:
        file = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            _take(file)
        except BaseException:
            file.close()
            raise
        if _is_at(file, path):
            break
        file.close()  # another process let go of it, and removed it, in between
    with suppress(OSError):  # a full disk; the lock is what counts
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    return file


def _opened(path: Path, flags: int) -> IO[str]:
    """Return the file itself: a link, put there by someone else, would have another written to."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "a+" if flags & os.O_APPEND else "r+")


def _take(file: IO[str]) -> bool:
    """Return whether the lock was taken: some systems and disks have none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise LockedError(file.read() or "another process") from error
    except OSError:
        return False
    return True


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that goes at the end; those of processes that were killed go now."""
    clear_unheld(Path(tempfile.gettempdir()), f"{_PREFIX}*", _LOCK)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, locked(Path(name) / _LOCK):
        yield Path(name)


def clear_unheld(parent: Path, pattern: str, lock: str) -> None:
    """Remove this user's folders by that name whose lock no process holds any more."""
    for folder in parent.glob(pattern):
        with suppress(OSError):  # another process may be removing it
            facts = folder.stat()
            is_old = time.time() - facts.st_mtime > _LEAST_AGE_SECONDS
            is_ours = facts.st_uid == os.geteuid() and (folder / lock).exists()
            if is_ours and is_old and not is_locked(folder / lock):
                shutil.rmtree(folder, ignore_errors=True)
