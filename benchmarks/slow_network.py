"""How much faster are epochs over slow links when messages are small and hidden, and at what price?

Run: python -m benchmarks.slow_network [--json FILE] [--hosts 2,4] [--mbit 1000,100] [--seeds 5]
     SIAFU_DATA=FOLDER python -m benchmarks.slow_network --data ogbn_arxiv_struct   a real graph
     python -m benchmarks.slow_network --data amazon_computers --curves --seeds 2 \
         --modes "fp32,4 bits,adaptive overlap,2 bits changes,1 bit changes,late"
     python -m benchmarks.slow_network --ranks 2 --cores 4 --seeds 0 --modes "fp32,all"

Hosts in network namespaces (`benchmarks.hosts`; needs root) train 3-layer GraphSAGE and GCN of 256
hidden on a graph like Reddit in shape: dense, skewed degrees, 41 classes that features and
neighbours both tell of, cut by METIS. Seconds an epoch of plain fp32 (rows are waited for), with
overlap, quantised, adaptive and overlapped, and with the first layer's sum cached. Accuracy does
not depend on the network, so it is measured on ranks of this machine, on a smaller graph of the
same kind. Bytes are those of an epoch, all ranks together. With `--curves` accuracy is followed
over the epochs, and times are those until fp32's best validation accuracy is all but reached: as
many epochs as it takes, and an exact evaluation after every tenth. A host may have several ranks,
which then share halo rows ("once per host"), and cores of its own; with fewer cores here than that
hosts are played slower, links too (`benchmarks.hosts`), and seconds are theirs. "fp32" waits for
its rows, which go to each rank.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.hosts import hosts, slower_by
from benchmarks.measure import append_json, machine
from benchmarks.ranks import answer, run_module
from benchmarks.slow_modes import ACCURACY_MODES, ALIKE, PAPER_MODES, PLAIN, settings
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.graph import Graph, graph_from_edges
from siafu.ingest import load
from siafu.launch.rank import prepare_process
from siafu.partitioning import assign_metis, write_parts
from siafu.shard import Shard, open_shard

FEATURES, CLASSES = 300, 41
SAME_CLASS = 0.4
"""Share of edges between nodes of one class."""
TIMED_EPOCHS = 5
SCORED_EVERY = 10
"""Epochs between evaluations where curves are followed."""
WITHIN = 0.005
"""How far below fp32's best validation accuracy counts as reaching it."""
PERIOD, WARM_EPOCHS = 50, 8
"""Epochs between assignments, and until the first is in use: those that are timed see none."""


def reddit_like(nodes: int, degree: int, seed: int = 0) -> Graph:
    """Return an undirected graph of skewed degrees whose classes can be learnt, but not wholly."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, CLASSES, nodes)
    share = generator.pareto(2.0, nodes) + 0.3
    edges = nodes * degree // 2
    src = generator.choice(nodes, edges, p=share / share.sum())
    dst = generator.choice(nodes, edges, p=share / share.sum())
    by_class = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[by_class], np.arange(CLASSES + 1))
    inside = generator.random(edges) < SAME_CLASS
    first, count = starts[label[src]], np.diff(starts)[label[src]]
    dst = np.where(inside, by_class[first + generator.integers(0, count)], dst)
    centre = generator.standard_normal((CLASSES, FEATURES)) * 0.08
    x = centre[label] + generator.standard_normal((nodes, FEATURES))
    seen = np.where(generator.random(nodes) < 0.1, generator.integers(0, CLASSES, nodes), label)
    role = generator.random(nodes)
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        nodes,
        name="reddit-like",
        x=x.astype(np.float32),
        y=seen,
        num_classes=CLASSES,
        train=role < 0.5,
        val=(role >= 0.5) & (role < 0.6),
        test=role >= 0.6,
    )


def cut(graph: Graph, size: int, folder: Path) -> Path:
    """Write the graph in METIS parts and return their folder."""
    target = folder / f"{graph.num_nodes}-{size}.parts"
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        part_of = assign_metis(graph, size, seed=0)
        write_parts(graph, part_of, target, num_parts=size, method="metis", seed=0)
    return target


def time_modes(
    shard: Shard, configs: dict[str, dict[str, Any]], epochs: int
) -> dict[str, dict[str, Any]]:
    """Return the seconds of some epochs of each mode, and the halo bytes this rank sends in one.

    Modes take turns, epoch by epoch, so that noise on the machine falls on all.
    """
    trainings: dict[str, Trainer] = {}
    found: dict[str, dict[str, Any]] = {}
    for mode, config in configs.items():
        trainings[mode] = begin(make_config(**config).resolved(), shard)
        for _ in range(WARM_EPOCHS if "wire_period" in config else 1):
            _step(trainings[mode])
        found[mode] = {"seconds": [], "sent": 0, "between": 0}
    for _ in range(epochs):
        for mode, training in trainings.items():
            before = _halo_bytes(shard.world.meter.bytes_sent), _bytes_between(shard.world)
            _settle(shard.world)
            start = time.perf_counter()
            _step(training)
            _settle(shard.world)
            found[mode]["seconds"].append(time.perf_counter() - start)
            found[mode]["sent"] = _halo_bytes(shard.world.meter.bytes_sent) - before[0]
            found[mode]["between"] = _bytes_between(shard.world) - before[1]
    for training in trainings.values():
        training.workload.book.rest()
    seconds: dict[str, float] = {}
    for mode, training in trainings.items():
        # Evaluation is fp32 in all modes; how rows travel otherwise is what may differ.
        how = json.dumps([configs[mode].get(name) for name in (*PLAIN, "input_cache")])
        if how not in seconds:
            start = time.perf_counter()
            training.workload.evaluate()
            seconds[how] = time.perf_counter() - start
        found[mode]["evaluation"] = seconds[how]
    return found


def _settle(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def _step(training: Trainer) -> None:
    training.step()
    training.progress.epochs += 1


def _bytes_between(world: World) -> int:
    """Return the bytes of rows that this rank has sent to other hosts."""
    hosts = world.hosts or tuple(str(rank) for rank in range(world.size))
    to = world.meter.bytes_to.items()
    return sum(count for peer, count in to if hosts[peer] != hosts[world.rank])


def _halo_bytes(sent: dict[str, int]) -> int:
    return sum(count for name, count in sent.items() if name.startswith("halo"))


def measure_rank(job: dict[str, Any]) -> None:
    """Do one rank's share of a job and tell what it saw."""
    first = settings(job, job["models"][0], job["modes"][0])
    prepare_process(make_config(**first))
    with World.join(device=job["device"]) as world:
        shard = open_shard(job["parts"], world, verify=False)
        found: dict[str, Any] = {}
        for model in job["models"]:
            configs = {f"{model}/{mode}": settings(job, model, mode) for mode in job["modes"]}
            if job["kind"] == "time":
                # Hosts with cores of their own need no turns, and tell each mode when it is done.
                one_by_one = [{name: config} for name, config in configs.items()]
                for some in one_by_one if job["log"] else [configs]:
                    found |= time_modes(shard, some, job["timed"])
                    if world.rank == 0 and job["log"]:
                        told = {name: found[name] for name in some} | {
                            "hosts": len(set(world.hosts)),
                            "slower": job["slower"],
                        }
                        append_json(Path(job["log"]), told)
                continue
            for name, config in configs.items():
                found[name] = (curves if job["curves"] else accuracies)(shard, config, job)
                if world.rank == 0:
                    print(name, found[name], file=sys.stderr, flush=True)
        if job["kind"] == "time":
            print(json.dumps(found))
        else:
            answer(found)


def accuracies(shard: Shard, config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return test accuracies after a fixed number of epochs, one a seed."""
    found = []
    for seed in range(job["seeds"]):
        training = begin(make_config(**config, seed=seed).resolved(), shard)
        for _ in range(job["epochs"]):
            _step(training)
        found.append(training.workload.evaluate().scores["test"])
    return {"test": found}


def curves(shard: Shard, config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return validation accuracies over the epochs, and the last test accuracy, one per seed."""
    found: dict[str, Any] = {"val": [], "test": []}
    for seed in range(job["seeds"]):
        training = begin(make_config(**config, seed=seed).resolved(), shard)
        found["val"].append([])
        for epoch in range(1, job["epochs"] + 1):
            _step(training)
            if epoch % job["every"] == 0:
                scores = training.workload.evaluate().scores
                found["val"][-1].append(scores["val"])
        found["test"].append(scores["test"])
        training.workload.book.rest()
    return found


def time_hosts(
    parts: Path, size: int, mbit: float, models: list[str], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each model and mode on so many hosts with such links."""
    modes = args.modes.split(",")
    job = {
        "kind": "time",
        "parts": str(parts),
        "models": models,
        "modes": modes,
        "period": PERIOD,
        "dropout": args.dropout,
        "lr": args.lr,
        "device": args.time_device,
        "threads": max(1, args.cores // args.ranks),
        "timed": args.timed,
        "log": f"{args.json}.part" if args.cores and args.json else "",
    }
    slower = slower_by(size * args.cores) if args.time_device == "cpu" else 1
    job["slower"] = slower
    command = [sys.executable, "-m", "benchmarks.slow_network", "--rank", json.dumps(job)]
    with hosts(size, mbit=mbit, ranks=args.ranks, cores=args.cores, slower=slower) as made:
        answers = made.run(command, deadline_seconds=1800)
    failed = [told for told in answers if told.code != 0]
    if failed:
        raise RuntimeError(f"host {failed[0].host}: {failed[0].err[-2000:]}")
    told = [json.loads(each.out.splitlines()[-1]) for each in answers]
    rows = []
    for model in models:
        plain = statistics.median(told[0][f"{model}/fp32"]["seconds"]) / slower
        for mode in modes:
            found = [each[f"{model}/{mode}"] for each in told]
            seconds = statistics.median(found[0]["seconds"]) / slower
            rows.append(
                {
                    "hosts": size,
                    "ranks_per_host": args.ranks,
                    "cores_per_host": args.cores or None,
                    "slower": slower,
                    "device": args.time_device,
                    "mbit": mbit,
                    "model": model,
                    "mode": mode,
                    "epoch_seconds": round(seconds, 3),
                    "times_fp32": round(plain / seconds, 2),
                    "halo_mb": round(sum(each["sent"] for each in found) / 1e6, 2),
                    "between_hosts_mb": round(sum(each["between"] for each in found) / 1e6, 2),
                    "evaluation_seconds": round(found[0]["evaluation"] / slower, 3),
                }
            )
            print(_line(rows[-1]), flush=True)
    return rows


def measure_accuracy(parts: Path, size: int, models: list[str], args: argparse.Namespace) -> Any:
    """Return mean and spread of test accuracy for each model and mode."""
    modes = args.modes if args.curves else ",".join(ACCURACY_MODES)
    job = {
        "kind": "accuracy",
        "parts": str(parts),
        "models": models,
        "modes": (args.accuracy_modes or modes).split(","),
        "threads": args.threads,
        "device": args.device,
        "period": 10,
        "seeds": args.seeds,
        "epochs": args.epochs,
        "dropout": args.dropout,
        "lr": args.lr,
        "curves": args.curves,
        "every": args.every,
    }
    found = run_module("benchmarks.slow_network", size, job)[0]
    if args.curves:
        return [row for model in models for row in reached(found, model, args)]
    rows = []
    for name, result in found.items():
        model, mode = name.split("/")
        percents = [100 * value for value in result["test"]]
        spread = statistics.stdev(percents) if len(percents) > 1 else 0.0
        row = {"model": model, "mode": mode, "test": round(statistics.mean(percents), 2)}
        rows.append(row | {"sd": round(spread, 2), "seeds": len(percents), "epochs": args.epochs})
        print(_line(rows[-1]), flush=True)
    return rows


def reached(found: dict[str, Any], model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return after how many epochs each mode is as good as fp32 is at its best, on average.

    Not at the end: after it has begun to fit too closely, its last score is soon reached.
    """
    means = {
        name.split("/")[1]: np.mean(result["val"], axis=0)
        for name, result in found.items()
        if name.startswith(f"{model}/")
    }
    target = means["fp32"].max() - WITHIN
    rows = []
    for mode, curve in means.items():
        there = np.flatnonzero(curve >= target)
        percents = [100 * value for value in found[f"{model}/{mode}"]["test"]]
        row = {
            "model": model,
            "mode": mode,
            "dropout": args.dropout,
            "lr": args.lr,
            "target_val": round(100 * float(target), 2),
            "epochs_to_target": int(there[0] + 1) * args.every if len(there) else None,
            "val": round(100 * float(curve[-1]), 2),
            "test": round(statistics.mean(percents), 2),
            "test_by_seed": [round(value, 2) for value in percents],
            "epochs": args.epochs,
        }
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def add_seconds(times: list[dict[str, Any]], accuracy: list[dict[str, Any]]) -> None:
    """Note in each row of times what reaching fp32's accuracy takes, evaluations counted."""
    for row in times:
        alike = {row["mode"], ALIKE.get(row["mode"])}
        same = [one for one in accuracy if one["model"] == row["model"] and one["mode"] in alike]
        epochs = same[0]["epochs_to_target"] if same else None
        if epochs is not None:
            scored = -(-epochs // SCORED_EVERY) * row["evaluation_seconds"]
            row["seconds_to_target"] = round(epochs * row["epoch_seconds"] + scored, 2)


def _line(row: dict[str, Any]) -> str:
    return "  ".join(
        f"{value!s:<22}" if key == "mode" else f"{value!s:<7}" for key, value in row.items()
    )


def read_arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", default="2,4", help="empty: accuracy alone")
    parser.add_argument("--mbit", default="1000,100")
    parser.add_argument("--models", default="sage,gcn")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--data", default="", help="a named data set instead of the synthetic one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--accuracy-modes", help="default with --curves: those of --modes")
    parser.add_argument("--modes", default=",".join(PAPER_MODES), help="fp32 first")
    parser.add_argument("--curves", action="store_true", help="epochs to fp32's accuracy")
    parser.add_argument("--every", type=int, default=2, help="epochs between points of a curve")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1, help="of a rank, for accuracy")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1, help="per host")
    parser.add_argument("--cores", type=int, default=0, help="of each host; 0: they share all")
    parser.add_argument("--timed", type=int, default=TIMED_EPOCHS, help="epochs of each mode")
    parser.add_argument("--cuts", type=Path, help="where parts are kept, and taken from")
    parser.add_argument("--accuracy-ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="for accuracy")
    parser.add_argument("--time-device", default="cpu", help="for seconds; cuda: hosts share a GPU")
    parser.add_argument("--rank")
    return parser.parse_args()


def main() -> None:
    """Measure times on slow links, then accuracy; the last line is JSON."""
    args = read_arguments()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    models = args.models.split(",")
    if args.data:
        graph = small = load(args.data, undirected=True)
    else:
        graph = reddit_like(args.nodes, args.degree)
        small = reddit_like(args.nodes // 3, args.degree)
    times: list[dict[str, Any]] = []
    accuracy: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="siafu-slow-") as made:
        scratch = args.cuts or Path(made)
        for size in (int(text) for text in args.hosts.split(",") if text):
            parts = cut(graph, size * args.ranks, scratch)
            for mbit in (float(text) for text in args.mbit.split(",")):
                times += time_hosts(parts, size, mbit, models, args)
        if args.seeds:
            size = args.accuracy_ranks
            accuracy = measure_accuracy(cut(small, size, scratch), size, models, args)
        if args.curves:
            add_seconds(times, accuracy)
    facts = {
        "benchmark": "slow_network",
        "graph": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
    }
    tested = {"accuracy": accuracy, "accuracy_nodes": small.num_nodes}
    result = {**facts, "times": times, **tested, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
