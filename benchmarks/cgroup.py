"""Control groups with a limit on memory or on processors, for commands that have to keep it.

Of memory the kernel counts what the processes of the group hold and the pages of files they read:
at the limit it takes pages of files back first, then ends a process. Groups of version 2 and of
version 1 are known; both need root.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000
"""How often time is dealt out again: short beside a message, long beside the kernel's tick."""
_ENDING_SECONDS, _POLL_SECONDS = 20.0, 0.05


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
    with _group("memory") as (path, is_old):
        name = "memory.limit_in_bytes" if is_old else "memory.max"
        files = {name: str(most_bytes)}
        if not is_old and (path / "memory.swap.max").exists():
            files["memory.swap.max"] = "0"
        _limit(path, files)
        yield Group(path)


@contextmanager
def slowed(cores: float) -> Iterator[Group]:
    """Yield a group whose processes have so many cores' time together, evenly over time."""
    with _group("cpu") as (path, is_old):
        quota, period = str(round(cores * _PERIOD_US)), str(_PERIOD_US)
        files = {"cpu.max": f"{quota} {period}"}
        _limit(path, {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota} if is_old else files)
        yield Group(path)


def _limit(path: Path, files: dict[str, str]) -> None:
    try:
        for name, text in files.items():
            (path / name).write_text(text)
    except OSError as error:
        raise NoGroupError(f"no limit can be set in {path}: {error}") from error


@contextmanager
def _group(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield a new group's folder, and whether it is of version 1."""
    first = _ROOT / controller if (_ROOT / controller).is_dir() else _ROOT
    path, is_old = first / f"siafu-{os.getpid()}-{secrets.token_hex(4)}", first != _ROOT
    _sweep(first)
    try:
        if not is_old and controller not in (first / "cgroup.subtree_control").read_text().split():
            (first / "cgroup.subtree_control").write_text(f"+{controller}")
        path.mkdir()
    except OSError as error:
        raise NoGroupError(f"no {controller} cgroup can be made in {first}: {error}") from error
    try:
        yield path, is_old
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a group; what still ends in it, as what frees much memory does, is waited for."""
    end = time.monotonic() + _ENDING_SECONDS
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > end:
                return  # the next process sweeps it
            time.sleep(_POLL_SECONDS)


def _sweep(folder: Path) -> None:
    """Remove the groups of processes that are no more."""
    for path in folder.glob("siafu-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with suppress(OSError):
                path.rmdir()


def drop_caches() -> None:
    """Have the kernel forget the pages of files it keeps, so that reads are from the disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
