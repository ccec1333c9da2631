"""How much memory there is and may be taken, as the machine and its control groups count it."""

import ctypes
import gc
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

_PROCESS = Path("/proc/self")
_M_ARENA_MAX, _M_TRIM_THRESHOLD = -8, -1
"""Of malloc.h."""
_TRIM_BYTES = 1 << 27
_STEP = 10_000_000
"""Bytes that a budget is named in."""
_DRIFT = 40_000_000
"""Bytes that a process may hold more when it is started again with more: measured up to 27 MB."""


@dataclass(frozen=True, slots=True)
class _Version:
    """What files of a memory group are called."""

    limit: str
    used: str
    of_files: tuple[str, str]
    """Entries of memory.stat: pages of files, which the kernel takes back first."""


_OLD = _Version(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_NEW = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


@dataclass(frozen=True, slots=True)
class _Limit:
    """What one group allows, and what it has that can't be taken back."""

    most: int
    used: int


ARENAS_VARIABLE = "MALLOC_ARENA_MAX"
"""The same for a process that is started with it, which comes before all its libraries."""


def share_one_arena() -> None:
    """Have threads take memory from where the first one does; call it before there are others.

    glibc gives each thread an arena of pieces of 64 MB; what is larger is mapped anew every time,
    page by page. Arrays of a thread that fetches rows are large.
    """
    with suppress(OSError, AttributeError):  # another system, or another allocator
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return freed memory to the kernel, and trim what will be freed as usual.

    For a process that goes on with other work than training.
    """
    gc.collect()  # what stands in a cycle too
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        library.malloc_trim(0)


def free_bytes(process: Path = _PROCESS) -> int:
    """Return what this process may take: free on the machine and in every group that it is in."""
    free = int(psutil.virtual_memory().available)
    return min([free, *(max(0, limit.most - limit.used) for limit in _limits(process))])


def total_bytes(process: Path = _PROCESS) -> int:
    """Return the memory of the machine, or of the group with the lowest limit."""
    whole = int(psutil.virtual_memory().total)
    return min([whole, *(limit.most for limit in _limits(process))])


def held_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def available_bytes(memory_bytes: int | None = None) -> int:
    """Return what may be used beyond what runs now: of the allowance, or of what is free."""
    return free_bytes() if memory_bytes is None else max(0, memory_bytes - held_bytes())


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What this process may hold, and how a user asks for more of it."""

    most: int | None = None
    """Resident bytes; None for as many as are free."""
    beside: int = 0
    """Bytes of these that are not of `--memory`."""
    ranks: int = 1
    """How many ranks' `--memory` it is."""

    @property
    def free(self) -> int:
        """Bytes that may be taken beyond what is held now."""
        return available_bytes(self.most)

    def fix(self, need: int, otherwise: str = "") -> str:
        """Return how so many bytes more can be had; `otherwise` is what else can be done."""
        more = "use a machine, or a control group, with more memory"
        if self.most is not None:
            asked = (need + max(0, held_bytes() - self.beside) + _DRIFT) / self.ranks
            more = f"give --memory {math.ceil(asked / _STEP) * _STEP // 10**6}MB or more"
        return f"{more}, or {otherwise}" if otherwise else more


def _limits(process: Path) -> Iterator[_Limit]:
    """Yield the limits of the groups of a process, whose folder in /proc this is.

    What can't be read is no limit: of a group without one, of another system, of other users.
    """
    for folder, version in _groups(process):
        with suppress(OSError, ValueError):  # `max` is no number
            most = int((folder / version.limit).read_text())
            used = int((folder / version.used).read_text())
            yield _Limit(most, used - _of_files(folder / "memory.stat", version))


def _of_files(stat: Path, version: _Version) -> int:
    words = (line.split() for line in stat.read_text().splitlines())
    return sum(int(pair[1]) for pair in words if len(pair) == 2 and pair[0] in version.of_files)


def _groups(process: Path) -> Iterator[tuple[Path, _Version]]:
    """Yield the folder of each group that a process is in, the innermost first, and its version."""
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    of_version = {
        _OLD: next((path for _, kinds, path in groups if "memory" in kinds.split(",")), None),
        _NEW: next((path for _, kinds, path in groups if not kinds), None),
    }
    for words in mounts:
        version = _version(words)
        path = None if version is None else of_version[version]
        if version is None or path is None:
            continue
        # A container may see its own group as the root of the mount.
        root, mount = PurePosixPath(words[3]), Path(words[4])
        at = PurePosixPath(path)
        inside = at.relative_to(root) if at.is_relative_to(root) else PurePosixPath()
        for part in (inside, *inside.parents):
            yield mount / part, version


def _version(words: list[str]) -> _Version | None:
    """Return the version of memory groups that a line of mountinfo is about.

    number, parent, device, root, mount point, options, ..., "-", type, source, options
    """
    kind = words[words.index("-") + 1]
    if kind == "cgroup2":
        return _NEW
    return _OLD if kind == "cgroup" and "memory" in words[-1].split(",") else None
