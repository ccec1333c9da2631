"""Does training on minibatches stay within `--memory`, with evaluation as it is by default?

Run: python -m benchmarks.budget [--json FILE] [--models gcn,sage,gat] [--places memory,disk]
     [--folder FOLDER]

One epoch, scored over the whole graph, and predictions of every node, on 2 ranks. In memory: 1 M
nodes, 20 M edges, 64 features. On disk: 2 M nodes, 20 M edges, 256 features in minibatches of 250:
a part is larger than the budget of its rank. A rank's figure is the high-water mark of its resident
pages (VmHWM): anonymous ones, libraries, and pages of the part's files while they are mapped; what
the kernel keeps in its own cache of files is not counted. The graphs go with the run, but for those
in `--folder`, which are used again.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from benchmarks.resident import run_phase
from benchmarks.synthetic import write_store
from siafu.options import read_bytes
from siafu.shard import part_bytes

RANKS = 2
MOST_OVER = 1.05
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A graph, and the memory of a rank that trains on it."""

    nodes: int
    edges: int
    features: int
    memory: str
    batch_size: int = 1000


CASES = {
    "memory": Case(nodes=1_000_000, edges=20_000_000, features=64, memory="1150MB"),
    "disk": Case(nodes=2_000_000, edges=20_000_000, features=256, memory="900MB", batch_size=250),
}


def make_parts(folder: Path, name: str, env: dict[str, str]) -> Path:
    """Return the parts of a case's graph, made where they are not there yet."""
    parts, store, case = folder / f"{name}.parts", folder / f"{name}.store", CASES[name]
    if not parts.exists():
        write_store(store, nodes=case.nodes, edges=case.edges, features=case.features)
        cut = ["partition", store, parts, "--parts", RANKS, "--method", "hash", "--quiet"]
        run_phase([sys.executable, "-m", "siafu", *map(str, cut)], cwd=folder, env=env)
        shutil.rmtree(store)
    return parts


def measure(folder: Path, name: str, model: str) -> dict[str, Any]:
    """Return the peak of each rank of one run."""
    path = f"{_ROOT}:{_ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | {"PYTHONPATH": path}
    parts, run = make_parts(folder, name, env), folder / f"{name}-{model}.run"
    shutil.rmtree(run, ignore_errors=True)
    case = CASES[name]
    settings: list[object] = ["--strategy", "batchgnn", "--model", model, "--memory", case.memory]
    settings += ["--batch-size", case.batch_size]
    command = ["train", parts, *settings, "--epochs", 1, "--out", run, "--quiet"]
    figures = run_phase([sys.executable, "-m", "siafu", *map(str, command)], cwd=folder, env=env)
    result = json.loads((run / "result.json").read_text())
    shutil.rmtree(run)
    budget = read_bytes(case.memory)
    # The process that started the ranks holds nothing of the graph: it is the smallest.
    peaks = figures["process_peaks_mb"][:RANKS]
    assert result["sampling"]["on_disk"] == (name == "disk"), "the budget decides where rows lie"
    return {
        "rows": name,
        "model": model,
        "budget_mb": budget / 1e6,
        "part_mb": round(part_bytes(parts, 0) / 1e6, 1),
        "peak_mb": peaks,
        "of_budget": round(max(peaks) * 1e6 / budget, 3),
        "within": max(peaks) * 1e6 <= MOST_OVER * budget,
        "test": round(result["score"]["test"], 4),
        "seconds": figures["seconds"],
    }


def main() -> None:
    """Measure every combination, one at a time; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default="gcn,sage,gat")
    parser.add_argument("--places", default="memory,disk")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siafu-budget-") as scratch:
        folder = args.folder or Path(scratch)
        rows = []
        for name in args.places.split(","):
            for model in args.models.split(","):
                rows.append(measure(folder, name, model))
                print(json.dumps(rows[-1]), flush=True)
    graphs = {name: [case.nodes, case.edges, case.features] for name, case in CASES.items()}
    result = {"benchmark": "budget", "ranks": RANKS, "graphs": graphs, "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
