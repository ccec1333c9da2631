"""How long does an epoch of sampled training take on one GPU, with rows on it and beside it?

Run: python -m benchmarks.sampled_gpu [--json FILE] [--device cuda|cpu] [--scale 1.0] [--epochs 5]
     [--models sage,gat] [--pyg-steps 20] [--ranks 2]

1.2 M nodes, 40 M edges, 100 features, 196 k seeds (made by seeded code), three layers of 256,
fan-out 15,10,5, minibatches of 1,024. siafu as `--strategy batchgnn` runs it, with rows on the
device, in pinned memory (a tenth of them, and none, copied to the device) and on the host. Beside
it: a plain loop of torch operations on the device, which draws with replacement and numbers nodes
by sorting, and PyG's NeighborLoader where it runs, over some steps. The losses of a small graph
are compared with the CPU's. `--ranks` adds so many ranks, which share the one GPU here: the whole
graph on each, and drawn on their hosts; minibatches are of 1,024 seeds per rank.

Shapes: N nodes, E edges, V nodes of a minibatch.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import Spread, append_json, machine
from benchmarks.sampled_gpu_plain import BATCH, CLASSES, FANOUT, HIDDEN, WIDTH, PlainLoop
from siafu.comm import HaloPlan, World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.graph import Graph
from siafu.graph.nodes import IntegerIds
from siafu.ops import CSR
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG scripts parts of itself, which torch has deprecated
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GAT, GraphSAGE

NODES, EDGES, SEEDS = 1_200_000, 40_000_000, 196_000
SMALL = 0.01
"""Of the graph whose losses are compared with the CPU's."""
SAME_LOSS = 1e-4
"""Relative: sums in another order."""
CONTESTANTS: dict[str, dict[str, Any]] = {
    "device": {"rows_on": "device"},
    "pinned and hot": {"rows_on": "pinned"},
    "pinned": {"rows_on": "pinned", "hot_rows": "1MB"},
    "host": {"rows_on": "host"},
}


def make_shard(scale: float, device: torch.device) -> Shard:
    """Return the graph on the host: communities, hubs, and features that tell of classes."""
    there = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    draw = torch.Generator(there).manual_seed(0)
    nodes, edges = round(NODES * scale), round(EDGES * scale)

    def uniform(count: int) -> Tensor:
        return torch.rand(count, generator=draw, device=there, dtype=torch.float64)

    label = (uniform(nodes) * CLASSES).long()
    members = label.argsort(stable=True)
    first = torch.searchsorted(label[members], torch.arange(CLASSES + 1, device=there))
    dst = (uniform(edges) * nodes).long().sort().values
    begins, ends = first[label[dst]], first[label[dst] + 1]
    near = members[begins + (uniform(edges) ** 1.5 * (ends - begins)).long()]
    hub = (uniform(edges) ** 3 * nodes).long()
    index = torch.where(uniform(edges) < 0.6, near, hub).to(torch.int32).cpu()
    indptr = torch.searchsorted(dst, torch.arange(nodes + 1, device=there)).cpu()
    noise = torch.randn(nodes, WIDTH, generator=draw, device=there)
    x = (noise + functional.one_hot(label, WIDTH)).cpu()
    order = uniform(nodes).argsort().cpu()
    seeds = order[: round(SEEDS * scale)].sort().values
    none = torch.zeros(0, dtype=torch.int64)
    world = World(device=device)
    return Shard(
        world=world,
        name="made",
        num_nodes=nodes,
        num_classes=CLASSES,
        multi_label=False,
        class_names=(),
        csr=CSR(indptr, index, nodes),
        plan=HaloPlan.build(none, [0], [0], nodes),
        row_ids=torch.arange(nodes),
        ids=IntegerIds(np.arange(nodes)),
        x=x,
        y=label.cpu(),
        masks={"train": seeds, "val": none, "test": none},
        mask_totals={"train": len(seeds), "val": 0, "test": 0},
        edge_attr=None,
        edge_type=None,
        num_edge_types=0,
        edge_type_names=(),
        part_of=np.zeros(nodes, np.int32),
        fingerprint="made",
    )


def training_of(shard: Shard, model: str, settings: dict[str, Any]) -> Trainer:
    """Return siafu's training, as the command line would begin it."""
    config = make_config(
        data="made",
        strategy="batchgnn",
        model=model,
        layers=len(FANOUT),
        hidden=HIDDEN,
        fanout=",".join(map(str, FANOUT)),
        batch_size=BATCH,
        dropout=0.5,
        input_dropout=0.0,
        lr=0.003,
        epochs=1000,
        inference="none",
        device=shard.world.device.type,
        **({"heads": 4} if model == "gat" else {}),
        **settings,
    )
    return begin(config.resolved(), shard)


def epoch_of(training: Trainer) -> float:
    """Run an epoch and return its loss."""
    loss = training.step()
    training.progress.epochs += 1
    return loss


def measure(
    epoch: Callable[[], float], epochs: int, steps: int, device: torch.device
) -> dict[str, Any]:
    """Return the seconds of epochs after a first one, and the memory at the peak."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        losses.append(round(epoch(), 6))
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    spread = Spread.of(seconds[1:])
    return {
        "epoch_seconds": round(spread.median, 3),
        "spread_seconds": round(spread.iqr, 3),
        "first_epoch_seconds": round(seconds[0], 2),
        "minibatch_ms": round(1e3 * spread.median / steps, 3),
        "device_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
        "losses": losses,
    }


def measure_siafu(
    shard: Shard, model: str, settings: dict[str, Any], epochs: int
) -> dict[str, Any]:
    """Return siafu's row for one place of the rows."""
    training = training_of(shard, model, settings)
    network: Any = training.workload
    feed = network.network.feed
    row = measure(
        lambda: epoch_of(training), epochs, feed.sampler.schedule.num_steps, shard.world.device
    )
    start = time.perf_counter()
    for _ in feed.sampler.macrobatches(1000, network.network.strategy.macrobatch):
        pass
    row["drawing_alone_seconds"] = round(time.perf_counter() - start, 3)
    row["rows_on"], row["macrobatch"] = feed.place.rows, network.network.strategy.macrobatch
    if feed.device_hits is not None:
        row["device_hits"] = round(feed.device_hits, 3)
    training.close()
    return row


def measure_plain(shard: Shard, epochs: int) -> dict[str, Any]:
    """Return the plain loop's row."""
    loop, steps = PlainLoop(shard), math.ceil(len(shard.train) / BATCH)
    row = measure(loop.epoch, epochs, steps, shard.world.device)
    start = time.perf_counter()
    loop.draw()
    if shard.world.device.type == "cuda":
        torch.cuda.synchronize()
    row["drawing_alone_seconds"] = round(time.perf_counter() - start, 3)
    return row


def measure_pyg(shard: Shard, model: str, steps: int) -> dict[str, Any]:
    """Return what some steps of PyG's own way take, or why it does not run."""
    device = shard.world.device
    data = Data(x=shard.x, y=shard.y, edge_index=shard.edge_index)
    kind: Any = GraphSAGE if model == "sage" else GAT
    more = {"heads": 4} if model == "gat" else {}
    net = kind(WIDTH, HIDDEN, len(FANOUT), CLASSES, dropout=0.5, **more).to(device)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.003)
    has_kernels = any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse"))
    workers = 8 if has_kernels else 0
    loader = NeighborLoader(
        data,
        list(FANOUT),
        input_nodes=shard.train,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
    )

    def timed(batches: Iterator[Any]) -> Iterator[float]:
        for _ in range(steps):
            start = time.perf_counter()
            batch = next(batches).to(device)
            out = net(batch.x, batch.edge_index)[: batch.batch_size]
            loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            yield time.perf_counter() - start

    seconds = list(timed(iter(loader)))[steps // 4 :]
    each = Spread.of(seconds).median
    return {
        "minibatch_ms": round(1e3 * each, 2),
        "epoch_seconds": round(each * math.ceil(len(shard.train) / BATCH), 1),
        "steps_timed": len(seconds),
    }


def compare_losses(model: str, device: torch.device) -> dict[str, Any]:
    """Return the losses of a small graph on the device and on the CPU; raise where they differ."""
    losses = {}
    for place, where in (("device", device), ("host", torch.device("cpu"))):
        shard = make_shard(SMALL, where)
        settings = {"rows_on": place if where.type == "cuda" else "auto"}
        training = training_of(shard, model, settings)
        losses[where.type] = [epoch_of(training) for _ in range(3)]
        training.close()
    ours, theirs = losses[device.type], losses["cpu"]
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    return {"on_device": ours, "on_cpu": theirs, "apart": apart, "same": apart < SAME_LOSS}


def main() -> None:
    """Measure every contestant; one that fails is told and the rest go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--models", default="sage,gat")
    parser.add_argument("--only", default="", help="contestants, comma between; else all")
    parser.add_argument("--pyg-steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1, help="more than one: so many as well")
    parser.add_argument("--parts", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows-on", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.parts:
        run_rank(args)
        return
    shard = make_shard(args.scale, torch.device(args.device))
    for model in args.models.split(","):
        for name, side in sides_of(shard, model, args).items():
            if args.only and name not in args.only.split(","):
                continue
            row = {
                "benchmark": "sampled_gpu",
                "model": model,
                "contestant": name,
                "nodes": shard.num_nodes,
                "edges": shard.csr.num_edges,
                "seeds": len(shard.train),
            }
            try:
                row |= side()
            except Exception as error:  # noqa: BLE001 - the others are still worth measuring
                row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            row |= machine(args.device)
            print(json.dumps(row), flush=True)
            if args.json:
                append_json(args.json, row)
            with suppress(AttributeError, RuntimeError):
                torch.cuda.empty_cache()


def sides_of(
    shard: Shard, model: str, args: argparse.Namespace
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the contestants of one model."""
    tenth = f"{max(1, shard.num_nodes * WIDTH * 4 // 10)}B"
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "losses": lambda: compare_losses(model, torch.device(args.device)),
    }
    for name, settings in CONTESTANTS.items():
        more = {"hot_rows": tenth} if "hot" in name else {}
        few = 1 if name == "host" else args.epochs
        sides[f"siafu {name}"] = partial(measure_siafu, shard, model, settings | more, few)
    if model == "sage":
        sides["plain torch"] = lambda: measure_plain(shard, args.epochs)
    sides["pyg"] = lambda: measure_pyg(shard, model, args.pyg_steps)
    if args.ranks > 1:
        for place in ("device", "host"):
            name = f"siafu {place} x {args.ranks}"
            sides[name] = partial(measure_ranks, shard, model, place, args)
    return sides


def measure_ranks(shard: Shard, model: str, place: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of several ranks, each in a process of its own."""
    assert isinstance(shard.x, Tensor)
    assert shard.y is not None
    train = np.zeros(shard.num_nodes, bool)
    train[shard.train.numpy()] = True
    graph = Graph(
        name="made",
        indptr=shard.csr.indptr.numpy(),
        src=shard.csr.index.numpy(),
        ids=shard.ids,
        x=shard.x.numpy(),
        y=shard.y.numpy(),
        num_classes=CLASSES,
        train=train,
    )
    part_of = np.arange(shard.num_nodes, dtype=np.int64) * args.ranks // shard.num_nodes
    with tempfile.TemporaryDirectory() as folder:
        parts, count = Path(folder) / "made.parts", args.ranks
        write_parts(graph, part_of.astype(np.int32), parts, num_parts=count, method="range", seed=0)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(count), "-m", "benchmarks.sampled_gpu"]
        command += ["--parts", str(parts), "--rows-on", place, "--models", model]
        command += ["--epochs", str(1 if place == "host" else args.epochs)]
        command += ["--device", args.device]
        threads = str(max(1, (os.cpu_count() or 1) // count))
        env = os.environ | {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1]))


def run_rank(args: argparse.Namespace) -> None:
    """Train as one of several ranks; the first tells."""
    with World.join(device=args.device) as world:
        shard = open_shard(args.parts, world, place="host", verify=False)
        row = measure_siafu(shard, args.models, {"rows_on": args.rows_on}, args.epochs)
        peaks = world.gather_numbers([row["device_gb"] or 0.0])
        row |= {"ranks": world.size, "device_gb": sum(peak[0] for peak in peaks)}
        row |= {"sent_mb": {k: round(v / 1e6, 1) for k, v in world.meter.bytes_sent.items()}}
        if world.rank == 0:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
