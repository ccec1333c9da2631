"""What does fetching several minibatches at once save, and what do the caches add?

Run: python -m benchmarks.macrobatch [--json FILE] [--hosts 1,2,4] [--mbit 1000] [--steps 32]
     python -m benchmarks.macrobatch --hosts 2 --threads 4 --contestants "k=1;k=1, in turn;k=32"
     python -m benchmarks.macrobatch --nodes 5000000 --degree 16 --graphs products-like

Hosts in network namespaces (`benchmarks.hosts`; needs root) train 3-layer GraphSAGE of 256 hidden
with fan-out 15,10,5 and minibatches of 1000, each on its own nodes: on a graph like
ogbn-products (communities, 100 features, cut by ranges) and on a power-law one (cut by hash).
`k=1, in turn` is how DistDGL fetches: no caches, and a minibatch is drawn and fetched when the step
before it has ended; `k=1` does so one minibatch ahead. Seconds are of an epoch, drawing and
fetching alone and with training (the fourth epoch, on the CPU or, with --device cuda, on one GPU
that all hosts share), `times_epoch` over k=1 and `times_in_turn` over `k=1, in turn`;
bytes and messages are of all hosts together. Every contestant must end an epoch with the weights of
k = 1, to the bit, unless it computes something else by design (aggregated input, 8-bit features,
shared draws).
How much of the graph one minibatch and k of them reach stands beside: feature bytes of a graph that
one all but covers say little of larger ones (`benchmarks.reach`).
Hosts have `--threads` cores of their own; on a machine with fewer they are played slower, links too
(`benchmarks.hosts`), and seconds are theirs. With --json, a line is added for each number of hosts
and graph as soon as it is measured.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.beside import SMALL_REACH
from benchmarks.hosts import hosts, slower_by
from benchmarks.measure import append_json, machine
from benchmarks.products_like import DEGREE, method_of, part_of, products_like
from benchmarks.ranks import answer, run_module
from benchmarks.reach import SIZES as REACH_SIZES
from benchmarks.reach import reach_of
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.progress import synchronise
from siafu.graph import Array, Graph
from siafu.launch.rank import prepare_process
from siafu.ops import warm_up, warm_up_sampling, warm_up_wire
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard

BATCH = 1000
COMMON = {
    "model": "sage",
    "strategy": "batchgnn",
    "hidden": 256,
    "layers": 3,
    "fanout": "15,10,5",
    "batch_size": BATCH,
    "dropout": 0.5,
    "input_dropout": 0.0,
}
CACHES: dict[str, dict[str, Any]] = {
    "hot rows": {"hot_rows": "20MB"},
    "8-bit features": {"feature_bits": 8},
    "aggregated": {"input_cache": True},
    "aggregated, hot rows": {"input_cache": True, "hot_rows": "20MB"},
    "draws shared within": {"share_draws": 1},
    "draws shared by 32": {"share_draws": 32},
}
OTHER_TRAINING = ("8-bit", "aggregated", "shared")
"""In names of contestants whose weights are not those of k = 1."""
SIZES = (1, 2, 4, 8, 16, 32, 64)
DEADLINE_SECONDS = 3600
EPOCHS = 4
"""The last one counts: its start was fetched while the one before ended, in memory at hand."""
AHEAD, IN_TURN = "k=1", "k=1, in turn"


def contestants() -> dict[str, dict[str, Any]]:
    """Return the settings of each."""
    plain = {IN_TURN: {"macrobatch": "1"}}
    plain |= {f"k={size}": {"macrobatch": str(size)} for size in SIZES}
    cached = {
        f"k={size}, {name}": {"macrobatch": str(size), **settings}
        for size in (1, 32)
        for name, settings in CACHES.items()
    }
    return plain | cached


def cut(graph: Graph, parts: Array, size: int, folder: Path) -> Path:
    """Write the graph in parts and return their folder."""
    target = folder / f"{graph.name}-{size}.parts"
    write_parts(graph, parts, target, num_parts=size, method=method_of(graph), seed=0)
    return target


def fetch_epoch(training: Trainer) -> float:
    """Return the seconds that an epoch's macrobatches take when nothing is trained."""
    network = training.workload.network
    assert isinstance(network, SampledNetwork)
    assert network.strategy.macrobatch != "auto"
    began = time.perf_counter()
    for macrobatch in network.feed.sampler.macrobatches(1, network.strategy.macrobatch):
        assert macrobatch.steps
    return time.perf_counter() - began


def start(shard: Shard, name: str, job: dict[str, Any]) -> Trainer:
    """Return a contestant, ready to train."""
    settings = contestants()[name] | {"threads": job["threads"]}
    training = begin(make_config(data="graph", **COMMON, **settings).resolved(), shard)
    assert isinstance(training.workload.network, SampledNetwork)
    training.workload.network.feed.sampler.is_ahead = name != IN_TURN
    return training


def train_a_little(shard: Shard, job: dict[str, Any]) -> None:
    """Train two steps, so that no contestant pays for what is done once in a process."""
    training = start(shard, AHEAD, job)
    assert isinstance(training.workload.network, SampledNetwork)
    sampler, count = training.workload.network.feed.sampler, 2 * BATCH
    whole = sampler.schedule
    assert whole.ids is not None
    assert whole.dealt is not None
    sampler.schedule = replace(
        whole,
        ids=whole.ids[:count],
        dealt=whole.dealt[:count],
        totals=[min(count, total) for total in whole.totals],
    )
    training.step()
    training.close()


def measure(shard: Shard, name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Return times, traffic and, where it trains, a hash of the weights after an epoch."""
    training = start(shard, name, job)
    meter = shard.world.meter
    before, told = dict(meter.bytes_sent), dict(meter.messages_sent)
    found: dict[str, Any] = {"fetch_seconds": fetch_epoch(training)}
    for kind in ("feature", "sample"):
        found[f"{kind}_bytes"] = meter.bytes_sent.get(kind, 0) - before.get(kind, 0)
    kinds = ("feature", "sample", "control")
    found["messages"] = sum(meter.messages_sent.get(n, 0) - told.get(n, 0) for n in kinds)
    if name in job["trained"]:
        for _ in range(EPOCHS):
            began = time.perf_counter()
            found["loss"] = training.step()
            synchronise(shard.world)
            found["epoch_seconds"] = time.perf_counter() - began
            training.progress.epochs += 1
        weights = training.workload.network.module.state_dict().values()
        found["weights"] = hashlib.sha256(
            b"".join(weight.cpu().numpy().tobytes() for weight in weights)
        ).hexdigest()[:16]
    training.close()
    return found


def cores_of_hosts(size: int, threads: int, device: str) -> dict[str, int]:
    """Return how hosts have a core for each thread: on a machine with too few they are slower.

    A GPU that they share is not, so that there they share its machine's cores too.
    """
    slower = slower_by(size * threads)
    return {"cores": threads, "slower": slower} if device == "cpu" or slower == 1 else {}


def measure_rank(job: dict[str, Any]) -> None:
    """Do one rank's share of a job and tell what it saw."""
    prepare_process(make_config(data="graph", **COMMON, threads=job["threads"]))
    with World.join(device=job["device"]) as world:
        shard = open_shard(job["parts"], world, verify=False, place="host")
        found = {}
        train_a_little(shard, job)
        for name in job["contestants"]:
            found[name] = measure(shard, name, job)
            if world.rank == 0:
                print(name, found[name], file=sys.stderr, flush=True)
        answer(found) if world.size == 1 else print(json.dumps(found))


def on_hosts(job: dict[str, Any], size: int, mbit: float) -> list[dict[str, Any]]:
    """Return what each host measured."""
    if size == 1:
        return run_module("benchmarks.macrobatch", 1, job, deadline_seconds=DEADLINE_SECONDS)
    command = [sys.executable, "-m", "benchmarks.macrobatch", "--rank", json.dumps(job)]
    with hosts(size, mbit=mbit, **cores_of_hosts(size, job["threads"], job["device"])) as made:
        # As many ranks as hosts on one machine: they share its GPU, which NCCL does not carry.
        shared = {"LOCAL_WORLD_SIZE": str(size)} if job["device"] == "cuda" else None
        answers = made.run(command, deadline_seconds=DEADLINE_SECONDS, env=shared)
    failed = [told for told in answers if told.code != 0]
    if failed:
        raise RuntimeError(f"host {failed[0].host}: {failed[0].err[-2000:]}")
    told_by = [json.loads(each.out.splitlines()[-1]) for each in answers]
    return [
        {name: in_their_time(found, made.slower) for name, found in told.items()}
        for told in told_by
    ]


def in_their_time(found: dict[str, Any], slower: int) -> dict[str, Any]:
    """Return the same with seconds as hosts have them."""
    return {
        key: value / slower if key.endswith("_seconds") else value for key, value in found.items()
    }


def rows_of(told: list[dict[str, Any]], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each contestant, beside k = 1 without caches."""
    first = told[0][AHEAD]
    bytes_first = sum(each[AHEAD]["feature_bytes"] for each in told)
    rows = []
    for name in told[0]:
        found = [each[name] for each in told]
        features = sum(each["feature_bytes"] for each in found)
        row = {
            **facts,
            "contestant": name,
            "fetch_seconds": round(found[0]["fetch_seconds"], 2),
            "times_fetch": round(first["fetch_seconds"] / found[0]["fetch_seconds"], 2),
            "feature_mb": round(features / 1e6, 1),
            "feature_share": round(features / bytes_first, 3) if bytes_first else 0.0,
            "sample_mb": round(sum(each["sample_bytes"] for each in found) / 1e6, 1),
            "messages": sum(each["messages"] for each in found),
        }
        if "weights" in found[0]:
            row |= trained_row(name, told[0])
        rows.append(row)
        print("  ".join(f"{value!s:<9}" for value in row.values()), flush=True)
    return rows


def trained_row(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return what training one contestant took, beside those that it is measured by."""
    seconds = told[name]["epoch_seconds"]
    row = {"epoch_seconds": round(seconds, 2)}
    for column, base in (("times_epoch", AHEAD), ("times_in_turn", IN_TURN)):
        if "weights" in told.get(base, {}):
            row[column] = round(told[base]["epoch_seconds"] / seconds, 2)
    exact = not any(word in name for word in OTHER_TRAINING)
    if exact and told[name]["weights"] != told[AHEAD].get("weights", told[name]["weights"]):
        raise RuntimeError(f"{name} ends with other weights than k = 1")
    return row


def say_reach(reach: dict[str, float]) -> None:
    """Print how much of the graph minibatches reach, and whether it is too small for its bytes."""
    print("of all nodes", ", ".join(f"k={k} reaches {share:.0%}" for k, share in reach.items()))
    if reach["1"] > SMALL_REACH:
        print("one minibatch reaches so much that feature bytes say little of larger graphs")


def chosen(text: str | None) -> list[str]:
    """Return the contestants of a list with `;`, k = 1 among them; all without one."""
    if text is None:
        return list(contestants())
    asked = {AHEAD, *text.split(";")}
    if unknown := asked - set(contestants()):
        sys.exit(f"no such contestants: {sorted(unknown)}; there are {list(contestants())}")
    return [name for name in contestants() if name in asked]


def main() -> None:
    """Measure every contestant on every number of hosts; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--degree", type=int, default=DEGREE)
    parser.add_argument("--graphs", default="products-like,power-law")
    parser.add_argument("--threads", type=int, default=1, help="of a host")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="trains")
    parser.add_argument("--contestants", help='names with ; between, as "k=1;k=32"; default: all')
    parser.add_argument(
        "--trained", default=f"{IN_TURN};k=1;k=8;k=32;k=32, hot rows;k=32, aggregated"
    )
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    job = {
        "threads": args.threads,
        "device": args.device,
        "contestants": chosen(args.contestants),
        "trained": args.trained.split(";"),
    }
    sizes = {"nodes": args.nodes, "edges": args.degree * args.nodes, "steps": args.steps}
    facts = machine(args.device) | {"threads": args.threads, "device": args.device}
    about = {"benchmark": "macrobatch", **sizes, **facts}
    warm_up()
    warm_up_wire()
    warm_up_sampling()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-macrobatch-") as scratch:
        for size in (int(text) for text in args.hosts.split(",")):
            for name in args.graphs.split(","):
                like = name == "products-like"
                seeds = args.steps * BATCH * size
                graph = products_like(args.nodes, seeds, communities=like, degree=args.degree)
                parts = part_of(graph, size)
                told = on_hosts(
                    job | {"parts": str(cut(graph, parts, size, Path(scratch)))}, size, args.mbit
                )
                slower = cores_of_hosts(size, args.threads, args.device).get("slower", 1)
                link = {"hosts": size, "mbit": args.mbit, "slower": slower if size > 1 else 1}
                found = rows_of(told, {**link, "graph": name})
                reached = reach_of(graph, parts, tuple(k for k in REACH_SIZES if k <= args.steps))
                say_reach(reached["reach"])
                if args.json:
                    append_json(args.json, {**about, **reached, "rows": found})
                rows += found
    print(json.dumps({**about, "rows": rows}))


if __name__ == "__main__":
    main()
