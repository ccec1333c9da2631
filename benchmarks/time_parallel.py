"""What do time blocks and ranks cost and save when the snapshots of a dynamic graph are shared out?

Run: python -m benchmarks.time_parallel [--ranks 1,2,4] [--blocks 0,32,8] [--models tm-gcn,cd-gcn]
     [--node-parts 1,2] [--wire 32,8,4]

Seconds, bytes and peak memory of an epoch for each model, exchange, block size and number of ranks,
on a synthetic dynamic graph. Every combination must have the losses of one rank with one block
before its figures count; with rounded rows (--wire) within 5 %. With --device cuda the speed-up at
128 GPUs is predicted: measured seconds of one rank's snapshots, bytes and messages by the formulas
that tests hold the counters to, and the network of Chakaravarthy et al. (SC'21), who report up to
30 x: nodes of 8 GPUs on two links of 100 Gbit/s. Nothing is predicted from seconds of a CPU, which
flatter eightfold: the network would have that much longer to keep up.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine, reset_peak
from benchmarks.ranks import answer, run_module
from siafu.comm import BACKWARD, FORWARD, World
from siafu.config import make_config
from siafu.engine import begin_dynamic, peak_bytes
from siafu.graph import DynamicGraph, load_dynamic_store, save_dynamic
from siafu.ingest import drifting, graph_from_events
from siafu.ops import set_threads, spare_memory
from siafu.partitioning import Cut, assign_nodes, plan_time
from siafu.strategy import TimeStrategy
from siafu.strategy.time.cost import Traffic, all_to_all_traffic, banded_traffic, wavefront_traffic

STEPS = 3
HIDDEN, BAND = 16, 20
FIXED = {"hidden": HIDDEN, "task": "node", "bandwidth": BAND, "split": "0.99,0.01"}
EXCHANGES = {
    "tm-gcn": ("all-to-all", "banded"),
    "cd-gcn": ("all-to-all", "wavefront"),
    "evolvegcn-o": ("auto",),
}
GPUS = 128
GPU_BYTE_SECONDS = 8 / 25e9
"""Of each of 8 GPUs that share 2 x 100 Gbit/s."""
MESSAGE_SECONDS = 5e-6
PAPER = 30.0


def measure_rank(job: dict[str, Any]) -> None:
    """Train a few steps as one rank and write what they took."""
    spare_memory()
    set_threads(1)  # a core a rank, so that ranks compare
    config = make_config(**job["config"]).resolved()
    with World.join(device=job["device"]) as world:
        graph = load_dynamic_store(job["store"], verify=False)
        training = begin_dynamic(config, graph, world)
        is_cpu = world.device.type == "cpu"
        before = reset_peak() if is_cpu else 0
        losses, seconds = [], []
        for step in range(STEPS):
            if step == 1:
                world.meter.bytes_sent.clear()
            started = time.perf_counter()
            losses.append(training.step())
            seconds.append(time.perf_counter() - started)
            training.progress.epochs += 1
        row = {
            "losses": losses,
            "seconds": statistics.median(seconds[1:]),
            "peak": peak_bytes(world) - before,
            "data": before,
            "sent": {k: v // (STEPS - 1) for k, v in world.meter.bytes_sent.items()},
        }
    answer(row)


def measure(store: Path, device: str, **config: Any) -> dict[str, Any]:
    """Return the figures of one combination."""
    job = {"store": str(store), "device": device, "config": {"data": "drifting", **config}}
    rows = run_module("benchmarks.time_parallel", config["ranks"], job)
    kinds = (FORWARD, BACKWARD, "halo_forward", "halo_backward")
    sent = sum(row["sent"].get(kind, 0) for row in rows for kind in kinds)
    return {
        "model": config["model"],
        "exchange": config["time_exchange"],
        "ranks": config["ranks"],
        "block": config["time_block"],
        "node_parts": config["node_parts"],
        "wire": config["wire"],
        "epoch_seconds": round(max(row["seconds"] for row in rows), 4),
        "peak_mb": round(max(row["peak"] for row in rows) / 1e6, 1),
        "sent_mb": round(sent / 1e6, 3),
        "losses": rows[0]["losses"],
    }


def predict(row: dict[str, Any], nodes: int, steps: int, features: int) -> dict[str, Any]:
    """Return the speed-up of 128 GPUs, each with four snapshots as large as those measured."""
    total = 4 * GPUS
    plan = plan_time([1] * total, GPUS, train_steps=total)
    step_seconds = row["epoch_seconds"] / steps
    chunks = TimeStrategy().num_chunks(nodes, GPUS)
    widths = _temporal_widths(row["model"], features)
    traffic = [_traffic(row, plan, nodes, chunks, *pair) for pair in widths]
    elements = sum(t.elements for t in traffic) / GPUS
    messages = sum(t.messages for t in traffic) / GPUS
    network = elements * 4 * GPU_BYTE_SECONDS + messages * MESSAGE_SECONDS
    compute = total / GPUS * step_seconds
    idle = 0.0
    if row["exchange"] == "wavefront":
        # The last rank waits for the first group of nodes to pass all others, there and back;
        # as if all of their work were in the recurrence.
        idle = (GPUS - 1) * (compute / chunks + 2 * MESSAGE_SECONDS)
    alone = total * step_seconds
    return {
        "model": row["model"],
        "exchange": row["exchange"],
        "gpus": GPUS,
        "snapshots": total,
        "compute_ms": round(1e3 * compute, 3),
        "network_ms": round(1e3 * network, 3),
        "idle_ms": round(1e3 * idle, 3),
        "speed_up": round(alone / (compute + network + idle), 1),
        "paper": PAPER,
    }


def predictions_of(
    rows: list[dict[str, Any]], graph: DynamicGraph, device: str
) -> list[dict[str, Any]]:
    """Return predictions for the models measured on one rank; none from seconds of a CPU."""
    single = [row for row in rows if row["ranks"] == 1 and row["block"] == 0]
    if device != "cuda":
        return []
    sizes = (graph.num_nodes, graph.num_snapshots, graph.num_features)
    return [
        predict({**row, "exchange": exchange}, *sizes) | {"seconds_of": device}
        for row in single
        for exchange in EXCHANGES[row["model"]]
    ]


def _temporal_widths(model: str, features: int) -> list[tuple[int, int]]:
    if model == "evolvegcn-o":
        return []
    if model == "tm-gcn":
        return [(HIDDEN, HIDDEN)]  # the first layer's average is made once
    return [(features + HIDDEN, HIDDEN), (2 * HIDDEN, HIDDEN)]


def _traffic(
    row: dict[str, Any], plan: Any, nodes: int, chunks: int, width: int, out: int
) -> Traffic:
    if row["exchange"] == "banded":
        return banded_traffic(plan, nodes, width, BAND)
    if row["exchange"] == "wavefront":
        return wavefront_traffic(plan, nodes, 2 * out, chunks)
    return all_to_all_traffic(plan, nodes, width, out)


def numbers(text: str) -> list[int]:
    """Return the numbers between commas."""
    return [int(part) for part in text.split(",")]


def stores_of(graph: DynamicGraph, parts: list[int], folder: Path) -> dict[int, Path]:
    """Write the graph once for each number of groups of nodes; return where."""
    found = {count: folder / f"graph-{count}" for count in parts}
    for count, store in found.items():
        groups = assign_nodes(graph, Cut(num_parts=count)) if count > 1 else None
        save_dynamic(replace(graph, part_of=groups), store)
    return found


def combinations(model: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is measured, exact rows first; groups of nodes go with `auto` alone."""
    blocks = numbers(args.blocks)
    for ranks in numbers(args.ranks):
        for parts in numbers(args.node_parts):
            if ranks % parts:
                continue
            exchanges = EXCHANGES[model] if parts == 1 < ranks else ("auto",)
            for exchange, block in itertools.product(exchanges, blocks if parts == 1 else [0]):
                is_rounded = exchange in ("all-to-all", "banded")
                for wire in args.wire.split(",") if is_rounded else ("32",):
                    yield {
                        "ranks": ranks,
                        "node_parts": parts,
                        "time_exchange": exchange,
                        "time_block": block,
                        "wire": wire,
                    }


def main() -> None:
    """Measure every combination and print one line for each; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--blocks", default="0,32,8")
    parser.add_argument("--models", default=",".join(EXCHANGES))
    parser.add_argument("--node-parts", default="1,2")
    parser.add_argument("--wire", default="32")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    events = drifting(args.nodes, num_steps=args.steps)
    graph = graph_from_events(events, window="each", edge_life=3)[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-time-") as folder:
        stores = stores_of(graph, numbers(args.node_parts), Path(folder))
        for model in args.models.split(","):
            truth: list[float] = []
            for settings in combinations(model, args):
                store = stores[settings["node_parts"]]
                row = measure(store, args.device, model=model, **FIXED, **settings)
                losses = row.pop("losses")
                truth = truth or losses
                allowed = 1e-3 if row["wire"] == "32" else 0.05 * truth[0]
                if max(abs(a - b) for a, b in zip(losses, truth, strict=True)) > allowed:
                    raise SystemExit(f"{row}: losses {losses}, one rank has {truth}")
                rows.append(row)
                print(json.dumps(row), flush=True)
    predictions = predictions_of(rows, graph, args.device)
    for prediction in predictions:
        print(json.dumps(prediction), flush=True)
    facts = {
        "benchmark": "time_parallel",
        "nodes": graph.num_nodes,
        "snapshots": graph.num_snapshots,
        "edge_snapshots": int(graph.edges_per_snapshot().sum()),
        "device": args.device,
    }
    result = {**facts, "rows": rows, "predictions": predictions, **machine(args.device)}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
