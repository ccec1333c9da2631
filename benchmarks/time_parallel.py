"""What do time blocks and ranks cost and save when the snapshots of a dynamic graph are shared out?

Run: python -m benchmarks.time_parallel [--ranks 1,2,4] [--blocks 0,32,8] [--models tm-gcn,cd-gcn]
     [--node-parts 1,2] [--wire 32,8,4] [--overlap on,off] [--mbit 1000]
     python -m benchmarks.time_parallel --ranks 1,2,4,8,16 --steps 32 --blocks 0 --node-parts 1 \
         --overlap on,off     strong scaling on 16 cores, in some three minutes
     python -m benchmarks.time_parallel --device cuda --ranks 1 --blocks 0 --node-parts 1 \
         --json benchmarks/results/time_parallel-h200.jsonl     what `benchmarks.elsewhere` reads

Seconds, bytes and peak memory of an epoch for each model, exchange, block size and number of ranks,
on a synthetic dynamic graph. Every combination must have the losses and the gradient of one rank
with one block before its figures count; with rounded rows (--wire) within 5 %. Snapshots are
prepared once for all exchanges of a model, which begin with the same weights; `kept` tells whether
they stay ready or are made of deltas in every epoch, `edges` how many one has as it is summed over.
The first of several epochs is not timed; one alone has another before it. --json gets a line after
each number of ranks; those of one `run` belong together.

With `--overlap off` rows that are dealt out travel all at once, and nobody works meanwhile; with
`on` in groups of nodes, which are smaller here (--least-group) than the engine would have them.
With --mbit each rank is a host of its own with one core (`benchmarks.hosts`, needs root) on a link
of that speed. With --device cuda the speed-up at 128 GPUs is predicted: measured seconds of one
rank's snapshots, bytes and messages by the formulas that tests hold the counters to, and the
network of Chakaravarthy et al. (SC'21), who report up to 30 x: nodes of 8 GPUs on two links of
100 Gbit/s. Nothing is predicted from seconds of a CPU, which flatter eightfold: the network would
have that much longer to keep up.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.hosts import hosts
from benchmarks.measure import append_json, machine, reset_peak, time_once
from benchmarks.ranks import answer, run_module
from siafu.comm import BACKWARD, FORWARD, World
from siafu.config import make_config
from siafu.engine import Trainer, begin_dynamic, peak_bytes
from siafu.engine.dynamic.workload import DynamicWorkload
from siafu.graph import DynamicGraph, load_dynamic_store, save_dynamic
from siafu.ingest import drifting, graph_from_events
from siafu.ops import set_threads, spare_memory
from siafu.partitioning import Cut, assign_nodes, plan_time
from siafu.strategy import TimeRunner, TimeStrategy
from siafu.strategy.time import exchanges
from siafu.strategy.time.cost import Traffic, all_to_all_traffic, banded_traffic, wavefront_traffic

HIDDEN, BAND = 16, 20
FIXED = {"hidden": HIDDEN, "task": "node", "split": "0.99,0.01"}
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
    """Train a few steps of each combination as one rank, and tell what they took."""
    spare_memory()
    set_threads(1)  # a core a rank, so that ranks compare
    with World.join(device=job["device"]) as world:
        rows = []
        for _, alike in itertools.groupby(job["runs"], key=_prepared_as):
            gc.collect()
            rows += _measure_alike(world, list(alike), job["least_group"])
    told = {"rows": rows}
    answer(told) if "SIAFU_ANSWER" in os.environ else print(json.dumps(told))


def _prepared_as(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the snapshots of a rank, as its model reads them, depend on."""
    config = run["config"]
    return config["model"], config["node_parts"], config["time_block"]


def _measure_alike(
    world: World, runs: list[dict[str, Any]], least_group: int
) -> list[dict[str, Any]]:
    """Return what each run took; they share their snapshots and begin with the same weights."""
    _warm_up(world, runs[0]["config"])
    started = time.perf_counter()
    graph = load_dynamic_store(runs[0]["store"], verify=False)
    first = begin_dynamic(make_config(**runs[0]["config"]).resolved(), graph, world)
    ready = first.workload
    assert isinstance(ready, DynamicWorkload)
    weights = deepcopy(ready.network.state_dict())
    shared = {
        "prepare": time.perf_counter() - started,
        "kept": bool(getattr(ready.runner.source, "_graphs", False)),
        "edges": _edges_summed(ready.runner) if world.size == 1 else None,
        "before": _reset_peak(world),
    }
    if runs[0]["epochs"] == 1:
        first.step()  # transposes and degrees of snapshots are made in the first epoch, and kept
    rows = []
    for run in runs:
        ready.network.load_state_dict(weights)
        groups = exchanges.GROUPS if run["overlap"] == "on" else 1
        with (
            patch.object(exchanges, "GROUPS", groups),
            patch.object(exchanges, "LEAST_GROUP", least_group),
        ):
            rows.append({**_measure_one(_as_asked(ready, run), run["epochs"]), **shared})
    return rows


def _warm_up(world: World, config: dict[str, Any]) -> None:
    """Take a step on a graph of a few nodes: what is loaded or connected once is nobody's cost."""
    events = drifting(100, num_steps=2 * world.size + 2)
    tiny = graph_from_events(events, window="each", edge_life=3)[0]
    alone = {**config, "node_parts": 1, "time_block": 0}
    begin_dynamic(make_config(**alone).resolved(), tiny, world).step()


def _as_asked(ready: DynamicWorkload, run: dict[str, Any]) -> Trainer:
    """Return a training that is like another but for how rows travel along time."""
    config, known = make_config(**run["config"]).resolved(), ready.runner
    if config.time_exchange == "auto":
        runner = known  # which has measured what it chooses by
    else:
        strategy = TimeStrategy(
            block=config.time_block, exchange=config.time_exchange, rounding=config.chosen
        )
        seen = (ready.network.model, known.source, known.plan, known.world)
        runner = TimeRunner(*seen, strategy, ready.draws)
    parts = (config, ready.graph, ready.grid, ready.made, runner, ready.draws)
    return Trainer(config, DynamicWorkload(*parts))


def _edges_summed(runner: TimeRunner) -> float:
    """Return the edges of a snapshot as it is summed over, on average."""
    found: list[int] = []
    for step in runner.plan.owned(runner.world.rank):
        neighbours: Any = runner.source.read(range(step, step + 1))[1][0].neighbours
        found.append(neighbours.csr.num_edges)
    return round(statistics.fmean(found))


def _reset_peak(world: World) -> int:
    """Begin to note the most memory in use; return what counts as nobody's: all of a process's."""
    if world.device.type == "cpu":
        return reset_peak()
    torch.cuda.reset_peak_memory_stats()
    return 0


def _measure_one(training: Trainer, epochs: int) -> dict[str, Any]:
    world, losses, seconds = training.world, [], []
    gc.collect()
    _reset_peak(world)
    world.gather_numbers([0.0])  # a rank that prepares longer is not waited for in an epoch
    for step in range(epochs):
        if step == min(1, epochs - 1):
            world.meter.bytes_sent.clear()
        seconds.append(time_once(lambda: losses.append(training.step()), world.device.type))
        training.progress.epochs += 1
    timed, moments = seconds[1:] or seconds, training.optimiser.state.values()
    return {
        "losses": losses,
        "gradient": sum(float(each["exp_avg"].square().sum()) for each in moments) ** 0.5,
        "seconds": statistics.median(timed),
        "best": min(timed),
        "peak": peak_bytes(world),
        "sent": {k: v // len(timed) for k, v in world.meter.bytes_sent.items()},
    }


def measure(
    ranks: int, runs: list[dict[str, Any]], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the figures of all combinations on so many ranks, which are started once."""
    job = {"device": args.device, "runs": runs, "least_group": args.least_group}
    if args.mbit is None or ranks == 1:
        found = run_module("benchmarks.time_parallel", ranks, job)
    else:
        command = [sys.executable, "-m", "benchmarks.time_parallel", "--rank", json.dumps(job)]
        with hosts(ranks, mbit=args.mbit, cores=1) as made:
            answers = made.run(command, deadline_seconds=900)
        failed = [told for told in answers if told.code != 0]
        if failed:
            raise SystemExit(f"host {failed[0].host}: {failed[0].err[-2000:]}")
        found = [json.loads(told.out.splitlines()[-1]) for told in answers]
    each = zip(runs, *(told["rows"] for told in found), strict=True)
    return [_row(run, list(rows)) for run, *rows in each]


def _row(run: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    config = run["config"]
    kinds = (FORWARD, BACKWARD, "halo_forward", "halo_backward")
    sent = sum(row["sent"].get(kind, 0) for row in rows for kind in kinds)
    return {
        "model": config["model"],
        "exchange": config["time_exchange"],
        "ranks": config["ranks"],
        "block": config["time_block"],
        "node_parts": config["node_parts"],
        "wire": config["wire"],
        "band": config["bandwidth"],
        "overlap": run["overlap"],
        "edges": rows[0]["edges"],
        "kept": all(row["kept"] for row in rows),
        "prepare_seconds": round(max(row["prepare"] for row in rows), 2),
        "epoch_seconds": round(max(row["seconds"] for row in rows), 4),
        "best_seconds": round(max(row["best"] for row in rows), 4),
        "peak_mb": round(max(row["peak"] - row["before"] for row in rows) / 1e6, 1),
        "sent_mb": round(sent / 1e6, 3),
        "losses": rows[0]["losses"],
        "gradient": rows[0]["gradient"],
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
        return banded_traffic(plan, nodes, width, row.get("band", BAND))
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


def combinations(ranks: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is measured on so many ranks, exact rows first for each model.

    Groups of nodes go with `auto` alone; overlap is of exact rows that are dealt out.
    """
    blocks = numbers(args.blocks)
    for model, parts in itertools.product(args.models.split(","), numbers(args.node_parts)):
        if ranks % parts:
            continue
        ways = EXCHANGES[model] if parts == 1 < ranks else ("auto",)
        for block, exchange in itertools.product(blocks if parts == 1 else [0], ways):
            wires = args.wire.split(",") if exchange in ("all-to-all", "banded") else ("32",)
            for wire in wires:
                overlaps = exchange == "all-to-all" and wire == "32"
                for overlap in args.overlap.split(",") if overlaps else ("on",):
                    config = {
                        "model": model,
                        "ranks": ranks,
                        "node_parts": parts,
                        "time_exchange": exchange,
                        "time_block": block,
                        "wire": wire,
                        "bandwidth": args.band,
                    }
                    yield {"overlap": overlap, "config": {"data": "drifting", **FIXED, **config}}


def checked(row: dict[str, Any], truth: dict[str, list[float]]) -> dict[str, Any]:
    """Return the row without its losses, if they and the gradient are those of the first row."""
    found = [*row.pop("losses"), row.pop("gradient")]
    wanted = truth.setdefault(row["model"], found)
    allowed = 1e-3 if row["wire"] == "32" else 0.05 * wanted[0]
    if max(abs(a - b) for a, b in zip(found, wanted, strict=True)) > allowed:
        raise SystemExit(f"{row}: losses and gradient {found}, one rank has {wanted}")
    return row


def main() -> None:
    """Measure every combination and print one line for each, and one for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--blocks", default="0,32,8")
    parser.add_argument("--models", default=",".join(EXCHANGES))
    parser.add_argument("--node-parts", default="1,2")
    parser.add_argument("--wire", default="32")
    parser.add_argument("--overlap", default="on")
    parser.add_argument("--mbit", type=float)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--band", type=int, default=BAND, help="snapshots of TM-GCN's means")
    parser.add_argument("--least-group", type=int, default=256, help="nodes that travel alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    events = drifting(args.nodes, num_steps=args.steps)
    graph = graph_from_events(events, window="each", edge_life=3)[0]
    facts = {
        "benchmark": "time_parallel",
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "nodes": graph.num_nodes,
        "snapshots": graph.num_snapshots,
        "edge_snapshots": int(graph.edges_per_snapshot().sum()),
        "device": args.device,
        "mbit": args.mbit,
        "band": args.band,
        "least_group": args.least_group,
    }
    with tempfile.TemporaryDirectory(prefix="siafu-time-") as folder:
        stores = stores_of(graph, numbers(args.node_parts), Path(folder))
        truth: dict[str, list[float]] = {}
        for ranks in numbers(args.ranks):
            runs = list(combinations(ranks, args))
            for run in runs:
                run["store"] = str(stores[run["config"]["node_parts"]])
                run["epochs"] = args.epochs
            rows = [checked(row, truth) for row in measure(ranks, runs, args)]
            predictions = predictions_of(rows, graph, args.device)
            for told in [*rows, *predictions]:
                print(json.dumps(told), flush=True)
            result = {**facts, "rows": rows, "predictions": predictions, **machine(args.device)}
            if args.json:
                append_json(args.json, result)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
