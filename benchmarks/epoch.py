"""How long does a whole training epoch take beside PyG, and beside its products and gathers alone?

Run: python -m benchmarks.epoch [--json FILE] [--device cpu|cuda] [--scale 1.0] [--repeats 5]

Three layers, 256 hidden, dropout, forward, backward and Adam's step, on an arxiv-like graph. Both
sides get the same graph, the same allocator and both cores, and alternate. The floor is the dense
products of our order of work plus one random gather per aggregation, each timed alone. Beside DGL:
`benchmarks.epoch_dgl`.

Shapes: N nodes, D width.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import Side, append_json, machine, peak_bytes, take_turns
from benchmarks.spmm import SHAPES, floor_of, power_law
from siafu.nn import GNN, Draws, LocalNeighbours, ModelSpec
from siafu.ops import CSR, map_gradient, map_rows, set_threads, spare_page_faults

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG scripts parts of itself, which torch has deprecated
    from torch_geometric.nn import GCNConv, SAGEConv

WIDTH, HIDDEN, CLASSES, LAYERS = 128, 256, 40, 3


class PygNet(nn.Module):
    """The same three layers by PyG."""

    def __init__(self, name: str) -> None:
        super().__init__()
        widths = [WIDTH, HIDDEN, HIDDEN, CLASSES]
        pairs = list(pairwise(widths))
        if name == "gcn":
            self.convs = nn.ModuleList(GCNConv(i, o, cached=True) for i, o in pairs)
        else:
            self.convs = nn.ModuleList(SAGEConv(i, o) for i, o in pairs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        for number, conv in enumerate(self.convs):
            x = conv(functional.dropout(x, 0.5, self.training), edge_index)
            x = torch.relu(x) if number < LAYERS - 1 else x
        return x


def epoch_of(module: nn.Module, forward: Callable[[], Tensor], y_N: Tensor) -> Side:
    """Return one epoch: forward, backward, step."""
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)

    def epoch() -> None:
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(forward(), y_N).backward()
        optimiser.step()

    return epoch


def products_of(name: str, x_ND: Tensor) -> Side:
    """Return the dense products of an epoch: forward, and both gradients where needed."""
    n = x_ND.size(0)
    maps = 2 if name == "sage" else 1
    widths = [(WIDTH, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)]
    inputs = [x_ND.new_ones(n, i) for i, _ in widths]
    grads = [x_ND.new_ones(n, o) for _, o in widths]
    weights = [x_ND.new_ones(o, i) for i, o in widths]

    def products() -> None:
        for number, (rows, grad, weight) in enumerate(zip(inputs, grads, weights, strict=True)):
            for _ in range(maps):
                map_rows(rows, weight)
                map_gradient(grad, rows)
                if number:
                    map_rows(grad, weight.t())

    return products


def gathers_of(csr: CSR, x_ND: Tensor) -> Side:
    """Return a random gather for every aggregation: 128 wide, then 256 and 40 there and back."""
    passes = [floor_of(csr, x_ND)]
    for width in (HIDDEN, CLASSES):
        # The floor's kernel takes whole vectors on CPU, powers of two on CUDA.
        padded = width + (-width) % (16 if x_ND.device.type == "cpu" else 64)
        rows = x_ND.new_ones(x_ND.size(0), padded)
        passes += [floor_of(csr, rows), floor_of(csr.transpose(), rows)]

    def gathers() -> None:
        for one in passes:
            one()

    return gathers


def gate(name: str, csr: CSR, x_ND: Tensor, device: str) -> None:
    """Raise unless both sides compute the same rows when they have the same weights."""
    ours = GNN(ModelSpec(name=name, in_width=WIDTH, out_width=CLASSES, hidden=HIDDEN, layers=3))
    theirs = PygNet(name).to(device).eval()
    with torch.no_grad():
        pairs: list[tuple[Any, Any]] = list(zip(ours.layers, theirs.convs, strict=True))
        for layer, conv in pairs:
            if name == "gcn":
                layer.linear.weight.copy_(conv.lin.weight)
            else:
                layer.neigh.weight.copy_(conv.lin_l.weight)
                layer.own.weight.copy_(conv.lin_r.weight)
                layer.own.bias.copy_(conv.lin_l.bias)
        draws = Draws(training=False)
        ids = torch.arange(x_ND.size(0), device=device)
        got = ours.to(device).eval()(x_ND, LocalNeighbours(csr, ids, draws), draws)
        want = theirs(x_ND, edges_of(csr))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def edges_of(csr: CSR) -> Tensor:
    """Return the graph in PyG's form."""
    return torch.stack([csr.index.long(), csr.rows()])


def without_loops(csr: CSR) -> CSR:
    """Return the graph without loops: PyG merges repeated ones, siafu keeps them."""
    edge_index = edges_of(csr)
    kept = edge_index[0] != edge_index[1]
    indptr = torch.zeros_like(csr.indptr)
    indptr[1:] = torch.bincount(edge_index[1][kept], minlength=csr.num_rows).cumsum(0)
    return CSR(indptr, csr.index[kept], csr.num_cols)


def measure_model(args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one model with one allocator."""
    set_threads(args.threads)
    if args.allocator == "kept" and args.device == "cpu":
        spare_page_faults()
    csr = without_loops(power_law(SHAPES["cpu"]["arxiv-like"], args.scale)).to(args.device)
    n = csr.num_rows
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(n, WIDTH, generator=generator).to(args.device)
    y_N = torch.randint(CLASSES, (n,), generator=generator).to(args.device)
    gate(args.model, csr, x_ND, args.device)
    spec = ModelSpec(name=args.model, in_width=WIDTH, out_width=CLASSES, hidden=HIDDEN, layers=3)
    draws, ours, theirs = Draws(), GNN(spec).to(args.device), PygNet(args.model).to(args.device)
    neighbours = LocalNeighbours(csr, torch.arange(n, device=args.device), draws)
    edge_index = edges_of(csr)
    sides = {
        "siafu": epoch_of(ours, lambda: ours(x_ND, neighbours, draws), y_N),
        "pyg": epoch_of(theirs, lambda: theirs(x_ND, edge_index), y_N),
        "products": products_of(args.model, x_ND),
        "gathers": gathers_of(csr, x_ND),
    }
    spreads = take_turns(sides, repeats=args.repeats, device=args.device, budget_seconds=60)
    floor = spreads["products"].median + spreads["gathers"].median
    row: dict[str, Any] = {
        "benchmark": "epoch",
        "model": args.model,
        "allocator": args.allocator,
        "nodes": n,
        "edges": csr.num_edges,
        **{name: spread.row() for name, spread in spreads.items()},
        "times_faster_than_pyg": round(spreads["pyg"].median / spreads["siafu"].median, 2),
        "times_the_floor": round(spreads["siafu"].median / floor, 2),
        **machine(args.device),
    }
    if args.allocator == "default":
        # With blocks kept, resident memory says nothing of what a side needs.
        peaks = {name: peak_bytes(sides[name], args.device) for name in ("siafu", "pyg")}
        row["peak_mb"] = {name: round(value / 2**20) for name, value in peaks.items()}
    return row


def main() -> None:
    """Measure both models with both allocators, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=["gcn", "sage"])
    parser.add_argument("--allocator", choices=["default", "kept"], default="default")
    args = parser.parse_args()
    if args.model:
        print(json.dumps(measure_model(args)))
        return
    rows = []
    for model in ("sage", "gcn"):
        for allocator in ("default", "kept") if args.device == "cpu" else ("default",):
            command = [sys.executable, "-m", "benchmarks.epoch", "--model", model]
            for name in ("device", "scale", "repeats", "threads"):
                command += [f"--{name}", str(getattr(args, name))]
            done = subprocess.run(
                [*command, "--allocator", allocator], check=True, capture_output=True, text=True
            )
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            print(
                f"{model:5} {allocator:8} siafu {row['siafu']['median_ms']:.0f} ms, "
                f"PyG {row['pyg']['median_ms']:.0f} ms ({row['times_faster_than_pyg']} x), "
                f"{row['times_the_floor']} x the floor, peak MB {row.get('peak_mb', '-')}"
            )
            if args.json:
                append_json(args.json, row)
    print(json.dumps({"benchmark": "epoch", "rows": rows}))


if __name__ == "__main__":
    main()
