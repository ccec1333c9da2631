"""Does training on samples reach the accuracy of training on the whole graph?

Run: SIAFU_DATA=FOLDER python -m benchmarks.sampled_accuracy [--sets ogbn_arxiv_struct] [--seeds 3]

GraphSAGE on the largest real graphs there: full-graph training, sampled minibatches, those with
the first layer's input aggregated once, and those that share draws. All have the same model and are
scored alike, with every neighbour, at the best validation epoch. Sets whose file is missing are
left out, in words. `--contestants a,b` runs those whose names contain a or b.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu import SiafuError, fit

SAMPLED = {"strategy": "batchgnn", "macrobatch": "8"}
SETS: dict[str, dict[str, Any]] = {
    "ogbn_arxiv_struct": {
        "common": {"undirected": True, "layers": 3, "hidden": 128, "norm": "layer"},
        "whole": {"epochs": 150, "eval_every": 5},
        "sampled": {"epochs": 30, "fanout": "15,10,5", "batch_size": 4000, "lr": 0.003},
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
        "whole": {"epochs": 400, "eval_every": 2, "lr": 0.003},
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
        "sampled, draws shared within": {**sampled, "share_draws": 1},
        "sampled, draws shared by 8": {**sampled, "share_draws": 8},
    }


def trained(name: str, settings: dict[str, Any]) -> tuple[float, float]:
    """Return the test score in percent, and the seconds an epoch, of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        run = fit(name, out=str(Path(scratch) / "run"), **settings)
    return 100 * run.score["test"], run.result["seconds_per_epoch"]


def summed_up(runs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return mean and spread of the test score in percent, and the seconds an epoch."""
    scores, seconds = zip(*runs, strict=True)
    return {
        "test": round(statistics.mean(scores), 2),
        "sd": round(statistics.stdev(scores) if len(scores) > 1 else 0.0, 2),
        "tests": [round(score, 2) for score in scores],
        "seconds_per_epoch": round(statistics.median(seconds), 3),
    }


def main() -> None:
    """Measure every set that is there; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--contestants", default="", help="parts of their names")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: as many as are free")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    common = {"ranks": args.ranks, "threads": args.threads, "device": args.device}
    rows: list[dict[str, Any]] = []
    named = args.contestants.split(",")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=spawning) as pool:
        waiting = {
            (name, contestant): [
                pool.submit(trained, name, {**settings, **common, "seed": seed})
                for seed in range(args.seeds)
            ]
            for name in args.sets.split(",")
            for contestant, settings in contestants(name).items()
            if any(part in contestant for part in named)
        }
        for (name, contestant), runs in waiting.items():
            try:
                row = summed_up([run.result() for run in runs])
            except SiafuError as error:
                print(f"{name} left out: {error.problem}")
                continue
            rows.append({"set": name, "contestant": contestant, **row})
            print("  ".join(f"{value!s:<26}" for value in rows[-1].values()), flush=True)
    facts = {"seeds": args.seeds, "ranks": args.ranks}
    result = {"benchmark": "sampled_accuracy", **facts, "rows": rows, **machine(args.device)}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
