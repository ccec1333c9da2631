"""What does a training step on a sampled minibatch take over its dense products?

Run: python -m benchmarks.step [--json FILE] [--model sage] [--repeats 7] [--nodes 300000]
     [--label WORDS]

One process, one thread: 3 layers of 256 hidden, dropout 0.5, fan-out 15,10,5, minibatches of 1000
on a graph like ogbn-products (100 features). A step is the forward pass, the loss, the backward
pass and Adam, on a minibatch that has been drawn and fetched. The floor is its matrix products
alone, forward and backward, on tensors of the same shapes: `products` as siafu makes them,
`products_torch` by torch's, which `products` were too in rows without that name. PyG trains the
same model on the same minibatch, trimmed layer by layer. Sides take turns; seconds are processor
time, which a busy machine disturbs less. `parts` are the operations of our step, from torch's
profiler.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Spread, append_json, machine
from benchmarks.products_like import CLASSES, FEATURES, part_of, products_like
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.sampled import SampledNetwork
from siafu.launch.rank import prepare_process
from siafu.minibatch import Macrobatch
from siafu.ops import map_gradient, map_rows
from siafu.partitioning import write_parts
from siafu.shard import open_shard

BATCH, HIDDEN, STEPS = 1000, 256, 16
SETTINGS: dict[str, Any] = {
    "strategy": "batchgnn",
    "hidden": HIDDEN,
    "layers": 3,
    "fanout": "15,10,5",
    "batch_size": BATCH,
    "dropout": 0.5,
    "input_dropout": 0.0,
    "macrobatch": "1",
    "threads": 1,
    "inference": "none",
}
WIDTHS = (FEATURES, HIDDEN, HIDDEN, CLASSES)
_NAMED = 12
"""Operations that are told by name."""


def our_step(network: SampledNetwork, macrobatch: Macrobatch) -> Callable[[], object]:
    """Return what trains one step."""
    optimiser = torch.optim.Adam(network.module.parameters(), lr=1e-3)
    step, subgraphs = macrobatch.steps[0], macrobatch.subgraphs[0]
    network.module.train()

    def work() -> object:
        return network._take_step(optimiser, 1, macrobatch, step, subgraphs)

    return work


def products(reached: tuple[int, ...], per_row: int, *, torchs: bool) -> Callable[[], object]:
    """Return the step's products: of each row that a layer writes, `per_row` maps.

    Forward, gradients of weights, and of rows but in the first layer.
    """
    rows = reached[::-1][1:]
    inputs = [torch.randn(n, d) for n, d in zip(rows, WIDTHS, strict=False)]
    grads = [torch.randn(n, d) for n, d in zip(rows, WIDTHS[1:], strict=False)]
    weights = [torch.randn(o, d) for d, o in pairwise(WIDTHS)]
    layers = list(zip(inputs, grads, weights, strict=True))
    out = [tuple(map(torch.empty_like, (grad, weight, x))) for x, grad, weight in layers]

    def by_torch() -> object:
        for number, (x, grad, weight) in enumerate(layers):
            for _ in range(per_row):
                torch.mm(x, weight.T, out=out[number][0])
                torch.mm(grad.T, x, out=out[number][1])
                if number:
                    torch.mm(grad, weight, out=out[number][2])
        return out

    def as_siafu() -> object:
        for number, (x, grad, weight) in enumerate(layers):
            for _ in range(per_row):
                map_rows(x, weight)
                map_gradient(grad, x)
                if number:
                    map_rows(grad, weight.T)
        return out

    return by_torch if torchs else as_siafu


class PygSage(nn.Module):
    """The same model of PyG's layers."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv  # noqa: PLC0415 - a peer, not a dependency

        self.convs = nn.ModuleList(SAGEConv(d, o) for d, o in pairwise(WIDTHS))

    def forward(self, x: Tensor, layers: list[tuple[Tensor, int]]) -> Tensor:
        """Return rows of the seeds; each layer has its edges and how many rows it writes."""
        for number, (conv, (edges, rows)) in enumerate(zip(self.convs, layers, strict=True)):
            if number:
                x = functional.dropout(x.relu(), 0.5, training=True)
            x = conv((x, x[:rows]), edges)
        return x


def pyg_step(macrobatch: Macrobatch) -> Callable[[], object]:
    """Return the same step with PyG's layers."""
    graph = macrobatch.subgraphs[0][0]
    columns = macrobatch.columns_of(graph)
    edge_index = graph.edge_index()
    layers = [(edge_index[:, : graph.ends[hop]], graph.reached[hop]) for hop in (2, 1, 0)]
    model = PygSage()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def work() -> object:
        optimiser.zero_grad()
        functional.cross_entropy(model(columns["x"], layers), columns["y"]).backward()
        optimiser.step()
        return None

    return work


def parts_of(step: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds of the operations that take most, each without those it calls."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    found = sorted(seen.key_averages(), key=lambda op: -op.self_cpu_time_total)
    return {op.key: round(op.self_cpu_time_total / 1e3, 1) for op in found[:_NAMED]}


def in_turns(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, Spread]:
    """Return the processor seconds of each side."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for count in range(repeats + 1):
        for name, side in sides.items():
            began = time.process_time()
            side()
            if count:  # the first one compiles, and touches its memory
                seconds[name].append(time.process_time() - began)
    return {name: Spread.of(values) for name, values in seconds.items()}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the row of one model."""
    graph = products_like(args.nodes, STEPS * BATCH, communities=True)
    write_parts(graph, part_of(graph, 1), folder, num_parts=1, method="contiguous", seed=0)
    config = make_config(data="graph", model=args.model, **SETTINGS)
    prepare_process(config)
    training = begin(config.resolved(), open_shard(folder, World(), verify=False, place="host"))
    network = training.workload.network
    assert isinstance(network, SampledNetwork)
    sampler = network.feed.sampler
    macrobatch = sampler.build(1, sampler.schedule.steps(1)[:1])
    reached = macrobatch.subgraphs[0][0].reached
    ours = our_step(network, macrobatch)
    maps = 2 if args.model == "sage" else 1
    sides = {
        "step": ours,
        "products": products(reached, maps, torchs=False),
        "products_torch": products(reached, maps, torchs=True),
    }
    if args.model == "sage":
        sides["pyg"] = pyg_step(macrobatch)
    found = in_turns(sides, args.repeats)
    row: dict[str, Any] = {
        "benchmark": "step",
        "label": args.label,
        "model": args.model,
        "nodes": args.nodes,
        "reached": reached,
        **machine(),
        **{name: spread.row() for name, spread in found.items()},
        "over_products": round(found["step"].median / found["products"].median, 3),
        "parts": parts_of(ours),
    }
    if "pyg" in found:
        row["times_pyg"] = round(found["pyg"].median / found["step"].median, 2)
    training.close()
    return row


def main() -> None:
    """Print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="sage", choices=["sage", "gcn", "gin"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--label", default="", help="what tells this row from others")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siafu-step-") as scratch:
        row = measure(args, Path(scratch) / "graph.parts")
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
