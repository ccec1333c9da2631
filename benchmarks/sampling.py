"""How many minibatches a second does one thread sample, beside PyG's NeighborLoader?

Run: python -m benchmarks.sampling [--json FILE] [--quick] [--repeats 15]

A minibatch is all hops without replacement, compact numbers and the CSR of the sub-graph, without
features. NeighborLoader needs pyg-lib or torch-sparse; without either it is left out, and said so.
Sides take turns on the same seeds. CPU time stands beside wall time: on a shared machine it is the
steadier, and rates are by it. The floor reads the offsets of every visited vertex and the source of
every sampled edge, known beforehand.

Shapes: N vertices, E edges, Q vertices of a hop, S sampled edges of it.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import typing as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

from benchmarks.measure import Spread, append_json, machine
from benchmarks.spmm import SHAPES, power_law
from siafu.ops import (
    CSR,
    DrawKey,
    Numbering,
    sample_positions,
    sample_reference,
    set_threads,
    spare_page_faults,
)

FANOUTS = (15, 10, 5)
BATCH_SIZE = 1000
GRAPHS = {False: "reddit-like/5", True: "arxiv-like"}
"""By whether it has to be quick."""

Sampler = Callable[..., tuple[Tensor, Tensor]]


class Minibatch(NamedTuple):
    """A sub-graph: its vertices (seeds, hop 1, hop 2 ...), and their sampled in-edges."""

    vertices: Tensor
    indptr: Tensor
    sources: Tensor
    positions: list[Tensor]
    """The edges' numbers in the whole graph, by hop; the floor reads them again."""


def sample_minibatch(csr: CSR, seeds: Tensor, batch: int, sampler: Sampler) -> Minibatch:
    """Return our minibatch number `batch`."""
    numbering = Numbering(64 * len(seeds))
    _, frontier_Q = numbering.add(seeds)
    counts, numbers, positions = [torch.zeros(1, dtype=torch.int64)], [], []
    for hop, fanout in enumerate(FANOUTS):
        key = DrawKey(seed=0, epoch=batch, purpose=hop)
        one_Q = torch.zeros_like(frontier_Q)
        counts_Q, positions_S = sampler(csr.indptr, frontier_Q, frontier_Q, one_Q, [key], fanout)
        numbers_S, frontier_Q = numbering.add(csr.index.index_select(0, positions_S))
        counts.append(counts_Q)
        numbers.append(numbers_S)
        positions.append(positions_S)
    indptr = torch.cat(counts).cumsum(0)
    return Minibatch(numbering.keys, indptr, torch.cat(numbers), positions)


def gate(csr: CSR, batches: list[Tensor]) -> None:
    """Raise unless minibatches are what the definition says, and made of the graph's edges."""
    got = sample_minibatch(csr, batches[0][:20], 0, sample_positions)
    want = sample_minibatch(csr, batches[0][:20], 0, sample_reference)
    for name in ("vertices", "indptr", "sources"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    whole = sample_minibatch(csr, batches[0], 0, sample_positions)
    edges = torch.cat(whole.positions)
    assert torch.equal(whole.vertices[whole.sources.long()], csr.index[edges].long())
    rows = torch.searchsorted(csr.indptr, edges, right=True) - 1
    sampled = whole.indptr.diff()
    assert torch.equal(rows, whole.vertices[: len(sampled)].repeat_interleave(sampled))
    assert len(torch.unique(edges)) == len(edges)


def pyg_batches(csr: CSR, seeds: Tensor) -> Iterator[Data]:
    """Yield PyG's minibatches of the same graph and seeds."""
    row_E = torch.arange(csr.num_rows).repeat_interleave(csr.degree())
    data = Data(edge_index=torch.stack([csr.index.long(), row_E]), num_nodes=csr.num_rows)
    loader = NeighborLoader(
        data, num_neighbors=list(FANOUTS), batch_size=BATCH_SIZE, input_nodes=seeds
    )
    del data, row_E
    while True:
        yield from loader


def floor_of(csr: CSR, batches: list[Tensor]) -> Callable[[int], int]:
    """Return the reads nobody can avoid, of the minibatches whose edges are known."""
    known = [
        sample_minibatch(csr, seeds, n, sample_positions) for n, seeds in enumerate(batches[:4])
    ]

    def read(n: int) -> int:
        minibatch = known[n % len(known)]
        visited = minibatch.vertices[: len(minibatch.indptr) - 1]
        csr.indptr.index_select(0, visited)
        csr.indptr.index_select(0, visited + 1)
        for positions_S in minibatch.positions:
            csr.index.index_select(0, positions_S)
        return int(minibatch.indptr[-1])

    return read


def measure(sides: dict[str, Callable[[int], int]], repeats: int) -> dict[str, Any]:
    """Return each side's wall and CPU time of a minibatch, and the edges it sampled."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    edges: dict[str, list[int]] = {name: [] for name in sides}
    for n in range(-2, repeats):
        for name, side in sides.items():
            began = time.perf_counter(), time.process_time()
            sampled = side(max(n, 0))
            if n >= 0:
                wall[name].append(time.perf_counter() - began[0])
                cpu[name].append(time.process_time() - began[1])
                edges[name].append(sampled)
    row: dict[str, Any] = {}
    for name in sides:
        spread, cpu_spread = Spread.of(wall[name]), Spread.of(cpu[name])
        row.update({f"{name} {unit}": value for unit, value in spread.row().items()})
        row[f"{name} cpu_ms"] = round(cpu_spread.median * 1e3, 3)
        row[f"{name} cpu_iqr_ms"] = round(cpu_spread.iqr * 1e3, 3)
        row[f"{name} edges"] = round(statistics.mean(edges[name]))
        row[f"{name} batches_per_cpu_s"] = round(1 / cpu_spread.median, 2)
        row[f"{name} edges_per_cpu_s"] = round(statistics.mean(edges[name]) / cpu_spread.median)
    for name in sides.keys() - {"ours"}:
        row[f"{name} / ours"] = round(row[f"{name} median_ms"] / row["ours median_ms"], 3)
        row[f"{name} / ours, cpu"] = round(row[f"{name} cpu_ms"] / row["ours cpu_ms"], 3)
    return row


def measure_graph(name: str, repeats: int) -> dict[str, Any]:
    """Return the row of one graph."""
    csr = power_law(SHAPES["cpu"][name], 1.0)
    order = torch.randperm(csr.num_rows, generator=torch.Generator().manual_seed(0))
    batches = list(order.split(BATCH_SIZE)[:-1])
    gate(csr, batches)

    def ours(n: int) -> int:
        seeds = batches[n % len(batches)]
        return len(sample_minibatch(csr, seeds, n, sample_positions).sources)

    sides = {"ours": ours, "floor": floor_of(csr, batches)}
    peer = _pyg_sampler()
    if peer is not None:
        theirs = pyg_batches(csr, order)
        sides["pyg"] = lambda _: int(next(theirs).num_edges)
    row = {"graph": name, "vertices": csr.num_rows, "edges": csr.num_edges, "peer": peer}
    row |= {"fanouts": FANOUTS, "batch_size": BATCH_SIZE, **machine(), **measure(sides, repeats)}
    if peer is not None:
        # both draw min(fanout, degree) distinct edges of every vertex; only the draws differ
        assert abs(row["pyg edges"] / row["ours edges"] - 1) < 0.02, "the sides differ in work"
    return row


def _pyg_sampler() -> str | None:
    """Return what NeighborLoader samples with, pyg-lib if both are there."""
    if pyg.WITH_PYG_LIB:
        return f"pyg-lib {pyg.pyg_lib.__version__}"
    if pyg.WITH_TORCH_SPARSE:
        return f"torch-sparse {pyg.torch_sparse.__version__}"
    return None


def _print_row(row: dict[str, Any]) -> None:
    print(f"{row['graph']}, {row['edges']:,} edges, PyG samples with {row['peer']}")
    for name in ("floor", "ours", "pyg"):
        if f"{name} median_ms" not in row:
            print(f"  {name:<6} not installed: needs pyg-lib or torch-sparse")
            continue
        ratio = f"{row[f'{name} / ours, cpu']:.2f} x ours" if name != "ours" else ""
        print(
            f"  {name:<6}{row[f'{name} median_ms']:9.1f} ms +- {row[f'{name} iqr_ms']:<8.1f}"
            f"cpu {row[f'{name} cpu_ms']:7.1f} ms +- {row[f'{name} cpu_iqr_ms']:<6.1f}"
            f"{row[f'{name} batches_per_cpu_s']:7.1f} batches/s "
            f"{row[f'{name} edges_per_cpu_s'] / 1e6:6.1f} M edges/s  {ratio}",
            flush=True,
        )


def main() -> None:
    """Measure one graph on one thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append the row to this file")
    parser.add_argument("--quick", action="store_true", help="a graph of 2 M edges, not 22 M")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*pyg-lib.*")
    spare_page_faults()
    set_threads(1)
    row = measure_graph(GRAPHS[args.quick], args.repeats)
    _print_row(row)
    if args.json:
        append_json(args.json, {"benchmark": "sampling", **row})
    print(json.dumps({"benchmark": "sampling", "rows": [row]}))


if __name__ == "__main__":
    main()
