"""What `--strategy auto` takes beside the best: every exact strategy in turns, on several graphs.

    python -m benchmarks.chosen --out chosen.jsonl [--nodes 60000] [--turns 3]

Each case is cut once; then every strategy trains it in each turn, so that what else a machine does
falls on all of them. A case counts where the epoch of what was taken is within 10 % of the best's.
"""

import argparse
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import siafu
from benchmarks.measure import append_json, machine
from benchmarks.predicted import load_graph
from siafu.config import read_run_config
from siafu.errors import SiafuError
from siafu.partitioning.options import Method

EXACT = ("halo", "columns", "sar")
GOAL = 1.1
_EPOCHS = 9


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph, how it is cut, and what is trained on it."""

    graph: str
    model: str
    ranks: int
    method: Method = "metis"
    settings: dict[str, Any] = field(default_factory=dict)


def cases(nodes: int) -> list[Case]:
    """Return graphs that cut well and badly, narrow and wide models, few and many columns."""
    dense, real = f"products-like:{nodes}", "ogbn_arxiv_struct"
    wide = {"hidden": 256, "layers": 3}
    return [
        Case(graph=dense, model="gcn", ranks=2, method="contiguous"),
        Case(graph=dense, model="sage", ranks=4, method="contiguous", settings=wide),
        Case(graph=dense, model="gat", ranks=2, method="contiguous"),
        Case(graph=dense, model="gcn", ranks=4, method="hash"),
        Case(graph=dense, model="sage", ranks=2, method="hash", settings=wide),
        Case(graph=real, model="gcn", ranks=2),
        Case(graph=real, model="sage", ranks=4, settings=wide),
        Case(graph=real, model="gat", ranks=4),
        Case(graph=real, model="gcn", ranks=4, method="hash"),
        Case(graph="coauthor_physics", model="gcn", ranks=2),
        Case(graph="planted:100k", model="gin", ranks=4),
        Case(graph="planted:100k", model="gcn", ranks=4, method="hash", settings=wide),
    ]


def measure(case: Case, parts: Path, folder: Path, turns: int) -> dict[str, Any]:
    """Return the least median epoch of each strategy, and what auto has taken."""
    seconds: dict[str, list[float]] = {}
    common: dict[str, Any] = {"model": case.model, "inference": "none", "quiet": True}
    common |= {"ranks": case.ranks, "epochs": _EPOCHS, **case.settings}
    for turn in range(turns):
        for strategy in EXACT:
            out = folder / f"{strategy}{turn}"
            try:
                run = siafu.fit(str(parts), strategy=strategy, out=str(out), **common)
            except SiafuError as error:  # a model that has no such strategy
                print(f"  {strategy}: {error.problem}", flush=True)
                continue
            seconds.setdefault(strategy, []).append(run.result["seconds_per_epoch"])
    run = siafu.fit(
        str(parts), strategy="auto", out=str(folder / "auto"), **{**common, "epochs": 1}
    )
    taken = read_run_config(run.path / "config.yaml")["strategy"]
    least = {name: min(found) for name, found in seconds.items()}
    ratio = least[taken] / min(least.values())
    told = {name: round(value, 4) for name, value in least.items()}
    return {"seconds": told, "taken": taken, "ratio": round(ratio, 3)}


def main() -> None:
    """Run all cases and say in how many the choice was good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", type=int, default=60_000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in cases(args.nodes):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                graph = load_graph(case.graph)
            except SiafuError as error:  # a data set that is not here
                print(f"{case.graph}: {error.problem}", flush=True)
                continue
            parts = folder / "parts"
            siafu.partition(graph, parts, parts=case.ranks, method=case.method, quiet=True)
            row = {"graph": case.graph, "model": case.model, "ranks": case.ranks}
            row |= {"method": case.method, **case.settings}
            row |= measure(case, parts, folder, args.turns)
        row["load"] = round(os.getloadavg()[0], 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
        if args.out is not None:
            append_json(args.out, {"benchmark": "chosen", **row, **machine()})
    good = sum(row["ratio"] <= GOAL for row in rows)
    print(f"within 10 % of the best: {good} of {len(rows)}")


if __name__ == "__main__":
    main()
