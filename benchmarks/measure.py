"""What every benchmark needs: samples in turns, spread, peak memory, the machine, JSON lines."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Side = Callable[[], object]
"""One contestant: does the work once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median and interquartile range of some samples, in seconds."""

    median: float
    iqr: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        """Return the spread of at least one sample."""
        if len(seconds) < 2:
            return cls(median=seconds[0], iqr=0.0, samples=1)
        p25, median, p75 = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median=median, iqr=p75 - p25, samples=len(seconds))

    def row(self) -> dict[str, float]:
        """Return the figures in milliseconds."""
        return {
            "median_ms": round(self.median * 1e3, 3),
            "iqr_ms": round(self.iqr * 1e3, 3),
            "samples": self.samples,
        }


def take_turns(
    sides: Mapping[str, Side], *, repeats: int, device: str = "cpu", budget_seconds: float = 20.0
) -> dict[str, Spread]:
    """Return each side's spread. Sides alternate, so that noise on the machine falls on all.

    A side that has spent its budget sits out, after three samples at least.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(repeats):
        for name, side in sides.items():
            if len(seconds[name]) < 3 or sum(seconds[name]) < budget_seconds:
                seconds[name].append(time_once(side, device))
    return {name: Spread.of(values) for name, values in seconds.items()}


def time_once(side: Side, device: str = "cpu") -> float:
    """Return the seconds one run takes, the device's queue included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    kept = side()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    del kept  # freeing the result is not part of the work
    return seconds


def peak_bytes(side: Side, device: str = "cpu") -> int:
    """Return how much one run adds to the memory in use at its highest, result included.

    On CPU this is resident memory, so it tells the truth only while freed blocks go back to the
    system: glibc's default, not the setting of `siafu.ops.spare_page_faults`.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        side()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before = reset_peak()
    side()
    return status_bytes("VmHWM") - before


def reset_peak() -> int:
    """Set the high-water mark of resident memory to the present, and return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(field: str) -> int:
    """Return a figure of this process's memory, such as VmHWM or VmRSS."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what a reader must know about the machine behind a figure."""
    described: dict[str, Any] = {
        "machine": platform.node(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def starved(workers: int, *, ranks: int, threads: int = 1) -> str | None:
    """Return why figures of simulated workers can't count here; None where cores are enough.

    Simulated workers compute on this machine. More of them than it has cores beside the ranks' wait
    for each other, longer than a latency would have them wait: it vanishes without any pipeline,
    and what they bring is paid for by the ranks.
    """
    spare = len(os.sched_getaffinity(0)) - ranks * threads
    if workers <= spare:
        return None
    return f"{workers} simulated workers have {max(0, spare)} cores beside those of the ranks"


def append_json(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line to a file of JSON lines, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
