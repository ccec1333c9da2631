"""What do pipelining and pools each bring, and how much of a pool's latency is hidden?

Run: python -m benchmarks.pipeline [--json FILE] [--nodes 200000] [--degree 20] [--epochs 4]
     taskset -c 0-3 python -m benchmarks.pipeline --group cpu               where cores are many:
     taskset -c 0-15 python -m benchmarks.pipeline --group pools --threads 4    pools have their own

One rank trains a 2-layer GCN on a power-law graph, its tensor work done by

    synchronous      the plain engine: no intervals, no pool
    pipelined CPU    intervals, tensor tasks on threads of the rank
    processes        intervals, tensor tasks in worker processes
    cloud L ms       simulated workers, computing in processes, a latency of L ms (0, 1, 20, 100)

each pool pipelined and taking turns (graph tasks, then tensor tasks, in lock step), exact and with
staleness 1. The plain engine runs an epoch beside each of the others', so that noise falls on both:
`times_synchronous` is the ratio of the two. The gate: every exact contestant has the losses of the
plain engine. `overlapped` is the share of tensor seconds, as the trace shows them, during which a
graph task ran; bytes are those to and from the workers.

Simulated workers compute on this machine. Where they outnumber its cores beside the rank's, their
tasks wait for a core longer than for the latency, also when graph and tensor tasks take turns: the
latency then vanishes without being hidden. `times_zero_latency` is left out there, and the rows
say why; figures of the sweep are marked. A pipeline keeps a second core busy with tensor tasks, the
plain engine doesn't: compare `pipelined CPU, taking turns` with it, or processor seconds.

The second table sweeps the number of simulated workers, and shows where the tuner lands.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import append_json, machine, starved
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.engine.networks.pipelined import PipelinedNetwork
from siafu.graph import Graph, graph_from_edges
from siafu.ops import set_threads
from siafu.partitioning import write_parts
from siafu.record import Trace, busy_seconds, overlap_seconds
from siafu.shard import Shard, open_shard

FEATURES, CLASSES, HIDDEN = 64, 16, 64
LATENCIES = ("0ms", "1ms", "20ms", "100ms")
COMMON = {
    "hidden": HIDDEN,
    "layers": 2,
    "dropout": 0.0,
    "weight_decay": 0.0,
    "eval_every": 1000,
    "checkpoint_every": 0,
}
CLOSE = 1e-4
"""Of losses near 3, in float32, sums in another order."""


def power_law(nodes: int, degree: int) -> Graph:
    """Return an undirected graph of skewed degrees with labels to learn."""
    generator = np.random.default_rng(0)
    share = generator.pareto(2.5, nodes) + 0.5
    edges = nodes * degree // 2
    src, dst = (generator.choice(nodes, edges, p=share / share.sum()) for _ in range(2))
    label = generator.integers(0, CLASSES, nodes)
    centre = generator.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    x = centre[label] + generator.standard_normal((nodes, FEATURES), dtype=np.float32)
    role = generator.random(nodes)
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        nodes,
        name="power-law",
        x=x,
        y=label,
        num_classes=CLASSES,
        train=role < 0.5,
        val=(role >= 0.5) & (role < 0.6),
        test=role >= 0.6,
    )


def contestants(intervals: int, workers: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each, by name."""
    piped = {"strategy": "dorylus", "intervals": intervals, "trace": True}
    cloud = {**piped, "pool": "simulated", "pool_workers": str(workers)}
    found: dict[str, dict[str, Any]] = {
        "synchronous": {"input_cache": True},
        "pipelined CPU": {**piped, "pool": "none", "pool_workers": "1"},
        "pipelined CPU, taking turns": {
            **piped,
            "pool": "none",
            "pool_workers": "1",
            "overlap": False,
        },
        "processes": {**piped, "pool": "process"},
        "processes, taking turns": {**piped, "pool": "process", "overlap": False},
    }
    for latency in LATENCIES:
        found[f"cloud {latency}"] = {**cloud, "cloud": latency}
        found[f"cloud {latency}, taking turns"] = {**cloud, "cloud": latency, "overlap": False}
        found[f"cloud {latency}, staleness 1"] = {**cloud, "cloud": latency, "staleness": 1}
    return found


def _group(name: str) -> str:
    return "cpu" if name.startswith(("synchronous", "pipelined CPU")) else "pools"


def step(training: Trainer) -> float:
    """Train one epoch and return its loss."""
    loss = training.step()
    training.progress.epochs += 1
    return loss


def race(shard: Shard, sides: dict[str, dict[str, Any]], epochs: int) -> dict[str, dict[str, Any]]:
    """Return seconds and losses of each side; those with a pool are open one at a time.

    A pool's workers would otherwise compete with each other's for the cores. The plain engine runs
    an epoch beside each of theirs, as the measure of the machine's mood.
    """
    plain = begin(config_of({"input_cache": True}), shard)
    step(plain)
    found: dict[str, dict[str, Any]] = {}
    for name, settings in sides.items():
        training = begin(config_of(settings), shard)
        losses, seconds, beside = [step(training)], [], []
        trace = _fresh_trace(training)
        for _ in range(epochs):
            began = time.perf_counter()
            losses.append(step(training))
            seconds.append(time.perf_counter() - began)
            if not settings.get("staleness"):  # else the pipeline would go on meanwhile
                began = time.perf_counter()
                step(plain)
                beside.append(time.perf_counter() - began)
        found[name] = {"seconds": seconds, "losses": losses, "beside": beside}
        found[name] |= _overlap(trace) | _traffic(training)
        training.close()
        del training
        gc.collect()
        print(f"  {name}: {statistics.median(seconds):.3f} s", file=sys.stderr, flush=True)
    return found


def config_of(settings: dict[str, Any]) -> Any:
    """Return the run's settings."""
    return make_config(data="bench", model="gcn", epochs=1000, **COMMON, **settings).resolved()


def _fresh_trace(training: Trainer) -> Trace | None:
    if not isinstance(training.workload.network, PipelinedNetwork):
        return None
    training.world.trace = Trace(0)
    return training.world.trace


def _overlap(trace: Trace | None) -> dict[str, float]:
    if trace is None:
        return {}
    spans = trace.spans
    tensor = busy_seconds(spans, "tensor")
    both = overlap_seconds(spans, "graph", "tensor")
    return {"graph_s": busy_seconds(spans, "graph"), "overlapped": both / tensor if tensor else 0.0}


def _traffic(training: Trainer) -> dict[str, float]:
    network = training.workload.network
    if not isinstance(network, PipelinedNetwork) or network.runner is None:
        return {}
    use, epochs = network.runner.use, training.progress.epochs
    moved = (use.sent_bytes + use.received_bytes) / epochs / 1e6
    return {"pool_mb": moved, "workers": network.runner.dispatcher.workers}


def gate(found: dict[str, dict[str, Any]], sides: dict[str, dict[str, Any]]) -> None:
    """Raise unless every exact contestant has the plain engine's losses."""
    want = found["synchronous"]["losses"]
    for name, row in found.items():
        if sides[name].get("staleness"):
            continue
        gap = max(abs(a - b) for a, b in zip(row["losses"], want, strict=True))
        if gap > CLOSE:
            raise RuntimeError(f"{name}: losses differ by {gap:.2g}")


def rows_of(found: dict[str, dict[str, Any]], problem: str | None) -> list[dict[str, Any]]:
    """Return a row for each contestant, its time as a ratio too.

    How much of a latency is hidden is left out where there is a problem with the simulated workers.
    """
    plain = statistics.median(found["synchronous"]["seconds"])
    rows = []
    for name, row in found.items():
        seconds = statistics.median(row["seconds"])
        beside = statistics.median(row["beside"]) if row["beside"] else plain
        told = {
            "contestant": name,
            "epoch_s": round(seconds, 4),
            "spread_s": round(max(row["seconds"]) - min(row["seconds"]), 4),
            "times_synchronous": round(seconds / beside, 3),
        }
        if name.startswith("cloud") and problem:
            told["latency_not_measured"] = problem
        elif name.startswith("cloud"):
            without = name.replace(name.split()[1].strip(","), "0ms")
            zero = statistics.median(found[without]["seconds"])
            told["times_zero_latency"] = round(seconds / zero, 3)
        for key in ("overlapped", "pool_mb", "workers", "graph_s"):
            if key in row:
                told[key] = round(row[key], 3)
        rows.append(told)
        print(_line(told), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    name = row["contestant"]
    return f"{name:<30}" + "  ".join(f"{k} {v:<8}" for k, v in row.items() if k != "contestant")


def sweep(shard: Shard, intervals: int, epochs: int) -> list[dict[str, Any]]:
    """Return epoch seconds by number of simulated workers, and where the tuner lands."""
    base = {"strategy": "dorylus", "pool": "simulated", "cloud": "20ms", "intervals": intervals}
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= intervals]
    sides = {str(n): {**base, "pool_workers": str(n)} for n in counts}
    found = race(shard, {**sides, "auto": {**base, "pool_workers": "auto"}}, epochs)
    rows = [
        {
            "workers": name,
            "ended_with": row["workers"],
            "epoch_s": round(statistics.median(row["seconds"]), 4),
        }
        for name, row in found.items()
    ]
    for row in rows:
        print("  ".join(f"{key} {value!s:<8}" for key, value in row.items()), flush=True)
    return rows


def main() -> None:
    """Race the contestants, then sweep workers; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--intervals", type=int, default=16)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--group", choices=("all", "cpu", "pools"), default="all")
    parser.add_argument("--threads", type=int, default=0, help="of the rank; 0: all cores")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--sweep-epochs", type=int, default=6, help="0: no sweep")
    args = parser.parse_args()
    if args.threads:
        set_threads(args.threads)
    graph = power_law(args.nodes, args.degree)
    sides = {
        name: settings
        for name, settings in contestants(args.intervals, args.workers).items()
        if name == "synchronous" or args.group in ("all", _group(name))
    }
    with tempfile.TemporaryDirectory(prefix="siafu-pipe-") as scratch:
        parts = Path(scratch) / "bench.parts"
        whole = np.zeros(graph.num_nodes, np.int32)
        write_parts(graph, whole, parts, num_parts=1, method="contiguous", seed=0)
        shard = open_shard(parts, World(device=torch.device("cpu")), verify=False)
        found = race(shard, sides, args.epochs)
        gate(found, sides)
        threads = args.threads or torch.get_num_threads()
        problem = starved(args.workers, ranks=1, threads=threads)
        rows = rows_of(found, problem)
        sweeps = args.sweep_epochs and args.group != "cpu"
        tuned = sweep(shard, args.intervals, args.sweep_epochs) if sweeps else []
    result = {
        "benchmark": "pipeline",
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "intervals": args.intervals,
        "group": args.group,
        "rank_threads": args.threads,
        "epochs": args.epochs,
        "rows": rows,
        "sweep": tuned,
        **({"sweep_not_measured": problem} if tuned and problem else {}),
        **machine(),
    }
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
