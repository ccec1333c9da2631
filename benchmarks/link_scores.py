"""Do links over time beat the published scores, and rankings that no model makes?

Run: SIAFU_DATA=FOLDER python -m benchmarks.link_scores [--sets uci,otc] [--seeds 5] [--jobs 2]

Windows and splits are those of EvolveGCN (Pareja et al. 2020), in which a pair meets both ways.
Each run is ranked among all pairs in both ways: of all nodes with loops, as theirs, and of the
nodes met so far. The epoch is chosen by validation MAP among nodes met. The same pairs are ranked
without a model (docs/dynamic.md, Links), which no seed changes. `plain` is the same training
without what is new beside the published model: histories of pairs. Not alike: the optimiser's
steps, a test that begins one snapshot earlier (18 of them on UCI where the paper has 17), and
equal scores, which share the rank in their middle where theirs are broken by noise.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu import fit

PROTOCOLS = {"all nodes": " all nodes", "nodes met": ""}
"""Ways of ranking, and what their scores are called beside map and mrr."""
MODEL_FREE = ("last seen", "degrees", "edgebank")
SHARED: dict[str, Any] = {
    "model": "evolvegcn-o",
    "task": "link",
    "undirected": True,
    "eval_negatives": "all",
    "checkpoint_every": 0,
    "threads": 1,
    "time_block": 4,
    "step_every": "block",
    "history": 5,
    "lr": 0.02,
}
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "uci": ("dyn_uci_messages", {"window": "190080", "epochs": 60, "eval_every": 10}),
    "otc": ("dyn_bitcoin_otc", {"window": "1200000", "epochs": 20, "eval_every": 20}),
}
WAYS: dict[str, dict[str, Any]] = {
    "history": {},
    "plain": {"pair_history": False, "node_features": "degree-onehot"},
}
PUBLISHED = {"uci": {"map": 0.0270, "mrr": 0.1379}, "otc": {"map": 0.0028, "mrr": 0.0968}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run."""

    data: str
    seed: int
    settings: str
    """JSON."""

    def result(self) -> dict[str, Any]:
        """Return its result."""
        settings = json.loads(self.settings)
        with tempfile.TemporaryDirectory() as scratch:
            out = str(Path(scratch) / "run")
            return fit(self.data, seed=self.seed, out=out, quiet=True, **settings).result


def row_of(name: str, way: str, results: list[dict[str, Any]], settings: Any) -> dict[str, Any]:
    """Return means and spreads of the test scores over seeds, by protocol, and what is beside."""
    row: dict[str, Any] = {"set": name, "way": way, "seeds": len(results), "settings": settings}
    row["best_epochs"] = [result["best_epoch"] for result in results]
    seconds = [result["seconds_per_epoch"] for result in results]
    row["seconds_per_epoch"] = round(statistics.median(seconds), 3)
    for protocol, ending in PROTOCOLS.items():
        found: dict[str, Any] = {}
        for score in ("map", "mrr"):
            tests = [result["scores"]["test"][score + ending] for result in results]
            found[score] = {
                "mean": round(statistics.mean(tests), 4),
                "std": round(statistics.pstdev(tests), 4),
                "tests": [round(test, 4) for test in tests],
                **{
                    kind: round(results[0]["scores"]["test"][f"{score}{ending} of {kind}"], 4)
                    for kind in MODEL_FREE
                },
            }
        row[protocol] = found
    row["published"] = PUBLISHED[name]
    return row


def shown(row: dict[str, Any]) -> str:
    """Return a row in words."""
    return "\n".join(
        f"{row['set']} {row['way']:8} {protocol:10} {score} {found['mean']:.4f} +- "
        f"{found['std']:.4f}   "
        f"{'   '.join(f'{kind} {found[kind]:.4f}' for kind in MODEL_FREE)}   "
        f"published {row['published'][score]:.4f}"
        for protocol in PROTOCOLS
        for score, found in row[protocol].items()
    )


def main() -> None:
    """Train every set and way, and print a line for each score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sets", default="uci,otc")
    parser.add_argument("--ways", default="history")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread")
    args = parser.parse_args()
    folder = Path(os.environ.get("SIAFU_DATA", "."))
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {}
        for name in args.sets.split(","):
            for way in args.ways.split(","):
                file, more = SETS[name]
                settings = SHARED | more | WAYS[way]
                trials = [
                    Trial(
                        data=str(folder / f"{file}.npz"), seed=seed, settings=json.dumps(settings)
                    )
                    for seed in range(args.seeds)
                ]
                asked[name, way] = settings, [pool.submit(trial.result) for trial in trials]
        for (name, way), (settings, runs) in asked.items():
            row = row_of(name, way, [run.result() for run in runs], settings)
            print(shown(row), flush=True)
            if args.json:
                facts = {"benchmark": "link_scores", "jobs": args.jobs}
                append_json(args.json, {**facts, **row, **machine("cpu")})


if __name__ == "__main__":
    main()
