"""How fast are rows of a file ten times an enforced memory limit read, cold?

Run: python -m benchmarks.cold_rows [--json FILE] [--limit-mb 400] [--rows 20000] [--repeats 5]

As root on Linux. A file of 128 features per node, ten times the limit, is read in a control group
(version 1 or 2) of that limit, the page cache dropped before: the distinct rows of a minibatch,
drawn by lot, one after the other. Sides take turns: `ours` (`siafu.shard.FileRows`), `map` (a
plain loop over a memory map, in rising order), and the disk itself: reads of a page each, past the
page cache, of which 64 are under way at once, by plain threads (`disk`). What would make it an
artefact: a disk whose host keeps the file in a cache of its own; so the disk's rate stands beside.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from mmap import mmap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.measure import append_json, machine
from siafu.shard import FileRows

WIDTH, TIMES, PAGE, DEPTH = 128, 10, 4096, 64


def disk_pages(path: Path, numbers: list[int], each: int = 1) -> None:
    """Read pages of a file past the page cache, many at a time; `each` and those after it at once.

    Pages beyond the end of the file are not there to be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def work(some: list[int]) -> None:
        pages = mmap(-1, each * PAGE)
        for number in some:
            os.preadv(fd, [pages], number * PAGE)

    with ThreadPoolExecutor(DEPTH) as pool:
        list(pool.map(work, [numbers[at::DEPTH] for at in range(DEPTH)]))
    os.close(fd)


def measure(path: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Return rows per second of each side, and what the group had at its peak."""
    table = np.load(path, mmap_mode="r")
    reader, generator = FileRows(table), np.random.default_rng(0)
    reader.read(torch.arange(2))  # compiles
    seconds: dict[str, list[float]] = {"ours": [], "map": [], "disk": []}
    for _ in range(repeats):
        for name, taken in seconds.items():
            wanted = np.unique(generator.integers(0, len(table), rows))
            pages = np.unique(wanted * WIDTH * 4 // PAGE).tolist()
            sides: dict[str, Callable[[], object]] = {
                "ours": partial(reader.read, torch.from_numpy(wanted)),
                "map": partial(table.__getitem__, wanted),
                "disk": partial(disk_pages, path, pages),
            }
            Path("/proc/sys/vm/drop_caches").write_text("1")
            began = time.perf_counter()
            sides[name]()
            taken.append((time.perf_counter() - began) / len(wanted))
    return {f"{name}_rows_per_second": round(1 / median(s)) for name, s in seconds.items()}


def limited(limit: int) -> tuple[Path, Path]:
    """Return a new control group with this limit of memory, and the file of its peak."""
    one = Path("/sys/fs/cgroup/memory")
    group = (one if one.is_dir() else Path("/sys/fs/cgroup")) / f"siafu-cold-{os.getpid()}"
    group.mkdir()
    is_first = (group / "memory.limit_in_bytes").exists()
    (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit))
    return group, group / ("memory.max_usage_in_bytes" if is_first else "memory.peak")


def main() -> None:
    """Print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-mb", type=int, default=400)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inside", type=Path)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure(args.inside, args.rows, args.repeats)))
        return
    limit = args.limit_mb * 10**6
    with tempfile.TemporaryDirectory(prefix="siafu-cold-", dir=Path.home()) as scratch:
        path, count = Path(scratch) / "x.npy", TIMES * limit // (4 * WIDTH)
        table = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
        for low in range(0, count, 1 << 18):
            table[low : low + (1 << 18)] = np.float32(low)
        table.flush()
        del table
        group, peak = limited(limit)
        try:
            told = subprocess.run(
                [
                    *(sys.executable, "-m", "benchmarks.cold_rows", "--inside", str(path)),
                    *("--rows", str(args.rows), "--repeats", str(args.repeats)),
                ],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            )
            used = int(peak.read_text())
        finally:
            group.rmdir()
    found = json.loads(told.stdout.splitlines()[-1])
    row = {"benchmark": "cold_rows", "limit_mb": args.limit_mb, "file_gb": TIMES * limit / 1e9}
    row |= {"rows": args.rows, **machine(), **found, "group_peak_mb": round(used / 1e6)}
    row["of_disk"] = round(found["ours_rows_per_second"] / found["disk_rows_per_second"], 2)
    row["times_map"] = round(found["ours_rows_per_second"] / found["map_rows_per_second"], 1)
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
