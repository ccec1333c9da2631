"""What do the record of a run and `--trace` cost of an epoch?

Run: python -m benchmarks.record_cost [--json FILE] [--ranks 2] [--sizes 3000,30000] [--turns 60]

Ranks train one model each by `halo`, `sar` and `batchgnn`, epoch after epoch, with nothing noted
(counters of bytes and waits, seconds by phase, metrics and the file of progress all stand still),
with the record of every run, and with a trace as well: in turns, in one process, the order turned
round every time. Told is the median of the difference within a turn, as a share of the median
epoch, of the slowest rank. Smaller graphs have shorter epochs, of which the same notes are more.

What would make it an artefact: noise larger than the difference. So beside the difference of two
sides stands that of a side with itself (`noise`), and what the calls alone take (`calls`: their
number in an epoch by their price, measured apart).
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measure import append_json, machine
from benchmarks.ranks import answer, run_module
from siafu.collector import spare_collector
from siafu.comm import World
from siafu.comm.meter import Meter
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.engine.progress import PhaseSeconds
from siafu.ingest import powerlaw
from siafu.launch.rank import prepare_process
from siafu.partitioning import partition_graph
from siafu.record import LiveFile, RunFolder, Trace
from siafu.shard import open_shard

STRATEGIES = ("halo", "sar", "batchgnn")
SIDES = ("nothing", "nothing again", "record", "trace")
MODEL = {"model": "sage", "hidden": 64, "epochs": 10**6, "eval_every": 10**6, "threads": 1}
WARM_EPOCHS = 5
_CALLS = 20_000


@contextlib.contextmanager
def noting(side: str, world: World) -> Iterator[bool]:
    """Have a rank note what the side says; yield whether rows are written."""
    world.trace = Trace(world.rank) if side == "trace" else None
    if side in ("record", "trace"):
        yield True
        return
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - stands in for methods
    with (
        patch.object(Meter, "count", nothing),
        patch.object(Meter, "waited", nothing),
        patch.object(PhaseSeconds, "counted", lambda *_: contextlib.nullcontext()),
    ):
        yield False


def measure_rank(job: dict[str, Any]) -> None:
    """Time epochs of all sides in turns on one rank."""
    spare_collector()
    prepare_process(make_config(data=job["parts"], **MODEL))
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False)
        found = {}
        for strategy in job["strategies"]:
            config = make_config(data=job["parts"], strategy=strategy, **MODEL).resolved()
            found[strategy] = _turns(begin(config, shard), world, job["turns"])
        answer({"found": found, "load": machine()["load"]})


def _turns(trainer: Trainer, world: World, turns: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch))
        live = LiveFile(folder.live)
        for _ in range(WARM_EPOCHS):
            trainer.run_epoch()
        for turn in range(turns):
            for side in SIDES if turn % 2 else reversed(SIDES):
                with noting(side, world) as writes:
                    started = time.perf_counter()
                    row = trainer.run_epoch()
                    if writes and world.rank == 0:
                        folder.append_metrics(row)
                        live.tell(f"epoch {row['epoch']}", 0.5, 1.0, "")
                    seconds[side].append(time.perf_counter() - started)
        calls = _calls(trainer, folder)
    trainer.close()
    return {"seconds": seconds, "calls_seconds": calls}


def _calls(trainer: Trainer, folder: RunFolder) -> float:
    """Return the seconds of an epoch's notes, each timed apart."""
    counted, waited = [0], [0]
    count, wait = Meter.count, Meter.waited

    def counting(meter: Meter, *rest: Any) -> None:
        counted[0] += 1
        count(meter, *rest)

    def waiting(meter: Meter, *rest: Any) -> None:
        waited[0] += 1
        wait(meter, *rest)

    with patch.object(Meter, "count", counting), patch.object(Meter, "waited", waiting):
        trainer.run_epoch()
    meter, row, live = Meter(), trainer.run_epoch(), LiveFile(folder.live)
    epoch = counted[0] * _price(lambda: meter.count("halo_forward", 8, 1, 1))
    epoch += waited[0] * _price(lambda: meter.waited("fetch", 0.1))
    epoch += _price(lambda: folder.append_metrics(row), _CALLS // 20)
    return epoch + _price(lambda: live.tell("epoch 1 of 9", 0.5, 1.0, ""), _CALLS // 20)


def _price(call: Callable[[], object], times: int = _CALLS) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def told(found: list[dict[str, Any]], strategy: str) -> dict[str, float]:
    """Return the shares of an epoch, of the rank that is slowest without any notes."""
    ranks = [one["found"][strategy] for one in found]
    slowest = max(ranks, key=lambda one: statistics.median(one["seconds"]["nothing"]))
    seconds = slowest["seconds"]
    epoch = statistics.median(seconds["nothing"])
    shares = {"epoch_ms": round(1e3 * epoch, 3)}
    for side, name in zip(SIDES[1:], ("noise", "record", "trace"), strict=True):
        pairs = zip(seconds[side], seconds["nothing"], strict=True)
        shares[name] = round(statistics.median(a - b for a, b in pairs) / epoch, 5)
    shares["calls"] = round(max(one["calls_seconds"] for one in ranks) / epoch, 5)
    return shares


def main() -> None:
    """Cut the graphs, run the ranks, and print or write a row per strategy and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", help="used to start ranks")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="3000,30000")
    parser.add_argument("--turns", type=int, default=60)
    asked = parser.parse_args()
    if asked.rank:
        measure_rank(json.loads(asked.rank))
        return
    for nodes in map(int, asked.sizes.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            parts = Path(scratch) / "graph.parts"
            partition_graph(powerlaw(nodes), parts, num_parts=asked.ranks)
            job = {"parts": str(parts), "turns": asked.turns, "strategies": STRATEGIES}
            found = run_module("benchmarks.record_cost", asked.ranks, job)
        for strategy in STRATEGIES:
            row = {"benchmark": "record_cost", "strategy": strategy, "nodes": nodes}
            row |= {"ranks": asked.ranks, "turns": asked.turns, **told(found, strategy)}
            row |= {**machine(), "load": found[0]["load"]}
            sys.stdout.write(json.dumps(row) + "\n")
            if asked.json:
                append_json(asked.json, row)


if __name__ == "__main__":
    main()
