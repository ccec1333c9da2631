"""A control group with a limit on memory, for commands that have to stay within it.

The kernel counts what the processes of the group hold and the pages of files they read; at the
limit it takes pages of files back first, then ends a process. Groups of version 2 and of version 1
are known; both need root.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class NoGroupError(RuntimeError):
    """No group can be made here; says why."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group, as long as its context lasts."""

    path: Path

    def command(self, words: list[str]) -> list[str]:
        """Return the command that runs `words` in the group."""
        enter = f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *words]

    def peak_bytes(self) -> int:
        """Return the most that was counted at once, with files; 0 where it is not kept."""
        files = (self.path / name for name in ("memory.max_usage_in_bytes", "memory.peak"))
        return next((int(file.read_text()) for file in files if file.exists()), 0)


@contextmanager
def limited(most_bytes: int) -> Iterator[Group]:
    """Yield a group whose processes may hold so many bytes together; raise where there is none."""
    first = _ROOT / "memory" if (_ROOT / "memory").is_dir() else _ROOT
    path, is_old = first / f"siafu-{os.getpid()}-{secrets.token_hex(4)}", first != _ROOT
    try:
        if not is_old and "memory" not in (first / "cgroup.subtree_control").read_text().split():
            (first / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
    except OSError as error:
        raise NoGroupError(f"no memory cgroup can be made in {first}: {error}") from error
    try:
        (path / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(most_bytes))
        if not is_old and (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")
        yield Group(path)
    except OSError as error:
        raise NoGroupError(f"no limit can be set in {path}: {error}") from error
    finally:
        path.rmdir()


def drop_caches() -> None:
    """Have the kernel forget the pages of files it keeps, so that reads are from the disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
