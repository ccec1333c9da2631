"""Seconds to save, check and read again what a run keeps of its nodes, beside writing plain files.

Run: python -m benchmarks.checkpoint_cost --nodes 10000000 --width 16 --ranks 4 [--json FILE]

Weights and optimiser do not grow with the graph; rows that both ends keep (`--changes`,
`--staleness`) do. Each rank's share is saved as in a run (arrays under checksums, brought to the
disk), one after another here: a run's ranks save beside each other. The floor writes the same bytes
with numpy and brings them to the disk; reading again is with a warm page cache.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import append_json, machine
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


def main() -> int:
    """Measure three times and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--at", type=Path, help="folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="append the row there")
    args = parser.parse_args()
    share = {"rows": torch.randn(args.nodes // args.ranks, args.width)}
    found: dict[str, list[float]] = {"save": [], "load": [], "plain_write": []}
    for _ in range(args.times):
        with tempfile.TemporaryDirectory(dir=args.at) as scratch:
            folder = Path(scratch)

            found["save"].append(seconds_of(partial(saved, share, folder, args.ranks)))
            found["load"].append(seconds_of(partial(loaded, folder, args.ranks)))
            found["plain_write"].append(seconds_of(partial(written, share, folder, args.ranks)))
    facts = {"nodes": args.nodes, "width": args.width, "ranks": args.ranks}
    total = args.ranks * share["rows"].nbytes
    row = {"benchmark": "checkpoint_cost", **facts, "bytes": total, "seconds": found, **machine()}
    print(json.dumps(row))
    if args.json:
        append_json(args.json, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
