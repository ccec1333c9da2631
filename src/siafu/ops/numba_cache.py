"""A kernel is compiled by one process of a machine, while the others wait and then load it.

Ranks start together and meet the same kernels: without this, each compiled all of them, on cores
that they share.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache

from siafu.files import LockedError, locked

_WAITS_SECONDS = 120.0
"""Longer than any kernel takes to compile; then this process compiles it too."""
_POLL_SECONDS = 0.02
_FunctionCache: Any = FunctionCache


class SharedCache(_FunctionCache):  # type: ignore[misc]
    """The cache of a kernel on disk, with a lock from the miss of a signature until it is saved.

    Numba calls both within a lock of its own: one thread of a process is here at a time.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._held = ExitStack()
        self._place = Path(self.cache_path) / f"{self._impl.filename_base}.lock"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature, or None where this process is to compile it."""
        found = super().load_overload(sig, target_context)
        if found is None and self._has_waited():
            found = super().load_overload(sig, target_context)
        if found is not None:
            self._held.close()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the code and let the others have it."""
        try:
            super().save_overload(sig, data)
        finally:
            self._held.close()

    def _has_waited(self) -> bool:
        """Take the lock; return whether another process had it, and may have saved the code."""
        self._held.close()  # of a signature that could not be compiled
        latest, has_waited = time.monotonic() + _WAITS_SECONDS, False
        while time.monotonic() < latest:
            try:
                self._place.parent.mkdir(parents=True, exist_ok=True)
                self._held.enter_context(locked(self._place))
            except LockedError:
                has_waited = True
                time.sleep(_POLL_SECONDS)
            except OSError:  # a folder that can't be written has no code either
                break
            else:
                # It may have been let go of between the look at the disk and this.
                return True
        return has_waited
