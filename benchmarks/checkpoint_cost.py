"""Seconds to save, check and read again what a run keeps of its nodes, beside writing plain files.

Run: python -m benchmarks.checkpoint_cost --nodes 10000000 --width 16 --ranks 4 [--json FILE]
     python -m benchmarks.checkpoint_cost --recovery --nodes 10000000 --width 16 --ranks 2

Weights and optimiser do not grow with the graph; rows that both ends keep (`--changes`,
`--staleness`) do. Each rank's share is saved as in a run (arrays under checksums, brought to the
disk), one after another here: a run's ranks save beside each other. The floor writes the same bytes
with numpy and brings them to the disk; reading again is with a warm page cache.

`--recovery` kills a rank of a training that keeps rows, in its third epoch, and has it go on by
itself (`--max-restarts 1`): seconds until ranks are there again, until they have their data and the
checkpoint, and of the first epoch after. The floor is an epoch before.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.measure import append_json, machine
from benchmarks.synthetic import write_store
from siafu.checkpoint import load_share, save_share


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return round(time.perf_counter() - began, 3)


def saved(share: dict[str, torch.Tensor], folder: Path, ranks: int) -> None:
    """Save every rank's share, as a checkpoint does."""
    for rank in range(ranks):
        save_share(share, folder, 1, rank)


def loaded(folder: Path, ranks: int) -> None:
    """Read every share again, after its checksums."""
    for rank in range(ranks):
        load_share(folder / "epoch-000001", rank)


def written(share: dict[str, torch.Tensor], folder: Path, ranks: int) -> None:
    """Write the same bytes as plain files and bring them to the disk."""
    for rank in range(ranks):
        with (folder / f"{rank}.npy").open("wb") as target:
            np.save(target, share["rows"].numpy())
            target.flush()
            os.fsync(target.fileno())


def recovery(nodes: int, width: int, ranks: int, root: Path) -> dict[str, Any]:
    """Return the seconds of a recovery by part, of a run that keeps rows of so many nodes."""
    run = root / "run"
    write_store(root / "big.store", nodes=nodes, edges=2 * nodes, features=width)
    words = ["train", str(root / "big.store"), "--ranks", str(ranks), "--partition", "hash"]
    words += ["--model", "gcn", "--layers", "2", "--hidden", str(width), "--wire", "4", "--changes"]
    words += ["--epochs", "4", "--checkpoint-every", "1", "--eval-every", "4", "--threads", "1"]
    words += ["--max-restarts", "1"]
    command = [sys.executable, "-m", "siafu", *words, "--quiet", "--out", str(run)]
    with subprocess.Popen(command) as launcher:
        second = run / "checkpoints/epoch-000002"
        _await(lambda: len(_rows(run)) == 2 and second.exists(), launcher)
        before = _ranks(launcher.pid)
        killed = time.time()
        before[max(before)].kill()
        _await(lambda: len(_rows(run)) == 3, launcher)
        again, done = time.time(), _rows(run)
        ranks_now = _ranks(launcher.pid)
        started = max(process.create_time() for process in ranks_now.values())
        code = launcher.wait()
    saved = [file.stat().st_size for file in (run / "checkpoints").rglob("epoch-000003*/*")]
    phases = json.loads((run / "result.json").read_text())
    began = again - done[-1]["seconds"]
    return {
        "checkpoint_bytes": sum(saved),
        "code": code,
        "seconds": {
            "ranks_again": round(started - killed, 2),
            "loaded": round(began - started, 2),
            "first_epoch_after": round(done[-1]["seconds"], 2),
            "all": round(again - killed, 2),
            "epochs_before": [round(row["seconds"], 2) for row in done[:2]],
        },
        "peak_mb": phases.get("peak_mb"),
    }


def _rows(run: Path) -> list[dict[str, Any]]:
    try:
        text = (run / "metrics.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _ranks(launcher: int) -> dict[str, psutil.Process]:
    """Return the processes of ranks below a launcher, by name."""
    every = psutil.Process(launcher).children(recursive=True)
    return {child.name(): child for child in every if child.name().startswith("siafu rank ")}


def _await(is_so: Callable[[], bool], launcher: subprocess.Popen[bytes]) -> None:
    while not is_so():
        if launcher.poll() is not None:
            raise SystemExit(f"the training ended with {launcher.returncode}")
        time.sleep(0.01)


def main() -> int:
    """Measure three times, or one recovery, and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--at", type=Path, help="folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="append the row there")
    parser.add_argument("--recovery", action="store_true", help="of a training that loses a rank")
    args = parser.parse_args()
    facts = {"nodes": args.nodes, "width": args.width, "ranks": args.ranks}
    if args.recovery:
        with tempfile.TemporaryDirectory(dir=args.at) as scratch:
            found_of = recovery(args.nodes, args.width, args.ranks, Path(scratch))
        _tell({"benchmark": "recovery", **facts, **found_of, **machine()}, args.json)
        return 0
    share = {"rows": torch.randn(args.nodes // args.ranks, args.width)}
    found: dict[str, list[float]] = {"save": [], "load": [], "plain_write": []}
    for _ in range(args.times):
        with tempfile.TemporaryDirectory(dir=args.at) as scratch:
            folder = Path(scratch)

            found["save"].append(seconds_of(partial(saved, share, folder, args.ranks)))
            found["load"].append(seconds_of(partial(loaded, folder, args.ranks)))
            found["plain_write"].append(seconds_of(partial(written, share, folder, args.ranks)))
    total = args.ranks * share["rows"].nbytes
    row = {"benchmark": "checkpoint_cost", **facts, "bytes": total, "seconds": found, **machine()}
    _tell(row, args.json)
    return 0


def _tell(row: dict[str, Any], file: Path | None) -> None:
    print(json.dumps(row))
    if file:
        append_json(file, row)


if __name__ == "__main__":
    sys.exit(main())
