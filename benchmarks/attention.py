"""What does a GAT layer cost without edge tensors, forward and backward, beside PyG's GATConv?

Run: python -m benchmarks.attention [--json FILE] [--device cpu|cuda] [--scale 1.0] [--repeats 7]

Both sides share the weights, the seeded power-law graph and x, and take turns in one process for
each allocator. A layer is the projection, the attention and every gradient, x's included.

Shapes: N vertices, E edges, H heads, D width of a head.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import GATConv

from benchmarks.measure import Side, append_json, machine, peak_bytes, take_turns
from benchmarks.spmm import ALLOCATORS, SHAPES, _free_bytes, power_law
from siafu.ops import CSR, gat_attention, gat_reference, set_threads, spare_page_faults

HEADS, SLOPE = 4, 0.2
WIDTHS = {"cpu": (128, 32), "cuda": (256, 64)}
"""Input width and width of a head."""

GRAPHS = {
    "cpu": ("arxiv-like", "reddit-like/5"),
    "cuda": ("arxiv-like", "reddit-like/5", "reddit-like"),
}
PYG_COPIES = 4.5
"""Tensors of E x H x D that PyG holds at its peak: 4.1 to 4.3 were seen on an H200."""


class Layer:
    """One GAT layer and its input, seen by both sides."""

    def __init__(self, csr: CSR, in_width: int, width: int) -> None:
        torch.manual_seed(0)
        self.csr = csr
        self.conv = GATConv(in_width, width, HEADS, add_self_loops=False, bias=False).to(csr.device)
        self.x_ND = torch.randn(csr.num_cols, in_width).to(csr.device).requires_grad_()
        self.grad = torch.randn(csr.num_rows, HEADS * width).to(csr.device)
        self.edge_index = torch.empty(2, 0, dtype=torch.int64)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return z_NHD and the two halves of the scores."""
        z_NHD = functional.linear(self.x_ND, self.conv.lin.weight).view(len(self.x_ND), HEADS, -1)
        left_NH = torch.einsum("nhd,hd->nh", z_NHD, self.conv.att_src[0])
        return z_NHD, left_NH, torch.einsum("nhd,hd->nh", z_NHD, self.conv.att_dst[0])

    def ours(self) -> list[Tensor]:
        """Return the output and every gradient."""
        return self._backward(gat_attention(self.csr, *self.inputs(), slope=SLOPE).flatten(1))

    def pyg(self) -> list[Tensor]:
        """Return the output and every gradient."""
        return self._backward(self.conv(self.x_ND, self.edge_index))

    def _backward(self, out: Tensor) -> list[Tensor]:
        wanted = [self.x_ND, self.conv.lin.weight, self.conv.att_src, self.conv.att_dst]
        return [out.detach(), *torch.autograd.grad(out, wanted, self.grad)]


def sides_of(layer: Layer) -> dict[str, Side]:
    """Return the contestants that fit into memory, ours first."""
    sides: dict[str, Side] = {"ours": layer.ours}
    csr = layer.csr
    # a neighbour who allocates at the same time must not be pushed out of memory
    if PYG_COPIES * csr.num_edges * layer.grad.size(1) * 4 < 0.9 * _free_bytes(csr.device):
        layer.edge_index = torch.stack([csr.index.long(), csr.rows()])
        sides["pyg"] = layer.pyg
    return sides


def gate(layer: Layer, sides: dict[str, Side]) -> None:
    """Raise unless both sides agree: no time is reported for a wrong answer."""
    got, csr = layer.ours(), layer.csr
    with torch.no_grad():
        z_NHD, left_NH, right_NH = layer.inputs()
    for row in np.random.default_rng(1).integers(0, csr.num_rows, 32).tolist():
        lo, hi = csr.indptr[row : row + 2].tolist()
        one = CSR(torch.tensor([0, hi - lo], device=csr.device), csr.index[lo:hi], csr.num_cols)
        want = gat_reference(one, z_NHD, left_NH, right_NH[row : row + 1], slope=SLOPE)
        torch.testing.assert_close(got[0][row], want.flatten(), rtol=1e-3, atol=1e-4)
    if "pyg" in sides:
        for name, mine, other in zip(
            ("out", "x", "weight", "att_src", "att_dst"), got, layer.pyg(), strict=True
        ):
            # float32 sums over every edge, in the order each side likes
            bound = 1e-3 * float(other.abs().max())
            torch.testing.assert_close(
                mine, other, rtol=1e-3, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
            )


def measure_graph(args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one graph with one allocator."""
    if args.allocator == "kept" and not spare_page_faults():
        raise SystemExit("the allocator cannot be set: this is not glibc")
    set_threads(args.threads)
    in_width, width = WIDTHS[args.device]
    shape = {**SHAPES["cuda"], **SHAPES["cpu"]}[args.graph]
    csr = power_law(replace(shape, width=in_width), args.scale).to(args.device)
    csr.transpose()  # once a graph, not once a step
    layer = Layer(csr, in_width, width)
    sides = sides_of(layer)
    gate(layer, sides)
    row: dict[str, Any] = {
        "graph": args.graph,
        "vertices": csr.num_rows,
        "edges": csr.num_edges,
        "layer": f"{in_width} -> {HEADS} x {width}",
        "allocator": args.allocator,
        **machine(args.device),
    }
    if args.allocator == "default":
        for name, side in sides.items():
            row[f"{name} peak_mb"] = round(peak_bytes(side, args.device) / 2**20)
    spreads = take_turns(sides, repeats=args.repeats, device=args.device)
    for name, spread in spreads.items():
        row.update({f"{name} {unit}": value for unit, value in spread.row().items()})
        if name != "ours":
            row[f"{name} / ours"] = round(spread.median / spreads["ours"].median, 3)
    return row


def _in_own_process(args: argparse.Namespace, graph: str, allocator: str) -> dict[str, Any]:
    """Return one row; allocator settings and peaks must not leak from graph to graph."""
    command = [sys.executable, "-m", "benchmarks.attention", "--graph", graph]
    command += ["--allocator", allocator]
    for name in ("device", "scale", "repeats", "threads"):
        command += [f"--{name}", str(getattr(args, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _print_row(row: dict[str, Any]) -> None:
    print(f"{row['graph']}, {row['edges']:,} edges, {row['layer']}, {row['allocator']} malloc")
    for name in ("ours", "pyg"):
        if f"{name} median_ms" not in row:
            print(f"  {name:<6} does not fit into memory")
            continue
        ratio = f"{row[f'{name} / ours']:.2f} x ours" if name != "ours" else ""
        peak = f"{row[f'{name} peak_mb']} MB" if f"{name} peak_mb" in row else ""
        spread = f"{row[f'{name} median_ms']:9.1f} ms +- {row[f'{name} iqr_ms']:.1f}"
        print(f"  {name:<6}{spread:<24} {ratio:<14} {peak}", flush=True)


def main() -> None:
    """Measure every graph with every allocator, the smallest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=sorted(GRAPHS), default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="of vertices and edges")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--graph", help="measure this one in this process")
    parser.add_argument("--allocator", choices=("default", "kept"), default="default")
    args = parser.parse_args()
    if args.graph:
        print(json.dumps(measure_graph(args)))
        return
    rows = []
    for graph in GRAPHS[args.device]:
        for allocator in ALLOCATORS[args.device]:
            rows.append(_in_own_process(args, graph, allocator))
            _print_row(rows[-1])
            if args.json:
                append_json(args.json, {"benchmark": "attention", **rows[-1]})
    print(json.dumps({"benchmark": "attention", "device": args.device, "rows": rows}))


if __name__ == "__main__":
    main()
