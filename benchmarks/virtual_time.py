"""Is virtual time right? Epochs of real pipelines with real waits, beside the simulated cluster.

Run: python -m benchmarks.virtual_time [--json benchmarks/results/virtual_time.jsonl]

One rank trains a small GCN; simulated workers make it wait, really, for latencies far longer
than any computation here, so that a busy machine does not matter. Its epochs stand beside those
of `siafu.pipeline.cluster` with the costs the run has noted: the same scheduler, dispatcher and
pool, driven by a clock on one side and by events on the other.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.record import RunFolder
from siafu.shard import open_shard

Row = dict[str, Any]
SKIPPED = 2


def measure(parts: Path, latency: str, workers: int, changes: Row, epochs: int) -> Row:
    """Return the median epoch of a run and the simulated one."""
    settings: Row = {"strategy": "dorylus", "pool": "simulated", "cloud": latency, "intervals": 6}
    settings |= {"pool_workers": str(workers), "hidden": 8, "epochs": epochs, **changes}
    settings |= {"inference": "none", "checkpoint_every": 0}
    config = make_config(data="planted", **settings).resolved()
    training = begin(config, open_shard(parts, World()))
    with tempfile.TemporaryDirectory() as folder:
        result = training.train(RunFolder(Path(folder)), lambda row: None)
    training.close()
    assert result.pipeline is not None
    # Epochs that overlap end in pairs: the mean, of all but the first ones.
    real = statistics.fmean(training.progress.seconds[SKIPPED:])
    virtual = result.pipeline["cluster"]["epoch_seconds"]
    return {
        "latency": latency,
        "workers": workers,
        **changes,
        "real_s": round(real, 4),
        "virtual_s": round(virtual, 4),
        "off": round(virtual / real - 1, 3),
    }


def main() -> None:
    """Compare every case; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    ways: list[Row] = [{}, {"overlap": False}, {"staleness": 1}, {"gather": "latest"}]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        partition_graph(load("planted:400"), parts, num_parts=1, method="hash")
        for latency, workers, changes in itertools.product(("200ms",), (3, 6), ways):
            rows.append(measure(parts, latency, workers, changes, args.epochs))
            print(rows[-1], flush=True)
    result = {"benchmark": "virtual-time", "rows": rows, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
