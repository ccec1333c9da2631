"""What does an attention layer cost without edge tensors, there and back, beside PyG's?

Run: python -m benchmarks.attention [--kind gat|gatv2|dot] [--json FILE] [--device cpu|cuda]

Both sides share the weights, the seeded power-law graph and x, and take turns in one process for
each allocator. A layer is the projections, the attention and every gradient, x's included; PyG's
are GATConv, GATv2Conv and TransformerConv. Reddit's size is 233 k nodes and 114 M edges,
products' 2.4 M and 124 M; the seeded graphs have a little fewer edges, since degrees are capped.

Shapes: N nodes, E edges, H heads, D width of a head.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from benchmarks.measure import Side, append_json, machine, peak_bytes, take_turns, time_once
from benchmarks.spmm import ALLOCATORS, SHAPES, _free_bytes, power_law
from siafu.ops import (
    CSR,
    Attention,
    DotProduct,
    Gat,
    GatV2,
    attend,
    attend_reference,
    set_threads,
    spare_page_faults,
)

HEADS, SLOPE = 4, 0.2
WIDTHS = {"cpu": (128, 32), "cuda": (256, 64)}
"""Input width and width of a head."""

GRAPHS = {
    "cpu": ("arxiv-like", "reddit-like/5"),
    "cuda": ("arxiv-like", "reddit-like/5", "reddit-like", "products-like"),
}
PYG_COPIES = {"gat": 4.5, "gatv2": 6.0, "dot": 8.0}
"""Tensors of E x H x D that PyG may hold at its peak: 4.1 to 4.3 were seen for GATConv."""

ROWS_READ = {"gat": 3, "gatv2": 4, "dot": 6}
"""Rows of H x D that our kernels gather for an edge, there and back."""

COPY_BYTES = 1 << 32

Operands = tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]


class Layer:
    """One attention layer and its input, seen by both sides."""

    def __init__(self, name: str, csr: CSR, in_width: int, width: int) -> None:
        torch.manual_seed(0)
        self.name, self.csr, self.width = name, csr, width
        self.kind: Attention
        plain: dict[str, Any] = {"heads": HEADS, "bias": False}
        if name == "gat":
            self.kind = Gat(SLOPE)
            self.conv = GATConv(in_width, width, add_self_loops=False, **plain)
        elif name == "gatv2":
            self.kind = GatV2(SLOPE)
            self.conv = GATv2Conv(in_width, width, add_self_loops=False, **plain)
        else:
            self.kind = DotProduct(width**-0.5)
            self.conv = TransformerConv(in_width, width, root_weight=False, **plain)
        self.conv.to(csr.device)
        self.x_ND = torch.randn(csr.num_cols, in_width).to(csr.device).requires_grad_()
        self.grad = torch.randn(csr.num_rows, HEADS * width).to(csr.device)
        self.edge_index = torch.empty(2, 0, dtype=torch.int64)

    def operands(self) -> Operands:
        """Return what attention reads, projected from x."""
        conv, x_ND = self.conv, self.x_ND
        if self.name == "gat":
            z_NHD = self._heads(conv.lin)
            # <att, W x> = (W^T att) x: two numbers a head, straight from x
            weight_HDI = conv.lin.weight.view(HEADS, self.width, -1)
            halves = [
                torch.einsum("hdi,hd->hi", weight_HDI, a[0]) for a in (conv.att_src, conv.att_dst)
            ]
            left_NH, right_NH = functional.linear(x_ND, torch.cat(halves)).split(HEADS, dim=1)
            return (z_NHD, left_NH), (right_NH,), ()
        if self.name == "gatv2":
            return (self._heads(conv.lin_l),), (self._heads(conv.lin_r),), (conv.att[0],)
        return (
            (self._heads(conv.lin_key), self._heads(conv.lin_value)),
            (self._heads(conv.lin_query),),
            (),
        )

    def ours(self) -> list[Tensor]:
        """Return the output and every gradient."""
        return self._backward(attend(self.kind, self.csr, *self.operands()).flatten(1))

    def pyg(self) -> list[Tensor]:
        """Return the output and every gradient."""
        return self._backward(self.conv(self.x_ND, self.edge_index))

    def names(self) -> list[str]:
        """Return what the results of both sides are."""
        return ["out", "x", *self._parameters()]

    def _heads(self, linear: Callable[[Tensor], Tensor]) -> Tensor:
        return linear(self.x_ND).view(len(self.x_ND), HEADS, self.width)

    def _parameters(self) -> dict[str, Tensor]:
        # TransformerConv makes a map of the node itself even when told not to use one
        named = self.conv.named_parameters()
        return {name: value for name, value in named if not name.startswith("lin_skip")}

    def _backward(self, out: Tensor) -> list[Tensor]:
        wanted = [self.x_ND, *self._parameters().values()]
        return [out.detach(), *torch.autograd.grad(out, wanted, self.grad)]


def sides_of(layer: Layer) -> dict[str, Side]:
    """Return the contestants that fit into memory, ours first."""
    sides: dict[str, Side] = {"ours": layer.ours}
    csr = layer.csr
    need_bytes = PYG_COPIES[layer.name] * csr.num_edges * layer.grad.size(1) * 4
    # a neighbour who allocates at the same time must not be pushed out of memory
    if need_bytes < 0.9 * _free_bytes(csr.device):
        layer.edge_index = torch.stack([csr.index.long(), csr.rows()])
        sides["pyg"] = layer.pyg
    return sides


def gate(layer: Layer, sides: dict[str, Side]) -> None:
    """Raise unless both sides agree: no time is reported for a wrong answer."""
    got, csr = layer.ours(), layer.csr
    with torch.no_grad():
        sources, rows, shared = layer.operands()
    for row in np.random.default_rng(1).integers(0, csr.num_rows, 32).tolist():
        lo, hi = csr.indptr[row : row + 2].tolist()
        one = CSR(torch.tensor([0, hi - lo], device=csr.device), csr.index[lo:hi], csr.num_cols)
        own = tuple(t[row : row + 1] for t in rows)
        want = attend_reference(layer.kind, one, sources, own, shared)
        torch.testing.assert_close(got[0][row], want.flatten(), rtol=1e-3, atol=1e-4)
    if "pyg" in sides:
        for name, mine, other in zip(layer.names(), got, layer.pyg(), strict=True):
            # float32 sums over every edge, in the order each side likes
            bound = 1e-3 * float(other.abs().max())
            torch.testing.assert_close(
                mine, other, rtol=1e-3, atol=bound, msg=partial("{}: {}".format, name)
            )


def copy_speed() -> float:
    """Return the bytes a second that the card reads and writes while it copies."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / min(time_once(lambda: target.copy_(source), "cuda") for _ in range(5))


def kernel_speed(layer: Layer, repeats: int) -> dict[str, float]:
    """Return the time of attention alone, and the speed at which its rows are gathered."""
    operands = [tuple(t.detach().requires_grad_() for t in group) for group in layer.operands()]
    flat = [t for group in operands for t in group]
    grad = layer.grad.view(-1, HEADS, layer.width)

    def step() -> object:
        return torch.autograd.grad(attend(layer.kind, layer.csr, *operands), flat, grad)

    spread = take_turns({"alone": step}, repeats=repeats, device="cuda")["alone"]
    gathered = ROWS_READ[layer.name] * layer.csr.num_edges * layer.grad.size(1) * 4
    return {
        "attention alone median_ms": round(spread.median * 1e3, 3),
        "gathered gb_per_s": round(gathered / spread.median / 1e9),
        "copy gb_per_s": round(copy_speed() / 1e9),
    }


def measure_graph(args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one graph with one allocator."""
    if args.allocator == "kept" and not spare_page_faults():
        raise SystemExit("the allocator cannot be set: this is not glibc")
    set_threads(args.threads)
    in_width, width = WIDTHS[args.device]
    shape = {**SHAPES["cuda"], **SHAPES["cpu"]}[args.graph]
    csr = power_law(replace(shape, width=in_width), args.scale).to(args.device)
    csr.transpose()  # once a graph, not once a step
    layer = Layer(args.kind, csr, in_width, width)
    sides = sides_of(layer)
    gate(layer, sides)
    row: dict[str, Any] = {
        "kind": args.kind,
        "graph": args.graph,
        "nodes": csr.num_rows,
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
    return row | (kernel_speed(layer, args.repeats) if args.device == "cuda" else {})


def _in_own_process(args: argparse.Namespace, graph: str, allocator: str) -> dict[str, Any]:
    """Return one row; allocator settings and peaks must not leak from graph to graph."""
    command = [sys.executable, "-m", "benchmarks.attention", "--graph", graph]
    command += ["--allocator", allocator]
    for name in ("kind", "device", "scale", "repeats", "threads"):
        command += [f"--{name}", str(getattr(args, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['kind']}, {row['graph']}, {row['edges']:,} edges, {row['layer']}, "
        f"{row['allocator']} malloc"
    )
    for name in ("ours", "pyg"):
        if f"{name} median_ms" not in row:
            print(f"  {name:<6} does not fit into memory")
            continue
        ratio = f"{row[f'{name} / ours']:.2f} x ours" if name != "ours" else ""
        peak = f"{row[f'{name} peak_mb']} MB" if f"{name} peak_mb" in row else ""
        spread = f"{row[f'{name} median_ms']:9.1f} ms +- {row[f'{name} iqr_ms']:.1f}"
        print(f"  {name:<6}{spread:<24} {ratio:<14} {peak}", flush=True)
    if "copy gb_per_s" in row:
        print(
            f"  attention alone {row['attention alone median_ms']:.1f} ms, rows gathered at "
            f"{row['gathered gb_per_s']} GB/s; the card copies at {row['copy gb_per_s']}",
            flush=True,
        )


def main() -> None:
    """Measure every graph with every allocator, the smallest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=sorted(ROWS_READ), default="gat")
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=sorted(GRAPHS), default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="of nodes and edges")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--graph", help="measure this one in this process")
    parser.add_argument("--graphs", nargs="+", help="measure these, each in a process of its own")
    parser.add_argument("--allocator", choices=("default", "kept"), default="default")
    args = parser.parse_args()
    if args.graph:
        print(json.dumps(measure_graph(args)))
        return
    rows = []
    for graph in args.graphs or GRAPHS[args.device]:
        for allocator in ALLOCATORS[args.device]:
            rows.append(_in_own_process(args, graph, allocator))
            _print_row(rows[-1])
            if args.json:
                append_json(args.json, {"benchmark": "attention", **rows[-1]})
    print(json.dumps({"benchmark": "attention", "device": args.device, "rows": rows}))


if __name__ == "__main__":
    main()
