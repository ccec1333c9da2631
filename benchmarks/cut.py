"""How good are the cuts of each method, and what do they cost?

Run: python -m benchmarks.cut [--json FILE] [--parts 4] [--edges 2000000] [--graphs NAME,...]

Streaming beside METIS, ranges of rows and a hash, on graphs where all of them run: planted
communities, a power law, the benchmark of a billion edges in small, and the real graphs in the
folder that SIAFU_DATA names. Each assignment runs in a process of its own, which tells its seconds
and the memory it took beyond the graph; METIS runs in a child of that, which is counted too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import append_json, machine
from benchmarks.synthetic import write_store
from siafu.graph import Graph, graph_from_edges, load_store, save_store
from siafu.ingest import load
from siafu.partitioning import assign_contiguous, assign_hash, assign_metis, assign_streaming, score

METHODS: dict[str, Callable[..., Any]] = {
    "streaming": assign_streaming,
    "metis": assign_metis,
    "contiguous": assign_contiguous,
    "hash": assign_hash,
}
REAL = ("ogbn_arxiv_struct", "coauthor_physics", "github_social", "amazon_computers")
_PERIOD_SECONDS = 0.02


def make_graph(name: str, edges: int, target: Path) -> None:
    """Write one of the graphs as a store."""
    if name == "communities":
        write_store(target, nodes=edges // 50, edges=edges, features=4)
    elif name in REAL:
        save_store(load(Path(os.environ["SIAFU_DATA"]) / f"{name}.npz"), target)
    elif name == "power-law":
        save_store(load(f"powerlaw:{edges // 10}"), target)
    else:
        save_store(planted(edges), target)


def planted(edges: int, groups: int = 64) -> Graph:
    """Return groups of nodes in mixed order, nine of ten edges within a group, both ways."""
    rng = np.random.default_rng(0)
    n = edges // 20
    order = rng.permutation(n)
    one, other = rng.integers(0, n, (2, edges // 2))
    inside = rng.random(edges // 2) < 0.9
    size = -(-n // groups)
    members = np.minimum(size, n - one // size * size)
    other[inside] = (one // size * size + other % members)[inside]
    source, destination = order[np.concatenate([[one, other], [other, one]], axis=1)]
    return graph_from_edges(source, destination, n, train=rng.random(n) < 0.1)


class _Peak(threading.Thread):
    """The highest memory of this process and its children, as long as it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stop, self.highest = threading.Event(), 0
        self._me = psutil.Process()
        self.before = self._now()

    def _now(self) -> int:
        total = 0
        for process in [self._me, *self._me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def run(self) -> None:
        """Sample until told to stop."""
        while not self.stop.wait(_PERIOD_SECONDS):
            self.highest = max(self.highest, self._now())


def assign_once(store: Path, method: str, parts: int) -> None:
    """Assign in this process and print seconds, memory and quality."""
    graph = load_store(store)
    warm = graph_from_edges(np.arange(8), (np.arange(8) + 1) % 8, 8)
    METHODS[method](warm, 2)  # kernels are compiled, or loaded, before the clock runs
    peak = _Peak()
    peak.start()
    start = time.perf_counter()
    part_of = METHODS[method](graph, parts)
    seconds = time.perf_counter() - start
    peak.stop.set()
    peak.join()
    quality = score(graph, part_of, parts)
    row = {
        "method": method,
        "cut_fraction": round(quality.cut_fraction, 4),
        "halo_rows": sum(quality.halo_rows),
        "node_balance": round(quality.node_balance, 3),
        "edge_balance": round(quality.edge_balance, 3),
        "training_balance": round(quality.training_balance, 3),
        "seconds": round(seconds, 2),
        "memory_mib": round(max(0, peak.highest - peak.before) / 2**20),
    }
    print(json.dumps(row))


def measure(name: str, store: Path, parts: int) -> dict[str, Any]:
    """Return the figures of all methods on one graph."""
    graph = load_store(store, verify=False)
    rows = []
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.cut", "--assign", method]
        command += ["--store", str(store), "--parts", str(parts)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{name}: {rows[-1]}", file=sys.stderr)
    sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "parts": parts}
    return {"benchmark": "cut", "graph": name, **sizes, "rows": rows}


def main() -> None:
    """Measure every graph, or assign once for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--edges", type=int, default=2_000_000, help="of the synthetic graphs")
    parser.add_argument("--graphs", default="", help="planted, power-law, communities, ...")
    parser.add_argument("--json", type=Path, default=None, help="append the results to this file")
    parser.add_argument("--assign", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.assign:
        assign_once(args.store, args.assign, args.parts)
        return
    data = Path(os.environ.get("SIAFU_DATA", ""))
    real = [name for name in REAL if (data / f"{name}.npz").is_file()]
    names = (
        args.graphs.split(",") if args.graphs else ["planted", "power-law", "communities", *real]
    )
    results = []
    with tempfile.TemporaryDirectory(prefix="siafu-cut-") as folder:
        for name in names:
            store = Path(folder) / f"{name}.store"
            make_graph(name, args.edges, store)
            results.append(measure(name, store, args.parts) | machine())
            if args.json:
                append_json(args.json, results[-1])
    print(json.dumps({"benchmark": "cut", "graphs": results}))


if __name__ == "__main__":
    main()
