"""What is the largest full-graph training that this machine can hold?

Run: python -m benchmarks.largest [--json FILE] [--nodes 2400000] [--edges 62000000]
     [--runs sage:192,gat:128] [--ranks 4] [--epochs 2]

A synthetic graph of ogbn-products' size: 2.4 million nodes, 62 million undirected edges (124
million in-edges), 100 features, 47 classes; most edges join nodes near in order, as a partition
would leave them. Each rank is a process; the strategy is `sar`. Prints an epoch's seconds, the peak
memory of every rank (resident, everything included), and what was predicted for training.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import append_json, machine, status_bytes
from benchmarks.ranks import answer, run_module
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.network import model_spec
from siafu.graph import Graph, graph_from_edges
from siafu.launch.rank import prepare_process
from siafu.ops import HUGE_PAGES_VARIABLE
from siafu.partitioning import write_parts
from siafu.plan import predict_training_bytes
from siafu.shard import open_shard

FEATURES, CLASSES = 100, 47
NEAR_SHARE, NEAR = 0.8, 20_000


def products_like(nodes: int, edges: int) -> Graph:
    """Return the graph: `edges` pairs, each in both directions, eight of ten near in order."""
    generator = np.random.default_rng(0)
    one = generator.integers(0, nodes, edges, dtype=np.int32)
    other = generator.integers(0, nodes, edges, dtype=np.int32)
    step = generator.integers(-NEAR, NEAR + 1, edges, dtype=np.int32)
    near = generator.random(edges, dtype=np.float32) < NEAR_SHARE
    other[near] = (one[near] + step[near]) % nodes
    del step, near
    src, dst = np.concatenate([one, other]), np.concatenate([other, one])
    del one, other
    return graph_from_edges(
        src,
        dst,
        nodes,
        name="products-like",
        x=generator.standard_normal((nodes, FEATURES), dtype=np.float32),
        y=generator.integers(0, CLASSES, nodes),
        num_classes=CLASSES,
        train=generator.random(nodes) < 0.08,
        val=np.zeros(nodes, bool),
        test=np.zeros(nodes, bool),
    )


def measure_rank(job: dict[str, Any]) -> None:
    """Train a few epochs as one rank and tell time and memory."""
    config = make_config(**job["config"]).resolved()
    prepare_process(config)
    with World.join(device="cpu", deadline_seconds=1800) as world:
        shard = open_shard(job["parts"], world, verify=False)
        training = begin(config, shard)
        predicted = predict_training_bytes(config, model_spec(config, shard), shard)
        before, seconds, losses = status_bytes("VmRSS"), [], []
        for _ in range(job["epochs"]):
            start = time.perf_counter()
            losses.append(training.step())
            seconds.append(time.perf_counter() - start)
        answer(
            {
                "seconds": seconds,
                "losses": losses,
                "peak": status_bytes("VmHWM"),
                "before": before,
                "predicted": predicted,
            }
        )


def measure(parts: Path, model: str, hidden: int, ranks: int, epochs: int) -> dict[str, Any]:
    """Return an epoch's seconds and the memory of all ranks."""
    config = {"data": "products-like", "model": model, "hidden": hidden, "layers": 3}
    config |= {"heads": 4, "strategy": "sar", "dropout": 0.5, "input_dropout": 0.0}
    job = {"parts": str(parts), "config": config, "epochs": epochs}
    variables = {HUGE_PAGES_VARIABLE: "1"}
    rows = run_module(
        "benchmarks.largest", ranks, job, variables=variables, deadline_seconds=3600.0
    )
    return {
        "model": model,
        "hidden": hidden,
        "ranks": ranks,
        "epoch_seconds": round(min(max(row["seconds"][1:] or row["seconds"]) for row in rows), 1),
        "peak_gb": [round(row["peak"] / 1e9, 2) for row in rows],
        "before_training_gb": [round(row["before"] / 1e9, 2) for row in rows],
        "predicted_training_gb": [round(row["predicted"] / 1e9, 2) for row in rows],
        "losses": rows[0]["losses"],
    }


def main() -> None:
    """Make the graph, cut it, and train every model asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=62_000_000)
    parser.add_argument("--runs", default="sage:192,gat:128")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--keep-parts", type=Path, help="make them here once, and use them again")
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    folder = args.keep_parts or Path(tempfile.mkdtemp(prefix="siafu-largest-"))
    parts = folder / f"{args.nodes}-{args.edges}-{args.ranks}.parts"
    try:
        if not parts.exists():
            graph = products_like(args.nodes, args.edges)
            owner = (np.arange(args.nodes) * args.ranks // args.nodes).astype(np.int32)
            method = {"num_parts": args.ranks, "method": "contiguous", "seed": 0}
            write_parts(graph, owner, parts, **method)
            del graph
        rows = []
        for run in args.runs.split(","):
            model, _, hidden = run.partition(":")
            rows.append(measure(parts, model, int(hidden), args.ranks, args.epochs))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        if args.keep_parts is None:
            shutil.rmtree(folder)
    size = {"nodes": args.nodes, "in_edges": 2 * args.edges}
    total = {"machine_gb": round(psutil.virtual_memory().total / 1e9, 1)}
    result = {"benchmark": "largest", **size, **total, "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
