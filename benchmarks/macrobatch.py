"""What does fetching several minibatches at once save, and what do the caches add?

Run: python -m benchmarks.macrobatch [--json FILE] [--hosts 1,2,4] [--mbit 1000] [--steps 32]

Hosts in network namespaces (`benchmarks.hosts`; needs root) train 3-layer GraphSAGE of 256 hidden
with fan-out 15,10,5 and minibatches of 1000, each on its own vertices: on a graph like
ogbn-products (communities, 100 features, cut by METIS) and on a power-law one (cut by hash).
k = 1 without caches is how DistDGL fetches. Seconds are of an epoch, drawing and fetching alone and
with training; bytes and messages are of all hosts together. Every contestant must end an epoch with
the weights of k = 1, to the bit, unless it computes something else by design (aggregated input,
8-bit features).
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import hosts
from benchmarks.measure import append_json, machine
from benchmarks.ranks import answer, run_module
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Training, begin
from siafu.engine.sampled import SampledNetwork
from siafu.graph import Graph, graph_from_edges
from siafu.launch.rank import prepare_process
from siafu.ops import warm_up, warm_up_sampling, warm_up_wire
from siafu.partition import assign_hash, assign_metis, write_parts
from siafu.shard import Shard, open_shard

FEATURES, CLASSES, BATCH = 100, 47, 1000
COMMON = {
    "model": "sage",
    "strategy": "batchgnn",
    "hidden": 256,
    "layers": 3,
    "fanout": "15,10,5",
    "batch_size": BATCH,
    "dropout": 0.5,
    "input_dropout": 0.0,
    "threads": 1,
}
CACHES: dict[str, dict[str, Any]] = {
    "hot rows": {"hot_rows": "20MB"},
    "8-bit features": {"feature_bits": 8},
    "aggregated": {"input_cache": True},
    "aggregated, hot rows": {"input_cache": True, "hot_rows": "20MB"},
}
SIZES = (1, 2, 4, 8, 16, 32, 64)


def contestants() -> dict[str, dict[str, Any]]:
    """Return the settings of each."""
    plain = {f"k={size}": {"macrobatch": str(size)} for size in SIZES}
    cached = {
        f"k={size}, {name}": {"macrobatch": str(size), **settings}
        for size in (1, 32)
        for name, settings in CACHES.items()
    }
    return plain | cached


def products_like(vertices: int, steps: int, ranks: int, *, communities: bool) -> Graph:
    """Return an undirected graph of mean degree 50, skewed, with so many training vertices."""
    generator = np.random.default_rng(0)
    edges = 25 * vertices
    label = generator.integers(0, CLASSES, vertices)
    share = generator.pareto(1.8, vertices) + 0.2
    src = generator.choice(vertices, edges, p=share / share.sum())
    dst = generator.choice(vertices, edges, p=share / share.sum())
    if communities:
        near = (src + generator.integers(1, 400, edges)) % vertices
        dst = np.where(generator.random(edges) < 0.7, near, dst)
    role = np.zeros(vertices, bool)
    wanted = min(vertices // 2, steps * BATCH * ranks)
    role[generator.permutation(vertices)[:wanted]] = True
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        vertices,
        name="products-like" if communities else "power-law",
        x=generator.standard_normal((vertices, FEATURES), dtype=np.float32),
        y=label,
        num_classes=CLASSES,
        train=role,
        val=np.zeros(vertices, bool),
        test=np.zeros(vertices, bool),
    )


def cut(graph: Graph, size: int, folder: Path) -> Path:
    """Write the graph in parts and return their folder."""
    target = folder / f"{graph.name}-{size}.parts"
    by_metis = graph.name == "products-like" and size > 1
    assign = assign_metis if by_metis else assign_hash
    part_of = assign(graph, size, seed=0) if size > 1 else np.zeros(graph.num_nodes, np.int32)
    method = "metis" if by_metis else "hash"
    write_parts(graph, part_of, target, num_parts=size, method=method, seed=0)
    return target


def fetch_epoch(training: Training) -> float:
    """Return the seconds that an epoch's macrobatches take when nothing is trained."""
    network = training.network
    assert isinstance(network, SampledNetwork)
    assert network.strategy.macrobatch != "auto"
    start = time.perf_counter()
    for macrobatch in network.feed.sampler.macrobatches(1, network.strategy.macrobatch):
        assert macrobatch.steps
    return time.perf_counter() - start


def measure(shard: Shard, settings: dict[str, Any], *, train: bool) -> dict[str, Any]:
    """Return times, traffic and, where it trains, a hash of the weights after an epoch."""
    training = begin(make_config(data="graph", **COMMON, **settings).resolved(), shard)
    meter = shard.world.meter
    before, told = dict(meter.bytes_sent), dict(meter.messages_sent)
    found: dict[str, Any] = {"fetch_seconds": fetch_epoch(training)}
    for name in ("feature", "sample"):
        found[f"{name}_bytes"] = meter.bytes_sent.get(name, 0) - before.get(name, 0)
    names = ("feature", "sample", "control")
    found["messages"] = sum(meter.messages_sent.get(n, 0) - told.get(n, 0) for n in names)
    if train:
        start = time.perf_counter()
        found["loss"] = training.step()
        found["epoch_seconds"] = time.perf_counter() - start
        weights = training.network.module.state_dict().values()
        found["weights"] = hashlib.sha256(
            b"".join(weight.numpy().tobytes() for weight in weights)
        ).hexdigest()[:16]
    training.close()
    return found


def measure_rank(job: dict[str, Any]) -> None:
    """Do one rank's share of a job and tell what it saw."""
    prepare_process(make_config(data="graph", **COMMON))
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False, place="host")
        found = {}
        for name, settings in contestants().items():
            found[name] = measure(shard, settings, train=name in job["trained"])
            if world.rank == 0:
                print(name, found[name], file=sys.stderr, flush=True)
        answer(found) if job["local"] else print(json.dumps(found))


def on_hosts(parts: Path, size: int, mbit: float, trained: list[str]) -> list[dict[str, Any]]:
    """Return what each host measured."""
    job = {"parts": str(parts), "trained": trained, "local": size == 1}
    if size == 1:
        return run_module("benchmarks.macrobatch", 1, job)
    command = [sys.executable, "-m", "benchmarks.macrobatch", "--rank", json.dumps(job)]
    with hosts(size, mbit=mbit) as made:
        answers = made.run(command, deadline_seconds=3600)
    failed = [told for told in answers if told.code != 0]
    if failed:
        raise RuntimeError(f"host {failed[0].host}: {failed[0].err[-2000:]}")
    return [json.loads(each.out.splitlines()[-1]) for each in answers]


def rows_of(told: list[dict[str, Any]], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each contestant, beside k = 1 without caches."""
    first = told[0]["k=1"]
    bytes_first = sum(each["k=1"]["feature_bytes"] for each in told)
    rows = []
    for name in told[0]:
        found = [each[name] for each in told]
        features = sum(each["feature_bytes"] for each in found)
        row = {
            **facts,
            "contestant": name,
            "fetch_seconds": round(found[0]["fetch_seconds"], 2),
            "times_fetch": round(first["fetch_seconds"] / found[0]["fetch_seconds"], 2),
            "feature_mb": round(features / 1e6, 1),
            "feature_share": round(features / bytes_first, 3) if bytes_first else 0.0,
            "sample_mb": round(sum(each["sample_bytes"] for each in found) / 1e6, 1),
            "messages": sum(each["messages"] for each in found),
        }
        if "epoch_seconds" in found[0]:
            row["epoch_seconds"] = round(found[0]["epoch_seconds"], 2)
            row["times_epoch"] = round(first["epoch_seconds"] / found[0]["epoch_seconds"], 2)
            exact = "8-bit" not in name and "aggregated" not in name
            if exact and found[0]["weights"] != first["weights"]:
                raise RuntimeError(f"{name} ends with other weights than k = 1")
        rows.append(row)
        print("  ".join(f"{value!s:<9}" for value in row.values()), flush=True)
    return rows


def main() -> None:
    """Measure every contestant on every number of hosts; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--vertices", type=int, default=300_000)
    parser.add_argument("--graphs", default="products-like,power-law")
    parser.add_argument("--trained", default="k=1;k=8;k=32;k=32, hot rows;k=32, aggregated")
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    warm_up()
    warm_up_wire()
    warm_up_sampling()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-macrobatch-") as scratch:
        for size in (int(text) for text in args.hosts.split(",")):
            for name in args.graphs.split(","):
                like = name == "products-like"
                graph = products_like(args.vertices, args.steps, size, communities=like)
                parts = cut(graph, size, Path(scratch))
                told = on_hosts(parts, size, args.mbit, args.trained.split(";"))
                facts = {"hosts": size, "mbit": args.mbit, "graph": name}
                rows += rows_of(told, facts)
    sizes = {"vertices": args.vertices, "edges": 50 * args.vertices, "steps": args.steps}
    result = {"benchmark": "macrobatch", **sizes, "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
