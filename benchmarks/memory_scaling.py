"""Does the memory of a rank fall with the number of ranks?

Run: python -m benchmarks.memory_scaling [--json FILE] [--ranks 1,2,4,8] [--nodes 200000]
     [--degree 50] [--models sage,gat]

Peak resident memory above the start of training, the largest over the ranks, of full-graph training
steps of 3-layer GraphSAGE (256) and GAT (4 x 64) on a random graph, which no partition helps:
nearly every rank needs nearly every row. `halo` fetches all halo rows at once and keeps what
backward needs, `sar` fetches one peer's at a time and again. Freed memory is given back at once, in
all runs. Beside them what the formula in docs/strategies.md predicts, and PyG in one process, where
it fits.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.measure import append_json, machine, reset_peak, status_bytes
from benchmarks.ranks import answer, run_module
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.network import model_spec
from siafu.graph import Graph, graph_from_edges
from siafu.launch.rank import prepare_process
from siafu.memory import free_bytes
from siafu.ops import HUGE_PAGES_VARIABLE, spare_memory
from siafu.partitioning import write_parts
from siafu.plan import predict_training_bytes
from siafu.shard import open_shard

STEPS = 3
FEATURES, CLASSES = 128, 16
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"model": "sage", "hidden": 256, "layers": 3},
    "gat": {"model": "gat", "hidden": 256, "heads": 4, "layers": 3},
}
STRATEGIES = ("halo", "sar")


def random_graph(nodes: int, degree: int) -> Graph:
    """Return a graph of uniformly drawn edges with random features and labels."""
    generator = np.random.default_rng(0)
    edges = nodes * degree
    return graph_from_edges(
        generator.integers(0, nodes, edges, dtype=np.int64),
        generator.integers(0, nodes, edges, dtype=np.int64),
        nodes,
        name="random",
        x=generator.standard_normal((nodes, FEATURES), dtype=np.float32),
        y=generator.integers(0, CLASSES, nodes),
        num_classes=CLASSES,
        train=np.ones(nodes, bool),
        val=np.zeros(nodes, bool),
        test=np.zeros(nodes, bool),
    )


def measure_rank(job: dict[str, Any]) -> None:
    """Take a few steps as one rank and tell peak memory and time."""
    config = make_config(**job["config"]).resolved()
    prepare_process(config)
    spare_memory()
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False)
        training = begin(config, shard)
        predicted = predict_training_bytes(config, model_spec(config, shard), shard)
        before = reset_peak()
        seconds = []
        for _ in range(STEPS):
            start = time.perf_counter()
            training.step()
            seconds.append(time.perf_counter() - start)
        peak = status_bytes("VmHWM") - before
        parameters = sum(p.numel() for p in training.workload.network.module.parameters())
        answer(
            {
                "peak": peak,
                "predicted": predicted,
                "seconds": min(seconds[1:]),
                "sent": dict(world.meter.bytes_sent),
                "model_bytes": 16 * parameters,  # weights, gradients, two moments
            }
        )


def measure(parts: Path, model: str, strategy: str, ranks: int) -> dict[str, Any]:
    """Return the largest peak over the ranks, and the slowest rank's time."""
    config = {"data": str(parts), "strategy": strategy, "dropout": 0.5, **MODELS[model]}
    # As the launcher starts ranks. For stages 1 the same, so that what is alive is compared, not
    # what the allocator holds back.
    job = {"parts": str(parts), "config": config}
    variables = {HUGE_PAGES_VARIABLE: "1"}
    rows = run_module("benchmarks.memory_scaling", ranks, job, variables=variables)
    worst = max(rows, key=lambda row: row["peak"])
    return {
        "model": model,
        "ranks": ranks,
        "strategy": strategy,
        "peak_mb": round(worst["peak"] / 1e6, 1),
        "predicted_mb": round(worst["predicted"] / 1e6, 1),
        "model_mb": round(worst["model_bytes"] / 1e6, 1),
        "epoch_seconds": round(statistics.median(row["seconds"] for row in rows), 3),
        "sent_mb": round(sum(sum(row["sent"].values()) for row in rows) / 1e6 / STEPS, 1),
    }


class PygNet(nn.Module):
    """The same three layers in PyG."""

    def __init__(self, model: str) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv, SAGEConv  # noqa: PLC0415 - ranks need no PyG

        if model == "sage":
            widths = [FEATURES, 256, 256, CLASSES]
            self.layers = nn.ModuleList(SAGEConv(widths[n], widths[n + 1]) for n in range(3))
        else:
            inner = [GATConv(width, 64, heads=4) for width in (FEATURES, 256)]
            self.layers = nn.ModuleList([*inner, GATConv(256, CLASSES, heads=1, concat=False)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(functional.dropout(x, 0.5), edge_index)
            x = functional.relu(x) if number < 2 else x
        return x


def measure_pyg(graph: Graph, model: str) -> dict[str, Any]:
    """Return the peak of PyG's step in this process, or why it was not run."""
    # An edge's message in float32, and the copies seen alive at once.
    need = graph.num_edges * 256 * 4 * (4.5 if model == "gat" else 2.0)
    free = free_bytes()
    row: dict[str, Any] = {"model": model, "ranks": 1, "strategy": "pyg"}
    if need > 0.8 * free:
        return row | {"not_run": f"needs about {need / 1e9:.0f} GB of {free / 1e9:.0f} GB free"}
    x, y = torch.from_numpy(np.array(graph.x)), torch.from_numpy(np.array(graph.y))
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = torch.from_numpy(np.stack([np.array(graph.src, np.int64), dst]))
    net = PygNet(model)
    before = reset_peak()
    for _ in range(2):
        functional.cross_entropy(net(x, edges), y).backward()
    return row | {"peak_mb": round((status_bytes("VmHWM") - before) / 1e6, 1)}


def main() -> None:
    """Measure every combination and print one line for each; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--models", default="sage,gat")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    graph = random_graph(args.nodes, args.degree)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-memory-") as folder:
        parts = {}
        for size in (int(text) for text in args.ranks.split(",")):
            parts[size] = Path(folder) / f"{size}.parts"
            part_of = (np.arange(graph.num_nodes) * size // graph.num_nodes).astype(np.int32)
            write_parts(graph, part_of, parts[size], num_parts=size, method="contiguous", seed=0)
        for model in args.models.split(","):
            for size, path in parts.items():
                for strategy in STRATEGIES:
                    if size == 1 and strategy != "halo":
                        continue
                    rows.append(measure(path, model, strategy, size))
                    print(json.dumps(rows[-1]), flush=True)
            rows.append(measure_pyg(graph, model))
            print(json.dumps(rows[-1]), flush=True)
    facts = {"benchmark": "memory_scaling", "nodes": graph.num_nodes, "edges": graph.num_edges}
    result = {**facts, "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
