"""Can a graph with a billion edges be made, stored, cut and trained on in bounded memory?

Run: python -m benchmarks.billion [--json FILE] [--edges 1000000000] [--nodes 20000000]
     [--features 32] [--from store|parquet] [--memory 4GB] [--until cut] [--keep PARTS]
     [--enforce 4GiB]
     python -m benchmarks.billion --budget-run [--budget 2GB]

Each phase is a process of its own (training starts one a rank more); its seconds and the peak of
its resident memory, summed over its processes, are printed. Training is one epoch of SAGE over the
training nodes, one in a hundred, with the scores that are the default and predictions of all nodes.
With `--enforce` cutting and training, all their processes together, run in a control group of that
size with cold caches. With `--budget-run` the features alone are four times the
memory that all ranks together may use. Everything made is removed at the end,
but for the parts and the figures so far that `--keep` asks for, from which the next run goes on.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.cgroup import drop_caches, limited
from benchmarks.measure import append_json, machine
from benchmarks.resident import PhaseError, run_phase
from benchmarks.synthetic import write_store, write_tables
from siafu.graph import load_store
from siafu.options import read_bytes
from siafu.partitioning import open_parts

PARTS = 2
MOST_GIB = 12.0
BUDGET_FEATURES = 256
BUDGET_EDGES_A_NODE = 5
_GATE_ROWS = 200
_ROOT = Path(__file__).parents[1]


class Bench:
    """The phases of one run, in a folder of their own."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self.parts = args.keep or folder / "graph.parts"
        self.source, self.figures = (self.parts.with_suffix(end) for end in (".graph", ".json"))
        path = f"{_ROOT}:{_ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
        self.env = os.environ | {"PYTHONPATH": path, "SIAFU_CACHE": str(folder / "cache")}
        is_begun = self.figures.exists()
        self.phases: dict[str, Any] = json.loads(self.figures.read_text()) if is_begun else {}

    def phase(self, name: str, *command: object) -> dict[str, Any]:
        """Run one phase, print its figures and keep them."""
        words = [sys.executable, "-m", *map(str, command)]
        if self.args.enforce is None or name == "make":
            figures = run_phase(words, cwd=self.folder, env=self.env)
        else:
            drop_caches()
            with limited(read_bytes(self.args.enforce)) as group:
                figures = run_phase(group.command(words), cwd=self.folder, env=self.env)
                figures["counted_peak_gib"] = round(group.peak_bytes() / 2**30, 3)
        said = figures.pop("said")
        print(f"{name}: {figures}", file=sys.stderr)
        self.phases[name] = figures
        return {"said": said, **figures}

    def make(self) -> None:
        """Write the graph, as a store or as tables, unless it is there or cut already."""
        if "make" in self.phases:
            return
        sizes = [self.args.nodes, self.args.edges, self.args.features]
        kind = self.args.source
        self.phase("make", "benchmarks.billion", "--task", kind, *sizes, "--target", self.source)
        self.figures.write_text(json.dumps(self.phases))

    def cut(self) -> dict[str, Any]:
        """Cut it by streaming, check the parts, and return the quality of the cut."""
        if "cut" not in self.phases:
            settings = ["--parts", PARTS, "--method", "streaming", "--memory", self.args.memory]
            self.phase("cut", "siafu", "partition", self.source, self.parts, *settings, "--quiet")
            if self.args.source == "store":
                gate(self.source, self.parts)
            shutil.rmtree(self.source)
            self.figures.write_text(json.dumps(self.phases))
        quality = open_parts(self.parts).quality
        return {
            "cut_fraction": round(quality.cut_fraction, 4),
            "halo_rows": list(quality.halo_rows),
            "edge_balance": round(quality.edge_balance, 4),
            "training_balance": round(quality.training_balance, 4),
        }

    def train(self, memory_a_rank: str) -> dict[str, Any]:
        """Train one epoch and return its last metrics."""
        settings: list[object] = ["--model", "sage", "--strategy", "batchgnn", "--fanout", "10,5"]
        settings += ["--batch-size", 1000, "--epochs", 1, "--memory", memory_a_rank]
        run = self.folder / "run"
        self.phase("train", "siafu", "train", self.parts, *settings, "--out", run, "--quiet")
        metrics = (run / "metrics.jsonl").read_text().splitlines()
        result: dict[str, Any] = json.loads(metrics[-1])
        told = json.loads((run / "result.json").read_text())
        files = list((run / "predictions").glob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        nodes = sum(pq.read_metadata(file).num_rows for file in files)
        assert nodes == self.args.nodes, "each node has a prediction"
        more = {name: told[name] for name in ("score", "evaluation", "sampling", "peak_mb")}
        phases = [json.loads(line) for line in (run / "phases.jsonl").read_text().splitlines()]
        more |= {"run_seconds": phases[-1]["seconds"], "predicted_nodes": nodes}
        return result | more | {"prediction_bytes": size}


def gate(store: Path, parts_path: Path) -> None:
    """Raise unless sampled rows have the same in-neighbours in the store and in their part."""
    graph, parts = load_store(store, verify=False), open_parts(parts_path)
    part_of = parts.part_of
    folders = [parts.part(part) for part in range(parts.num_parts)]
    for row in np.random.default_rng(0).integers(0, graph.num_nodes, _GATE_ROWS).tolist():
        folder = folders[part_of[row]]
        rows, indptr = folder.load("rows"), folder.load("indptr")
        at = int(np.searchsorted(rows, row))
        columns = folder.load("src")[indptr[at] : indptr[at + 1]]
        halo = folder.load("halo")
        found = [rows[c] if c < len(rows) else halo[c - len(rows)] for c in columns.tolist()]
        assert found == graph.src[graph.indptr[row] : graph.indptr[row + 1]].tolist(), row
        assert isinstance(graph.x, np.ndarray)
        assert (folder.load("x")[at] == graph.x[row]).all(), row


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of every phase."""
    bench = Bench(folder, args)
    row: dict[str, Any] = {
        "benchmark": "billion",
        "edges": args.edges,
        "nodes": args.nodes,
        "features": args.features,
        "from": args.source,
        "memory": args.memory,
        "enforced": args.enforce,
    }
    bench.make()
    if args.until != "make":
        row["quality"] = bench.cut()
    if args.until == "train":
        try:
            row["last_epoch"] = bench.train(args.memory)
        except PhaseError as error:
            row["train_failed"] = str(error).splitlines()[-1]
    row["phases"] = bench.phases
    row["under_12_gib"] = all(phase["peak_gib"] < MOST_GIB for phase in bench.phases.values())
    return row | machine()


def measure_budget(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return how a graph trains whose features are four times the budget of all ranks."""
    budget = read_bytes(args.budget)
    args.features = BUDGET_FEATURES
    args.nodes = 4 * budget // (4 * BUDGET_FEATURES)
    args.edges = BUDGET_EDGES_A_NODE * args.nodes
    args.source, args.memory = "store", str(budget)
    bench = Bench(folder, args)
    bench.make()
    bench.cut()
    last = bench.train(str(budget // PARTS))
    peak = bench.phases["train"]["shared_once_peak_gib"]
    return {
        "benchmark": "billion-budget",
        "budget_gib": round(budget / 2**30, 3),
        "feature_gib": round(args.nodes * BUDGET_FEATURES * 4 / 2**30, 3),
        "nodes": args.nodes,
        "edges": args.edges,
        "phases": bench.phases,
        "last_epoch": last,
        "within_budget": peak * 2**30 <= budget,
    } | machine()


def main() -> None:
    """Measure, or make the graph of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--nodes", type=int, default=None, help="a fiftieth of the edges")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--from", dest="source", choices=["store", "parquet"], default="store")
    parser.add_argument("--memory", default="4GB", help="of cutting, and of a rank in training")
    parser.add_argument("--until", choices=["make", "cut", "train"], default="train")
    parser.add_argument("--enforce", help="limit of a control group, of cutting and of training")
    parser.add_argument("--budget-run", action="store_true")
    parser.add_argument("--budget", default="2GB", help="resident memory of all ranks together")
    parser.add_argument("--folder", type=Path, default=None, help="where the files go meanwhile")
    parser.add_argument("--keep", type=Path, help="keep parts and figures here, and use them")
    parser.add_argument("--json", type=Path, default=None, help="append the result to this file")
    parser.add_argument("--task", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        nodes, edges, features = map(int, args.task[1:])
        write = write_store if args.task[0] == "store" else write_tables
        write(args.target, nodes=nodes, edges=edges, features=features)
        return
    args.nodes = args.nodes or max(100, args.edges // 50)
    with tempfile.TemporaryDirectory(prefix="siafu-billion-", dir=args.folder) as folder:
        row = (measure_budget if args.budget_run else measure)(Path(folder), args)
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
