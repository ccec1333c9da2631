"""Folders for what a process needs while it runs, of which a killed one leaves nothing for good."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siafu.graph.lock import is_locked, locked

_PREFIX = "siafu-scratch-"
_LOCK = "lock"
_LEAST_AGE_SECONDS = 60.0
"""A folder that is younger may be on its way to be locked."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that goes at the end; those of processes that were killed go now."""
    clear_scratch()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, locked(Path(name) / _LOCK):
        yield Path(name)


def clear_scratch() -> None:
    """Remove this user's scratch folders that no process holds any more."""
    clear_unheld(Path(tempfile.gettempdir()), f"{_PREFIX}*", _LOCK)


def clear_unheld(parent: Path, pattern: str, lock: str) -> None:
    """Remove this user's folders by that name whose lock no process holds any more."""
    for folder in parent.glob(pattern):
        with suppress(OSError):  # another process may be removing it
            facts = folder.stat()
            is_old = time.time() - facts.st_mtime > _LEAST_AGE_SECONDS
            is_ours = facts.st_uid == os.geteuid() and (folder / lock).exists()
            if is_ours and is_old and not is_locked(folder / lock):
                shutil.rmtree(folder, ignore_errors=True)
