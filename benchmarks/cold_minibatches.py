"""How many minibatches per second does training take whose features are ten times its memory?

Run: python -m benchmarks.cold_minibatches [--json FILE] [--limit-mb 1300] [--steps 40]
     [--folder FOLDER]

As root on Linux. A graph whose features alone take ten times the limit is trained on for one epoch
of so many steps (SAGE, fan-out 10,5, minibatches of 1000) in a control group of that limit, the
page cache dropped before; reading, drawing and computing all count, and so do the first rows. Which
rows it reads is written down, and they are read again in the same group, cold: by plain threads
past the page cache, a row each, 64 under way at once (`disk`), and by a plain loop over a memory
map (`map`, the first few reads alone). The seconds of those two are of reading and nothing else.
What would make it an artefact: a disk whose host keeps files in a cache of its own; so the disk's
rate stands beside. It is no bound: threads of Python may be slower than the disk. `--folder` keeps
the graph, and takes it from there.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import siafu
from benchmarks.cgroup import drop_caches, limited
from benchmarks.cold_rows import PAGE, disk_pages
from benchmarks.measure import append_json, machine
from benchmarks.resident import run_phase
from benchmarks.synthetic import write_store
from siafu.engine import Trainer
from siafu.partitioning import open_parts
from siafu.shard import FileRows

TIMES, FEATURES, EDGES_A_NODE, BATCH = 10, 512, 5, 1000
MEMORY_SHARE = 0.9
"""Of the limit, what `--memory` is: pages of files that the kernel keeps count too."""
_MAP_ROWS = 40_000
_ROOT = Path(__file__).parents[1]


def train(parts: Path, folder: Path, memory: str, steps: int) -> dict[str, Any]:
    """Train an epoch, note the rows that it reads of its file, and return what it took."""
    asked: list[np.ndarray[Any, Any]] = []
    plain, epoch = FileRows.read, Trainer.run_epoch

    def noted(self: FileRows, rows: Tensor) -> Tensor:
        if Path(str(getattr(self.array, "filename", ""))).name == "x.npy":
            asked.append(rows.numpy().copy())
        return plain(self, rows)

    def begun(self: Trainer) -> dict[str, Any]:
        asked.clear()  # of steps that were tried before
        return epoch(self)

    FileRows.read = noted  # type: ignore[method-assign, assignment]
    Trainer.run_epoch = begun  # type: ignore[method-assign]
    settings: dict[str, Any] = {"model": "sage", "strategy": "batchgnn", "fanout": "10,5"}
    settings |= {"batch_size": BATCH, "epochs": 1, "steps_per_epoch": steps}
    settings |= {"inference": "none", "memory": memory}
    run = siafu.fit(str(parts), **settings, out=str(folder / "run"))
    line = json.loads((Path(run.path) / "metrics.jsonl").read_text().splitlines()[-1])
    np.savez(folder / "rows.npz", *asked)
    return {"seconds": line["seconds"], "loss": line["loss"], "sampling": run.result["sampling"]}


def replay(parts: Path, folder: Path) -> dict[str, Any]:
    """Return rows per second of reading the same rows by the other two."""
    path = open_parts(parts).part(0).path / "x.npy"
    table = np.load(path, mmap_mode="r")
    assert isinstance(table, np.memmap)
    row_bytes, start = table.strides[0], table.offset
    with np.load(folder / "rows.npz") as file:
        asked = [np.unique(file[name]) for name in file.files]

    def by_pages(rows: np.ndarray[Any, Any]) -> None:
        first = np.unique((start + rows * row_bytes) // PAGE)
        # A row may end on the next page, which is read with it; one read does for rows that share.
        disk_pages(path, first.tolist(), each=1 + -(-row_bytes // PAGE))

    sides: dict[str, Callable[[Any], object]] = {"disk": by_pages, "map": table.__getitem__}
    found: dict[str, Any] = {"rows_read": sum(map(len, asked))}
    for name, read in sides.items():
        drop_caches()
        taken, began = 0, time.perf_counter()
        for rows in asked:
            read(rows)
            taken += len(rows)
            if name == "map" and taken > _MAP_ROWS:
                break
        found[f"{name}_rows_per_second"] = round(taken / (time.perf_counter() - began))
    return found


def make(folder: Path, nodes: int) -> Path:
    """Return a part of the graph, made where it is not there yet."""
    parts, store = (folder / f"cold-{nodes}.{kind}" for kind in ("parts", "store"))
    if not parts.exists():
        write_store(store, nodes=nodes, edges=EDGES_A_NODE * nodes, features=FEATURES)
        cut = ["partition", store, parts, "--parts", 1, "--quiet"]
        run_phase([sys.executable, "-m", "siafu", *map(str, cut)], cwd=_ROOT, env=os.environ)
        shutil.rmtree(store)
    return parts


def measure(folder: Path, scratch: Path, limit: int, steps: int) -> dict[str, Any]:
    """Return the figures, everything but making the graph in a group of the limit."""
    nodes = TIMES * limit // (4 * FEATURES)
    parts = make(folder, nodes)
    row: dict[str, Any] = {"benchmark": "cold_minibatches", "limit_mb": limit // 10**6}
    row |= {"features_gb": 4 * FEATURES * nodes / 1e9, "nodes": nodes, "steps": steps}
    env = os.environ | {"PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}"}
    for task in ("train", "replay"):
        words = [sys.executable, "-m", "benchmarks.cold_minibatches", "--task", task]
        words += ["--parts", str(parts), "--folder", str(scratch), "--steps", str(steps)]
        words += ["--limit-mb", str(limit // 10**6)]
        drop_caches()
        with limited(limit) as group:
            told = run_phase(group.command(words), cwd=_ROOT, env=env)
            row[f"{task}_peak_mb"] = round(group.peak_bytes() / 1e6)
        row |= json.loads(told["said"])
    read = row["rows_read"] / steps
    row["minibatches_per_second"] = round(steps / row["seconds"], 3)
    for side in ("disk", "map"):
        row[f"{side}_minibatches_per_second"] = round(row[f"{side}_rows_per_second"] / read, 3)
    row["of_disk"] = round(row["minibatches_per_second"] / row["disk_minibatches_per_second"], 2)
    row["times_map"] = round(row["minibatches_per_second"] / row["map_minibatches_per_second"], 1)
    return row | machine()


def main() -> None:
    """Print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-mb", type=int, default=1300)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--task", choices=["train", "replay"], help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task == "train":
        memory = str(round(MEMORY_SHARE * args.limit_mb * 10**6))
        print(json.dumps(train(args.parts, args.folder, memory, args.steps)))
        return
    if args.task == "replay":
        print(json.dumps(replay(args.parts, args.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="siafu-cold-", dir=args.folder or Path.home()) as own:
        folder = args.folder or Path(own)
        row = measure(folder, Path(own), args.limit_mb * 10**6, args.steps)
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
