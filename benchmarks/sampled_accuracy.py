"""Does training on samples reach the accuracy of training on the whole graph?

Run: SIAFU_DATA=FOLDER python -m benchmarks.sampled_accuracy [--sets ogbn_arxiv_struct] [--seeds 3]

GraphSAGE on the largest real graphs there: full-graph training, sampled minibatches, and those with
the first layer's input aggregated once. All have the same model and are scored alike, with every
neighbour, at the best validation epoch. Sets whose file is missing are left out, in words.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu import SiafuError, fit

SAMPLED = {"strategy": "batchgnn", "macrobatch": "8"}
SETS: dict[str, dict[str, Any]] = {
    "ogbn_arxiv_struct": {
        "common": {"undirected": True, "layers": 3, "hidden": 128, "norm": "layer"},
        "whole": {"epochs": 150, "eval_every": 5},
        "sampled": {"epochs": 12, "fanout": "10,10,5", "batch_size": 1000, "lr": 0.003},
    },
    "coauthor_physics": {
        "common": {"split": "0.6,0.2", "hidden": 64},
        "whole": {"epochs": 60, "eval_every": 2},
        "sampled": {"epochs": 5, "fanout": "10,5", "batch_size": 500, "lr": 0.003},
    },
    "github_social": {
        "common": {"undirected": True, "split": "0.6,0.2", "hidden": 64},
        "whole": {"epochs": 60, "eval_every": 2},
        "sampled": {"epochs": 5, "fanout": "10,5", "batch_size": 500, "lr": 0.003},
    },
    "amazon_computers": {
        "common": {"undirected": True, "split": "0.6,0.2", "hidden": 64},
        "whole": {"epochs": 200, "eval_every": 2},
        "sampled": {"epochs": 20, "fanout": "10,5", "batch_size": 200, "lr": 0.003},
    },
}
SHARED = {"model": "sage", "dropout": 0.3, "input_dropout": 0.0, "weight_decay": 0.0}


def contestants(name: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each."""
    settings = SETS[name]
    common = {**SHARED, **settings["common"]}
    sampled = {**common, **SAMPLED, **settings["sampled"]}
    return {
        "whole graph": {**common, **settings["whole"]},
        "sampled": sampled,
        "sampled, aggregated input": {**sampled, "input_cache": True},
    }


def measure(name: str, settings: dict[str, Any], seeds: int, ranks: int) -> dict[str, Any]:
    """Return mean and spread of the test score in percent, and the seconds an epoch."""
    found, seconds = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            run = fit(name, seed=seed, ranks=ranks, out=str(Path(scratch) / "run"), **settings)
        found.append(100 * run.accuracy["test"])
        seconds.append(run.result["seconds_per_epoch"])
    spread = statistics.stdev(found) if seeds > 1 else 0.0
    return {
        "test": round(statistics.mean(found), 2),
        "sd": round(spread, 2),
        "seconds_per_epoch": round(statistics.median(seconds), 3),
    }


def main() -> None:
    """Measure every set that is there; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.sets.split(","):
        try:
            for contestant, settings in contestants(name).items():
                row = measure(name, settings, args.seeds, args.ranks)
                rows.append({"set": name, "contestant": contestant, **row})
                print("  ".join(f"{value!s:<26}" for value in rows[-1].values()), flush=True)
        except SiafuError as error:
            print(f"{name} left out: {error.problem}")
    facts = {"seeds": args.seeds, "ranks": args.ranks}
    result = {"benchmark": "sampled_accuracy", **facts, "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
