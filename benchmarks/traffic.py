"""How many bytes does a run send with rounded messages, evaluation and gradients counted?

Run: SIAFU_DATA=FOLDER python -m benchmarks.traffic [--sets amazon_photo] [--seeds 3]

`siafu train SET --undirected --model sage --ranks 4 --epochs 60` with `halo` and with `adaqp`, all
other settings as they come: the bytes that all ranks send in the whole run, and the test score at
the epoch that validation chose. What shrinks less stands beside it: gradients of weights, summed
over the ranks at 8 bits. Sets whose file is missing are left out, in words.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu import SiafuError, fit

SETS = ("amazon_computers", "amazon_photo", "ogbn_arxiv_struct", "github_social", "pubmed")
STRATEGIES = ("halo", "adaqp")
EPOCHS = 60


def measure(name: str, strategy: str, seeds: int, threads: int) -> dict[str, Any]:
    """Return bytes of the runs over the seeds, and their test scores in percent."""
    runs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            run = fit(
                name,
                undirected=True,
                model="sage",
                ranks=4,
                strategy=strategy,
                epochs=EPOCHS,
                seed=seed,
                threads=threads,
                device="cpu",
                out=str(Path(scratch) / "run"),
            )
        runs.append(run.result)
    tests = [100 * run["score"]["test"] for run in runs]
    sent = [sum(run["bytes_sent"].values()) for run in runs]
    return {
        "set": name,
        "strategy": strategy,
        "sent_mb": round(statistics.mean(sent) / 1e6, 1),
        "gradient_mb": round(statistics.mean(r["bytes_sent"]["gradient"] for r in runs) / 1e6, 1),
        "evaluation_mb": round(
            statistics.mean(r["evaluation"]["bytes_sent"] for r in runs) / 1e6, 1
        ),
        "test": round(statistics.mean(tests), 2),
        "tests": [round(score, 2) for score in tests],
    }


def main() -> None:
    """Measure every set that is there; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="per rank; 0: as many as are free")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.sets.split(","):
        try:
            whole, rounded = (measure(name, s, args.seeds, args.threads) for s in STRATEGIES)
        except SiafuError as error:
            print(f"{name} left out: {error.problem}")
            continue
        rounded["times_fewer"] = round(whole["sent_mb"] / rounded["sent_mb"], 2)
        rounded["points"] = round(rounded["test"] - whole["test"], 2)
        rows += [whole, rounded]
        for row in (whole, rounded):
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    facts = {"seeds": args.seeds, "ranks": 4, "epochs": EPOCHS}
    result = {"benchmark": "traffic", **facts, "rows": rows, **machine("cpu")}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
