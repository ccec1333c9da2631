"""How many minibatches a second does one thread sample, beside PyG's and DGL's samplers?

Run: python -m benchmarks.sampling [--json FILE] [--quick] [--repeats 15]
         [--pyg-python PYTHON] [--dgl-python PYTHON]

A minibatch is all hops without replacement, compact numbers and the CSR of the sub-graph, without
features. Peers run in the interpreters named, which need other versions of torch than ours and
don't need siafu: PyG's NeighborLoader (with pyg-lib, else torch-sparse), DGL's NeighborSampler and
its GraphBolt. Sides take turns on the same seeds. CPU time stands beside wall time: on a shared
machine it is the steadier, and rates are by it. DGL draws anew for nodes of earlier hops, so
that its minibatches have more edges: compare edges a second. The floor reads the offsets of every
visited node and the source of every sampled edge, known beforehand.

Shapes: N nodes, E edges, Q nodes of a hop, S sampled edges of it.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Spread, append_json, machine
from benchmarks.sampling_peer import whole_batches
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
KEPT_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""What `spare_page_faults` sets here, for the peers' processes."""
ANSWERS_WITHIN = 600.0
"""Seconds in which a peer has read its graph, or drawn a minibatch."""
_NO_ANSWER = "The peer did not answer; what it said is above."

Sampler = Callable[..., tuple[Tensor, Tensor]]


class Minibatch(NamedTuple):
    """A sub-graph: its nodes (seeds, hop 1, hop 2 ...), and their sampled in-edges."""

    nodes: Tensor
    indptr: Tensor
    sources: Tensor
    positions: list[Tensor]
    """The edges' numbers in the whole graph, by hop; the floor reads them again."""
    reached: list[int]
    """Nodes up to each hop."""


def sample_minibatch(
    csr: CSR, seeds: Tensor, batch: int, sampler: Sampler, fanouts: tuple[int, ...] = FANOUTS
) -> Minibatch:
    """Return our minibatch number `batch`."""
    numbering = Numbering(64 * len(seeds))
    _, frontier_Q = numbering.add(seeds)
    counts, numbers, positions = [torch.zeros(1, dtype=torch.int64)], [], []
    reached = [len(frontier_Q)]
    for hop, fanout in enumerate(fanouts):
        key = DrawKey(seed=0, epoch=batch, purpose=hop)
        one_Q = torch.zeros_like(frontier_Q)
        counts_Q, positions_S = sampler(csr.indptr, frontier_Q, frontier_Q, one_Q, [key], fanout)
        numbers_S, frontier_Q = numbering.add(csr.index.index_select(0, positions_S))
        counts.append(counts_Q)
        numbers.append(numbers_S)
        positions.append(positions_S)
        reached.append(reached[-1] + len(frontier_Q))
    indptr = torch.cat(counts).cumsum(0)
    return Minibatch(numbering.keys, indptr, torch.cat(numbers), positions, reached)


def gate(csr: CSR, batches: list[Tensor]) -> None:
    """Raise unless minibatches are what the definition says, and made of the graph's edges."""
    got = sample_minibatch(csr, batches[0][:20], 0, sample_positions)
    want = sample_minibatch(csr, batches[0][:20], 0, sample_reference)
    for name in ("nodes", "indptr", "sources"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    whole = sample_minibatch(csr, batches[0], 0, sample_positions)
    edges = torch.cat(whole.positions)
    assert torch.equal(whole.nodes[whole.sources.long()], csr.index[edges].long())
    rows = torch.searchsorted(csr.indptr, edges, right=True) - 1
    sampled = whole.indptr.diff()
    assert torch.equal(rows, whole.nodes[: len(sampled)].repeat_interleave(sampled))
    assert len(torch.unique(edges)) == len(edges)


class Turn(NamedTuple):
    """What one minibatch of one side took, and how many edges it has."""

    wall: float
    cpu: float
    edges: int


Side = Callable[[int], Turn]
"""Draws minibatch number n."""


def here(draw: Callable[[int], int]) -> Side:
    """Return a side of this process, from a function that returns the number of edges."""

    def side(n: int) -> Turn:
        began = time.perf_counter(), time.process_time()
        edges = draw(n)
        return Turn(time.perf_counter() - began[0], time.process_time() - began[1], edges)

    return side


class Peer:
    """A side in a process of another interpreter."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.told = self._answer()
        """What it said when it was ready."""
        self.name: str = self.told["peer"]

    def __call__(self, n: int) -> Turn:
        """Return the turn that the peer tells; which minibatch comes next it knows itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
        except BrokenPipeError:
            raise SystemExit(_NO_ANSWER) from None
        return Turn(**self._answer())

    def _answer(self) -> dict[str, Any]:
        answers = self._process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], ANSWERS_WITHIN)
        line = answers.readline() if ready else b""
        if not line:
            raise SystemExit(_NO_ANSWER)
        return json.loads(line)


@contextmanager
def peer_of(
    kind: str, python: Path, graph: Path, script: str = "sampling_peer.py"
) -> Iterator[Peer]:
    """Yield a peer that works on the graph on one thread, and end it."""
    command = [str(python), str(Path(__file__).with_name(script)), kind, str(graph)]
    settings = {"OMP_NUM_THREADS": "1", "DGLBACKEND": "pytorch", "PYTHONPATH": "", **KEPT_MEMORY}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, bufsize=0, env=os.environ | settings
    ) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()


def floor_of(csr: CSR, batches: list[Tensor]) -> Callable[[int], int]:
    """Return the reads nobody can avoid, of the minibatches whose edges are known."""
    known = [
        sample_minibatch(csr, seeds, n, sample_positions) for n, seeds in enumerate(batches[:4])
    ]

    def read(n: int) -> int:
        minibatch = known[n % len(known)]
        visited = minibatch.nodes[: len(minibatch.indptr) - 1]
        csr.indptr.index_select(0, visited)
        csr.indptr.index_select(0, visited + 1)
        for positions_S in minibatch.positions:
            csr.index.index_select(0, positions_S)
        return int(minibatch.indptr[-1])

    return read


def measure(sides: dict[str, Side], repeats: int) -> dict[str, Any]:
    """Return each side's wall and CPU time of a minibatch, and the edges it sampled."""
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    for n in range(-2, repeats):
        for name, side in sides.items():
            turn = side(max(n, 0))
            if n >= 0:
                turns[name].append(turn)
    row: dict[str, Any] = {}
    for name, taken in turns.items():
        spread = Spread.of([turn.wall for turn in taken])
        cpu_spread = Spread.of([turn.cpu for turn in taken])
        edges = statistics.mean(turn.edges for turn in taken)
        row.update({f"{name} {unit}": value for unit, value in spread.row().items()})
        row[f"{name} cpu_ms"] = round(cpu_spread.median * 1e3, 3)
        row[f"{name} cpu_iqr_ms"] = round(cpu_spread.iqr * 1e3, 3)
        row[f"{name} edges"] = round(edges)
        row[f"{name} batches_per_cpu_s"] = round(1 / cpu_spread.median, 2)
        row[f"{name} edges_per_cpu_s"] = round(edges / cpu_spread.median)
    for name in sides.keys() - {"ours"}:
        row[f"{name} / ours"] = round(row[f"{name} median_ms"] / row["ours median_ms"], 3)
        row[f"{name} / ours, cpu"] = round(row[f"{name} cpu_ms"] / row["ours cpu_ms"], 3)
        rate = row["ours edges_per_cpu_s"] / row[f"{name} edges_per_cpu_s"]
        row[f"ours / {name}, edges_per_cpu_s"] = round(rate, 3)
    return row


def measure_graph(name: str, repeats: int, pythons: dict[str, Path]) -> dict[str, Any]:
    """Return the row of one graph. Each peer runs in the interpreter named for it."""
    csr = power_law(SHAPES["cpu"][name], 1.0)
    order = torch.randperm(csr.num_rows, generator=torch.Generator().manual_seed(0))
    batches = whole_batches(order, BATCH_SIZE)
    gate(csr, batches)

    def ours(n: int) -> int:
        seeds = batches[n % len(batches)]
        return len(sample_minibatch(csr, seeds, n, sample_positions).sources)

    sides = {"ours": here(ours), "floor": here(floor_of(csr, batches))}
    with ExitStack() as stack:
        graph = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "graph.npz"
        arrays: dict[str, Any] = {"indptr": csr.indptr, "index": csr.index, "order": order}
        np.savez(graph, fanouts=np.array(FANOUTS), batch_size=np.array(BATCH_SIZE), **arrays)
        peers = {
            kind: stack.enter_context(peer_of(kind, python, graph))
            for kind, python in pythons.items()
        }
        measured = measure(sides | peers, repeats)
    row: dict[str, Any] = {"graph": name, "nodes": csr.num_rows, "edges": csr.num_edges}
    row |= {"peers": {kind: peer.name for kind, peer in peers.items()}}
    row |= {"fanouts": FANOUTS, "batch_size": BATCH_SIZE, **machine(), **measured}
    if "pyg" in peers:
        # both draw min(fanout, degree) distinct edges of every node; only the draws differ
        assert abs(row["pyg edges"] / row["ours edges"] - 1) < 0.02, "the sides differ in work"
    return row


def _print_row(row: dict[str, Any]) -> None:
    print(f"{row['graph']}, {row['edges']:,} edges")
    for name in ("floor", "ours", *row["peers"]):
        beside = ""
        if name in row["peers"]:
            times = row[f"ours / {name}, edges_per_cpu_s"]
            beside = f"ours is {times:.2f} x {row['peers'][name]}"
        print(
            f"  {name:<10}{row[f'{name} median_ms']:9.1f} ms +- {row[f'{name} iqr_ms']:<8.1f}"
            f"cpu {row[f'{name} cpu_ms']:7.1f} ms +- {row[f'{name} cpu_iqr_ms']:<6.1f}"
            f"{row[f'{name} batches_per_cpu_s']:7.1f} batches/s "
            f"{row[f'{name} edges_per_cpu_s'] / 1e6:6.1f} M edges/s  {beside}",
            flush=True,
        )


def main() -> None:
    """Measure one graph on one thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append the row to this file")
    parser.add_argument("--quick", action="store_true", help="a graph of 2 M edges, not 22 M")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--pyg-python", type=Path, help="interpreter with pyg-lib or torch-sparse")
    parser.add_argument("--dgl-python", type=Path, help="interpreter with DGL 2")
    args = parser.parse_args()
    named = {"pyg": args.pyg_python, "dgl": args.dgl_python, "graphbolt": args.dgl_python}
    spare_page_faults()
    set_threads(1)
    pythons = {kind: python for kind, python in named.items() if python is not None}
    row = measure_graph(GRAPHS[args.quick], args.repeats, pythons)
    _print_row(row)
    if args.json:
        append_json(args.json, {"benchmark": "sampling", **row})
    print(json.dumps({"benchmark": "sampling", "rows": [row]}))


if __name__ == "__main__":
    main()
