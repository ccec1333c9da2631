"""Epochs of each exact engine on many ranks that are threads of one process.

Run: python -m benchmarks.many_ranks --ranks 64 [--strategies halo,sar] [--data planted:640]

It shows that nothing grows with the pairs of ranks beyond what it must: seconds and processor time
until shards are open, of two epochs with their scores, and the loss beside that of one rank.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import siafu
from benchmarks.measure import append_json, machine
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.shard import open_shard
from tests.dynamic import threads

STRATEGIES = ("halo", "sar", "columns", "batchgnn", "dorylus")
_MORE: dict[str, dict[str, Any]] = {
    "dorylus": {"staleness": 0, "pool": "none", "intervals": 1},
    "batchgnn": {"seed_order": "global", "step_minibatches": 4, "batch_size": 64},
}


def measure(
    data: str, ranks: int, strategy: str, parts: Path, start: dict[str, Any]
) -> dict[str, Any]:
    """Return seconds and losses of two epochs on so many ranks.

    They start with the weights in `start`, which one rank puts there: torch has one generator for
    all threads of a process.
    """
    more = _MORE.get(strategy, {})
    config = make_config(
        data=data, ranks=ranks, strategy=strategy, epochs=2, threads=1, **more
    ).resolved()
    place: Any = "host" if strategy == "batchgnn" else "device"
    began, spent = time.perf_counter(), time.process_time()

    def work(world: World) -> tuple[float, list[float]]:
        shard = open_shard(parts, world, place=place)
        opened = time.perf_counter() - began
        training = begin(config, shard)
        if not start:
            weights = training.workload.module.state_dict()
            start.update({name: tensor.clone() for name, tensor in weights.items()})
        training.workload.module.load_state_dict(start)
        try:
            for _ in range(2):
                training.run_epoch()
        finally:
            training.close()
        return opened, training.progress.losses

    answers = threads.run_threads(work, ranks) if ranks > 1 else [work(World())]
    return {
        "strategy": strategy,
        "ranks": ranks,
        "open_seconds": round(max(opened for opened, _ in answers), 1),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - spent, 1),
        "losses": answers[0][1],
    }


def main() -> int:
    """Measure each strategy and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--data", default="planted:2000")
    parser.add_argument("--json", type=Path, help="append the rows there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    threads.DEADLINE_SECONDS = 280.0
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in (1, args.ranks):
            target = f"{scratch}/{ranks}.parts"
            siafu.partition(args.data, target, parts=ranks, method="hash", quiet=True)
        for strategy in args.strategies.split(","):
            start: dict[str, Any] = {}
            alone = measure(args.data, 1, strategy, Path(scratch) / "1.parts", start)["losses"]
            parts = Path(scratch) / f"{args.ranks}.parts"
            row = measure(args.data, args.ranks, strategy, parts, start)
            gap = max(abs(a - b) for a, b in zip(alone, row["losses"], strict=True))
            row = {"benchmark": "many_ranks", "data": args.data, **row, "apart_from_one_rank": gap}
            row |= machine()
            print(json.dumps(row), flush=True)
            if args.json:
                append_json(args.json, row)
    sys.stdout.flush()
    os._exit(0)  # threads of Gloo may outlive their groups


if __name__ == "__main__":
    main()
