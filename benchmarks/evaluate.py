"""What does scoring cost beside an epoch on minibatches, and how well is that predicted?

Run: python -m benchmarks.evaluate [--nodes 300000] [--degree 20] [--features 100] [--hidden 256]
         [--train 0.1] [--fanout 10,10] [--model sage] [--json FILE]

One rank, one thread, processor time, so that other work on the machine counts little. A graph of
edges between near nodes; `--train` of the nodes train, half as many each validate and test. Each
`--evaluate` has an epoch (the lesser of two) and an evaluation (the second, kernels compiled). The
gate: `split` has the scores of `exact`.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import append_json, machine
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.scoring import predicted_work
from siafu.graph import Graph, graph_from_edges
from siafu.ops import set_threads
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard

KINDS = ("exact", "split", "sampled", "train")


def near_graph(nodes: int, degree: int, features: int, train: float) -> Graph:
    """Return a graph whose edges start near where they end, with labels drawn."""
    draw, count = np.random.default_rng(0), nodes * degree
    dst = draw.integers(0, nodes, count)
    src = (dst + (draw.standard_normal(count) * nodes / 50).astype(np.int64)) % nodes
    place = draw.random(nodes)
    return graph_from_edges(
        src,
        dst,
        nodes,
        name="near",
        x=draw.standard_normal((nodes, features), dtype=np.float32),
        y=draw.integers(0, 10, nodes),
        num_classes=10,
        train=place < train,
        val=(place >= train) & (place < 1.5 * train),
        test=(place >= 1.5 * train) & (place < 2 * train),
    )


def measured(shard: Shard, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of an epoch and of an evaluation, and the ratio that was predicted."""
    config = make_config(data="near", strategy="batchgnn", evaluate=kind, **settings)
    trainer = begin(config.resolved(), shard)
    work: Any = trainer.workload  # of minibatches, which has more than any workload
    epochs, scorings = [], []
    for _ in range(2):
        started = time.process_time()
        trainer.step()
        epochs.append(time.process_time() - started)
        trainer.progress.epochs += 1
        started = time.process_time()
        found = work.evaluate()
        scorings.append(time.process_time() - started)
    costs = predicted_work(trainer.config, work.network, shard)
    flow = work.scoring.flow
    cost = 0.0 if kind == "train" else costs.everything(shard) if flow is None else flow.cost
    result = {
        "evaluate": kind,
        "epoch_s": min(epochs),
        "evaluation_s": scorings[-1],
        "ratio": scorings[-1] / min(epochs),
        "predicted": cost / costs.epoch(work.network.feed),
        "scores": found.scores,
        "errors": found.errors,
    }
    trainer.close()
    return result


def main() -> None:
    """Measure each kind and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("nodes", 300_000), ("degree", 20), ("features", 100), ("hidden", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--train", type=float, default=0.1)
    parser.add_argument("--fanout", default="10,10")
    parser.add_argument("--model", default="sage")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory(prefix="siafu-evaluate-") as folder:
        parts = Path(folder) / "near.parts"
        graph = near_graph(args.nodes, args.degree, args.features, args.train)
        alone = np.zeros(args.nodes, np.int32)
        write_parts(graph, alone, parts, num_parts=1, method="hash", seed=0)
        shard = open_shard(parts, World(), place="host")
        settings = {"model": args.model, "fanout": args.fanout, "hidden": args.hidden}
        rows = [measured(shard, kind, settings) for kind in KINDS]
    assert rows[0]["scores"] == rows[1]["scores"], "the splits alone have the scores of all nodes"
    row = {name: value for name, value in vars(args).items() if name != "json"}
    row |= {"benchmark": "evaluate", "kinds": rows, **machine()}
    if args.json is not None:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
