"""Where does working by columns beat fetching halo rows, in bytes and in seconds of an epoch?

Run: python -m benchmarks.feature_parallel [--json FILE] [--hosts 4,8] [--mbit 1000] [--nodes 20000]

Hosts in network namespaces (`benchmarks.hosts`; needs root) train GraphSAGE and GAT by `halo`,
`sar` and `columns`, an epoch of each in turn, on a graph that METIS can't cut (ends of edges are
drawn at random) and on one that it can (communities). Ends must agree: no time is told of losses
that differ. Beside each figure stands what the formulas of docs/strategies.md say of its bytes.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import hosts
from benchmarks.measure import append_json, machine
from benchmarks.slow_network import cut
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.graph import Graph, graph_from_edges
from siafu.launch.rank import prepare_process
from siafu.ops import warm_up
from siafu.shard import Shard, open_shard

STRATEGIES = ("halo", "sar", "columns")
FEATURES, CLASSES, HIDDEN, LAYERS, HEADS = 128, 16, 128, 3, 8
COMMON = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": HEADS,
    "dropout": 0.5,
    "input_dropout": 0.0,
    "norm": "none",
    "threads": 1,
}
TIMED_EPOCHS = 5
EPOCHS_COMPARED = 3
COMMUNITIES = 64


def badly_cut(nodes: int, degree: int, *, communities: bool) -> Graph:
    """Return an undirected random graph, of communities (9 of 10 edges inside) or of none."""
    draw = np.random.default_rng(0)
    src, dst = draw.integers(0, nodes, (2, nodes * degree // 2))
    if communities:
        size = nodes // COMMUNITIES
        near = src // size * size + draw.integers(0, size, len(src))
        dst = np.where(draw.random(len(src)) < 0.9, np.minimum(near, nodes - 1), dst)
    role = draw.random(nodes)
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        nodes,
        name="communities" if communities else "random",
        x=draw.standard_normal((nodes, FEATURES), dtype=np.float32),
        y=draw.integers(0, CLASSES, nodes),
        num_classes=CLASSES,
        train=role < 0.6,
        val=(role >= 0.6) & (role < 0.8),
        test=role >= 0.8,
    )


def measure_rank(job: dict[str, Any]) -> None:
    """Time epochs of each strategy in turn on one rank, and print what it saw."""
    prepare_process(make_config(data=job["parts"], **COMMON))
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False)
        found = {model: _time(shard, job["parts"], model) for model in job["models"]}
        halo = sum(shard.plan.recv_counts)
        print(json.dumps({"found": found, "halo_rows": halo, "rows": shard.num_owned}))


def _time(shard: Shard, parts: str, model: str) -> dict[str, dict[str, Any]]:
    trainings: dict[str, Trainer] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in STRATEGIES:
        config = make_config(data=parts, model=model, strategy=name, **COMMON).resolved()
        trainings[name] = begin(config, shard)
        losses = [_step(trainings[name]) for _ in range(EPOCHS_COMPARED)]
        found[name] = {"losses": losses, "seconds": [], "sent": 0}
    for _ in range(TIMED_EPOCHS):
        for name, training in trainings.items():
            before = _row_bytes(shard.world)
            start = time.perf_counter()
            _step(training)
            found[name]["seconds"].append(time.perf_counter() - start)
            found[name]["sent"] = _row_bytes(shard.world) - before
    return found


def _step(training: Trainer) -> float:
    loss = training.step()
    training.progress.epochs += 1
    return float(loss)


def _row_bytes(world: World) -> int:
    sent = world.meter.bytes_sent
    return sum(count for name, count in sent.items() if name.startswith(("halo", "column")))


def predicted_bytes(model: str, strategy: str, nodes: int, ranks: int, halo: int) -> float:
    """Return what all ranks send in an epoch by the formulas, columns divided evenly."""
    total = 0.0
    for number in range(LAYERS):
        last = number == LAYERS - 1
        out, into = (CLASSES if last else HIDDEN), (HIDDEN if number else FEATURES)
        heads = 1 if last else HEADS
        taken = out + 2 * heads if model == "gat" else min(into, out)
        given = out if model == "gat" else min(into, out)
        ways = 2 if model == "gat" or number or out <= into else 1  # constant input: no gradient
        if strategy == "columns":
            total += ways * (taken + given) * nodes * (ranks - 1) / ranks
        else:
            width = out + heads if model == "gat" else given
            again = 1 if strategy == "sar" and model == "gat" else 0
            total += (ways + again) * width * halo
    return 4 * total


def time_hosts(
    graph: Graph, scratch: Path, size: int, mbit: float, models: list[str]
) -> list[dict[str, Any]]:
    """Return a row for each model and strategy on so many hosts with such links."""
    folder = scratch / graph.name
    folder.mkdir(exist_ok=True)
    job = {"parts": str(cut(graph, size, folder)), "models": models}
    command = [sys.executable, "-m", "benchmarks.feature_parallel", "--rank", json.dumps(job)]
    with hosts(size, mbit=mbit) as made:
        answers = made.run(command, deadline_seconds=900)
    failed = [told for told in answers if told.code != 0]
    if failed:
        raise RuntimeError(f"host {failed[0].host}: {failed[0].err[-2000:]}")
    told = [json.loads(each.out.splitlines()[-1]) for each in answers]
    halo = sum(each["halo_rows"] for each in told)
    rows = []
    for model in models:
        first = told[0]["found"][model]
        for name in STRATEGIES:
            _gate(first[name]["losses"], first["halo"]["losses"])
            seconds = statistics.median(first[name]["seconds"])
            sent = sum(each["found"][model][name]["sent"] for each in told)
            want = predicted_bytes(model, name, graph.num_nodes, size, halo)
            rows.append(
                {
                    "graph": graph.name,
                    "hosts": size,
                    "mbit": mbit,
                    "model": model,
                    "strategy": name,
                    "halo_rows_per_node": round(halo / graph.num_nodes, 2),
                    "epoch_seconds": round(seconds, 3),
                    "times_halo": round(statistics.median(first["halo"]["seconds"]) / seconds, 2),
                    "mb": round(sent / 1e6, 2),
                    "mb_by_formula": round(want / 1e6, 2),
                }
            )
            print("  ".join(f"{value!s:<12}" for value in rows[-1].values()), flush=True)
    return rows


def _gate(got: list[float], want: list[float]) -> None:
    """No time is reported for a wrong answer."""
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(got, want, strict=True)):
        raise RuntimeError(f"losses differ: {got} and {want}")


def main() -> None:
    """Measure on both graphs; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", default="4,8")
    parser.add_argument("--mbit", default="1000")
    parser.add_argument("--models", default="sage,gat")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    warm_up()
    times: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-columns-") as scratch:
        for communities in (False, True):
            graph = badly_cut(args.nodes, args.degree, communities=communities)
            for size in map(int, args.hosts.split(",")):
                for mbit in map(float, args.mbit.split(",")):
                    models = args.models.split(",")
                    times += time_hosts(graph, Path(scratch), size, mbit, models)
    facts = {"benchmark": "feature_parallel", "nodes": args.nodes, "degree": args.degree}
    result = {**facts, "times": times, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
