"""Commands run as child processes, with the resident memory of everything they start.

Memory is read from /proc every few milliseconds. A page of a mapped file counts as resident in
every process that maps it, and goes when the kernel wants it back; anonymous pages do not. So three
sums are kept: resident pages of all processes; the same with a page that several share (libraries)
counted once; anonymous and shared-memory pages alone.
"""

import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_PERIOD_SECONDS = 0.05
_FIELDS = ("VmRSS", "RssAnon", "RssShmem", "VmHWM")


class PhaseError(RuntimeError):
    """A phase that ended with another code than 0."""


def run_phase(command: list[str], *, cwd: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Return seconds, peak memory in GiB and the last line a command printed; raise if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watch = _Watch(process.pid)
    watch.start()
    out, err = process.communicate()
    watch.stop.set()
    watch.join()
    if process.returncode != 0:
        raise PhaseError(f"{' '.join(command)}\nended with {process.returncode}\n{err[-4000:]}")
    lines = out.strip().splitlines()
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "peak_gib": round(watch.resident / 2**30, 3),
        "shared_once_peak_gib": round(watch.shared_once / 2**30, 3),
        "anonymous_peak_gib": round(watch.anonymous / 2**30, 3),
        "largest_process_gib": round(watch.largest / 2**30, 3),
        "process_peaks_mb": sorted((round(b / 1e6, 1) for b in watch.peaks.values()), reverse=True),
        "said": lines[-1] if lines else "",
    }


class _Watch(threading.Thread):
    """Keeps the highest sums over a process and all it started."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.resident = self.shared_once = self.anonymous = self.largest = 0
        self.peaks: dict[int, int] = {}
        """The high-water mark of each process: anonymous pages and those of files."""
        self._root = psutil.Process(pid)

    def run(self) -> None:
        """Sample until told to stop."""
        while not self.stop.wait(_PERIOD_SECONDS):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                continue
            figures = [_status(process.pid) for process in processes]
            self.resident = max(self.resident, sum(row["VmRSS"] for row in figures))
            self.shared_once = max(self.shared_once, sum(_proportional(p.pid) for p in processes))
            anonymous = sum(row["RssAnon"] + row["RssShmem"] for row in figures)
            self.anonymous = max(self.anonymous, anonymous)
            self.largest = max(self.largest, *(row["VmHWM"] for row in figures))
            for process, row in zip(processes, figures, strict=True):
                self.peaks[process.pid] = max(self.peaks.get(process.pid, 0), row["VmHWM"])


def _proportional(pid: int) -> int:
    """Return the resident bytes of a process, of shared pages its share alone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _status(pid: int) -> dict[str, int]:
    """Return the memory figures of a process in bytes; zeros where it is gone."""
    found = dict.fromkeys(_FIELDS, 0)
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return found
    for line in lines:
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return found
