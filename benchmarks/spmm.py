"""How far is the neighbour sum from the speed at which rows can be gathered, and from its peers?

Run: python -m benchmarks.spmm [--json FILE] [--device cpu|cuda] [--scale 1.0] [--repeats 7]

Every side multiplies the same seeded power-law graph with the same x, in turns, in one process for
each allocator: glibc's default, and `siafu.ops.spare_page_faults` for all sides alike.

Shapes: N nodes, E edges, D width.
"""

import argparse
import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import scatter

from benchmarks.measure import Side, append_json, machine, peak_bytes, take_turns
from siafu.memory import free_bytes
from siafu.ops import CSR, csr_sum_reference, neighbour_sum, set_threads, spare_page_faults
from siafu.ops.numba_jit import kernel, line_width, prefetch
from siafu.ops.threads import run_chunks

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a known graph; `busiest` is the largest degree of the real one."""

    nodes: int
    edges: int
    width: int
    busiest: int


SHAPES = {
    "cpu": {
        "arxiv-like": Shape(170_000, 2_300_000, 128, 13_000),
        "reddit-like/5": Shape(233_000, 23_000_000, 128, 20_000),
        "products-like/2": Shape(2_400_000, 60_000_000, 64, 17_000),
    },
    "cuda": {
        "arxiv-like": Shape(170_000, 2_300_000, 128, 13_000),
        "reddit-like": Shape(233_000, 114_000_000, 256, 20_000),
        "products-like": Shape(2_400_000, 124_000_000, 128, 17_000),
    },
}
ALLOCATORS = {"cpu": ("default", "kept"), "cuda": ("default",)}
CHUNK_EDGES = 1 << 14


def power_law(shape: Shape, scale: float, seed: int = 0) -> CSR:
    """Return a graph whose degrees follow a power law, as do the sources its edges read."""
    draw = np.random.default_rng(seed)
    nodes, edges = max(2, int(shape.nodes * scale)), max(2, int(shape.edges * scale))
    degree = (1 - draw.random(nodes)) ** -0.7
    degree *= edges / degree.sum()
    count = np.minimum(degree, shape.busiest).round().astype(np.int64)
    indptr = np.concatenate([[0], count.cumsum()])
    row_E = np.repeat(np.arange(nodes, dtype=np.int32), count)
    index = row_E[draw.integers(0, len(row_E), len(row_E), dtype=np.int64)]
    return CSR(torch.from_numpy(indptr), torch.from_numpy(index), nodes)


def sides_of(csr: CSR, x_ND: Tensor) -> dict[str, Side]:
    """Return the contestants that fit into memory, ours first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse tensors a beta
        ones_E = torch.ones(csr.num_edges, device=csr.device)
        # int32, as MKL and cuSPARSE want it; int64 would be converted at every call
        size = (csr.num_rows, csr.num_cols)
        matrix = torch.sparse_csr_tensor(csr.indptr.int(), csr.index, ones_E, size)
    sides: dict[str, Side] = {
        "ours": partial(neighbour_sum, csr, x_ND),
        "torch.sparse": partial(torch.mm, matrix, x_ND),
    }
    # a neighbour who allocates at the same time must not be pushed out of memory
    if 2.5 * csr.num_edges * x_ND.size(1) * x_ND.element_size() < _free_bytes(csr.device):
        rows = torch.arange(csr.num_rows, device=csr.device)
        source_E, row_E = csr.index.long(), torch.repeat_interleave(rows, csr.degree())

        def gather_scatter() -> Tensor:
            return scatter(x_ND.index_select(0, source_E), row_E, 0, csr.num_rows, "sum")

        sides["pyg"] = gather_scatter
    return sides


def gate(csr: CSR, x_ND: Tensor, sides: dict[str, Side]) -> None:
    """Raise unless every side gives the same sums: no time is reported for a wrong answer."""
    want = neighbour_sum(csr, x_ND)
    for row in np.random.default_rng(1).integers(0, csr.num_rows, 32).tolist():
        lo, hi = csr.indptr[row : row + 2].tolist()
        one = CSR(torch.tensor([0, hi - lo], device=csr.device), csr.index[lo:hi], csr.num_cols)
        exact = csr_sum_reference(one, x_ND.double() if csr.num_cols < 10**6 else x_ND)[0]
        torch.testing.assert_close(want[row], exact.float(), rtol=1e-4, atol=1e-2)
    for name, side in sides.items():
        # float32 sums of up to 20,000 terms, in the order each side likes
        torch.testing.assert_close(
            side(), want, rtol=1e-3, atol=1e-2, msg=partial("{}: {}".format, name)
        )


def floor_of(csr: CSR, x_ND: Tensor) -> Side:
    """Return the work nobody can avoid: read the row of every edge, keep next to nothing."""
    if csr.device.type == "cuda":
        chunks = triton.cdiv(csr.num_edges, 1024)
        out = x_ND.new_empty(chunks, x_ND.size(1))
        return lambda: _gather_cuda[(chunks,)](
            csr.index, x_ND, out, csr.num_edges, D=x_ND.size(1), num_warps=2
        )
    index, x = csr.index.numpy(), x_ND.numpy()
    tiles = (0,) * (x.shape[1] // 16)
    bounds = [*range(0, len(index), CHUNK_EDGES), len(index)]
    return lambda: run_chunks(lambda lo, hi: _gather(index, x, lo, hi, tiles), bounds)


@kernel
def _gather(index: Any, x: Any, lo: int, hi: int, tiles: Any) -> Any:
    width, last = len(tiles) * 16, len(index) - 1
    total = np.zeros(width, x.dtype)
    for e in range(lo, hi - 3, 4):
        for step in range(4):
            soon = index[min(e + 8 + step, last)]
            for f in range(0, width, line_width(x)):
                prefetch(x, soon, f)
        j0, j1 = np.uint64(index[e]), np.uint64(index[e + 1])
        j2, j3 = np.uint64(index[e + 2]), np.uint64(index[e + 3])
        for f in range(width):
            total[f] += (x[j0, f] + x[j1, f]) + (x[j2, f] + x[j3, f])
    return total[0]


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _gather_cuda(
        index: tl.tensor, x: tl.tensor, out: tl.tensor, num_edges: tl.tensor, D: tl.constexpr
    ) -> None:
        column = tl.arange(0, D)
        total = tl.zeros([8, D], dtype=tl.float32)
        for first in range(0, 1024, 8):
            edge = tl.program_id(0).to(tl.int64) * 1024 + first + tl.arange(0, 8)
            j = tl.load(index + edge, mask=edge < num_edges, other=0).to(tl.int64)
            total += tl.load(x + j[:, None] * D + column[None, :])
        tl.store(out + tl.program_id(0) * D + column, tl.sum(total, axis=0))


def measure_graph(args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one graph with one allocator."""
    if args.allocator == "kept" and not spare_page_faults():
        raise SystemExit("the allocator cannot be set: this is not glibc")
    set_threads(args.threads)
    shape = SHAPES[args.device][args.graph]
    csr = power_law(shape, args.scale).to(args.device)
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(csr.num_cols, shape.width, generator=generator).to(args.device)
    sides = sides_of(csr, x_ND)
    gate(csr, x_ND, sides)
    row: dict[str, Any] = {
        "graph": args.graph,
        "nodes": csr.num_rows,
        "edges": csr.num_edges,
        "width": shape.width,
        "allocator": args.allocator,
        **machine(args.device),
    }
    if args.allocator == "default":
        for name, side in sides.items():
            row[f"{name} peak_mb"] = round(peak_bytes(side, args.device) / 2**20)
    timed = {"floor": floor_of(csr, x_ND), **sides}
    spreads = take_turns(timed, repeats=args.repeats, device=args.device)
    for name, spread in spreads.items():
        row.update({f"{name} {unit}": value for unit, value in spread.row().items()})
        if name != "ours":
            row[f"{name} / ours"] = round(spread.median / spreads["ours"].median, 3)
    return row


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return free_bytes()


def _in_own_process(args: argparse.Namespace, graph: str, allocator: str) -> dict[str, Any]:
    """Return one row; allocator settings and peaks must not leak from graph to graph."""
    command = [sys.executable, "-m", "benchmarks.spmm", "--graph", graph, "--allocator", allocator]
    for name in ("device", "scale", "repeats", "threads"):
        command += [f"--{name}", str(getattr(args, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['graph']}, {row['edges']:,} edges, width {row['width']}, {row['allocator']} malloc"
    )
    for name in ("floor", "ours", "torch.sparse", "pyg"):
        if f"{name} median_ms" not in row:
            print(f"  {name:<13} does not fit into memory")
            continue
        ratio = f"{row[f'{name} / ours']:.2f} x ours" if name != "ours" else ""
        peak = f"{row[f'{name} peak_mb']} MB" if f"{name} peak_mb" in row else ""
        spread = f"{row[f'{name} median_ms']:9.1f} ms +- {row[f'{name} iqr_ms']:.1f}"
        print(f"  {name:<13}{spread:<24} {ratio:<14} {peak}", flush=True)


def main() -> None:
    """Measure every graph with every allocator, the smallest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=sorted(SHAPES), default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="of nodes and edges")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--graph", help="measure this one in this process")
    parser.add_argument("--allocator", choices=("default", "kept"), default="default")
    args = parser.parse_args()
    if args.graph:
        print(json.dumps(measure_graph(args)))
        return
    rows = []
    for graph in SHAPES[args.device]:
        for allocator in ALLOCATORS[args.device]:
            rows.append(_in_own_process(args, graph, allocator))
            _print_row(rows[-1])
            if args.json:
                append_json(args.json, {"benchmark": "spmm", **rows[-1]})
    print(json.dumps({"benchmark": "spmm", "device": args.device, "rows": rows}))


if __name__ == "__main__":
    main()
