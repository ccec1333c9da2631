"""How many more epochs does bounded asynchrony need, and does it end as well?

Run: SIAFU_DATA=FOLDER python -m benchmarks.staleness [--json FILE] [--data cora,pubmed] [--seeds 3]
     python -m benchmarks.staleness --data planted

Two ranks of this machine train a 2-layer GCN of 64 hidden, 8 intervals each, without dropout, on
the data's own split. `synchronous` waits for every row; `latest` keeps all intervals in one epoch
and reads what is there (what the Dorylus paper calls S = 0); staleness 1 and 2 let intervals and
rows lag so many epochs. Epochs to target: the first whose training loss is no higher than that of
the synchronous run after half of its epochs; twice the epochs where it is not reached. How stale
rows really are depends on timing: the share of rows that were older is told, and the oldest.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from benchmarks.ranks import answer, run_module
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.pipelined import PipelinedNetwork
from siafu.ingest import load
from siafu.launch.rank import prepare_process
from siafu.partitioning import partition_graph
from siafu.shard import Shard, open_shard

MODES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "latest": {"gather": "latest"},
    "staleness 1": {"staleness": 1},
    "staleness 2": {"staleness": 2},
}
COMMON = {
    "strategy": "dorylus",
    "pool": "none",
    "pool_workers": "1",
    "model": "gcn",
    "hidden": 64,
    "dropout": 0.0,
    "weight_decay": 5e-4,
    "checkpoint_every": 0,
    "threads": 1,
}
RANKS = 2


def train(shard: Shard, mode: str, seed: int, epochs: int, lr: float) -> dict[str, Any]:
    """Return the losses of one run, its test score at the end, and the ages of rows read."""
    config = make_config(
        data="bench", epochs=epochs, eval_every=epochs, seed=seed, lr=lr, **COMMON, **MODES[mode]
    ).resolved()
    training = begin(config, shard)
    losses = []
    for _ in range(epochs):
        losses.append(training.step())
        training.progress.epochs += 1
    assert isinstance(training.workload.network, PipelinedNetwork)
    assert training.workload.network.pipeline is not None
    ages = dict(training.workload.network.pipeline.ages)
    training.close()
    return {"losses": losses, "test": training.workload.evaluate().scores["test"], "ages": ages}


def measure_rank(job: dict[str, Any]) -> None:
    """Do one rank's share and tell what it saw."""
    prepare_process(make_config(data="bench", **COMMON))
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False)
        found = {
            mode: [
                train(shard, mode, seed, job["epochs"], job["lr"]) for seed in range(job["seeds"])
            ]
            for mode in MODES
        }
        answer(found)


def rows_of(data: str, found: dict[str, Any], epochs: int) -> list[dict[str, Any]]:
    """Return a row for each mode."""
    rows = []
    for mode, runs in found.items():
        needed: list[int] = []
        wanted: list[int] = []
        for run, sync in zip(runs, found["synchronous"], strict=True):
            target = sync["losses"][epochs // 2 - 1]
            needed.append(first_at(run["losses"], target) or 2 * epochs)
            wanted.append(first_at(sync["losses"], target) or epochs)
        ratio = statistics.mean(n / w for n, w in zip(needed, wanted, strict=True))
        ages = {int(age): count for run in runs for age, count in run["ages"].items()}
        total = sum(ages.values())
        row = {
            "data": data,
            "mode": mode,
            "epochs_to_target": round(statistics.mean(needed), 1),
            "more_epochs": round(ratio - 1, 3),
            "last_loss": round(statistics.mean(run["losses"][-1] for run in runs), 4),
            "test": round(100 * statistics.mean(run["test"] for run in runs), 2),
            "older_share": round(1 - ages.get(0, 0) / total, 3),
            "oldest": max(ages),
            "reads": total,
        }
        rows.append(row)
        print("  ".join(f"{key} {value!s:<10}" for key, value in row.items()), flush=True)
    return rows


def first_at(losses: list[float], target: float) -> int | None:
    """Return the first epoch whose loss is no higher."""
    return next((number for number, loss in enumerate(losses, 1) if loss <= target), None)


def main() -> None:
    """Train in every mode; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data", default="cora,pubmed,amazon_photo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.003, help="delays make larger steps swing")
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-stale-") as scratch:
        for data in args.data.split(","):
            parts = Path(scratch) / f"{data}.parts"
            partition_graph(load(data, undirected=True), parts, num_parts=RANKS)
            job = {"parts": str(parts), "seeds": args.seeds, "epochs": args.epochs, "lr": args.lr}
            told = run_module("benchmarks.staleness", RANKS, job)
            rows += rows_of(data, told[0], args.epochs)
    if any(row["oldest"] > _bound(row["mode"]) for row in rows):
        sys.exit("a row was older than its bound")
    facts = {"seeds": args.seeds, "lr": args.lr, "epochs": args.epochs, "ranks": RANKS}
    result = {"benchmark": "staleness", "rows": rows, **facts, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


def _bound(mode: str) -> int:
    return MODES[mode].get("staleness", 0) + int("gather" in MODES[mode])


if __name__ == "__main__":
    main()
