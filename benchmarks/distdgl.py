"""How long does a sampled epoch over slow links take beside DistDGL itself?

Run: python -m benchmarks.distdgl --dgl-python PYTHON [--json FILE] [--hosts 2] [--mbit 1000]
         [--nodes 5000000] [--degree 16] [--steps 16] [--threads 1] [--folder F [--prepare]]

The hosts, the graph with communities and the model of `benchmarks.macrobatch`: 3-layer GraphSAGE of
256 hidden, fan-out 15,10,5, minibatches of 1000 of each host's own training nodes. DGL runs in the
interpreter named (DGL 2.1 with torch 2.2.1 and torchdata 0.7.1), cut into the same parts: a server
and a trainer per host, with and without a process that samples ahead, the better of which counts.
Both sides have the same cores, one after the other on an else quiet machine; the last epoch counts.
With fewer cores here than hosts have they are played slower, and seconds are theirs.
DGL's seconds by what they went into stand beside, ours for drawing and fetching alone. Both cuts
are kept in `--folder`, and taken from there; `--prepare` makes them and ends.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import Hosts, hosts, slower_by
from benchmarks.macrobatch import (
    AHEAD,
    BATCH,
    COMMON,
    IN_TURN,
    chosen,
    cores_of_hosts,
    cut,
    on_hosts,
)
from benchmarks.measure import append_json, machine
from benchmarks.products_like import CLASSES, part_of, products_like
from benchmarks.reach import reach_of
from siafu.graph import Array, Graph
from siafu.ops import warm_up, warm_up_sampling, warm_up_wire

PEER = Path(__file__).with_name("distdgl_peer.py")
OURS = (IN_TURN, AHEAD, "k=32", "k=32, draws shared by 32")
SAMPLERS = (0, 1)
"""Processes that sample ahead, beside each trainer of DGL's."""
EPOCHS = 4
"""As many as ours."""
DEADLINE_SECONDS = 1800


def write_task(graph: Graph, parts: Array, folder: Path) -> None:
    """Lay the graph down for another interpreter, edges from sources to destinations."""
    folder.mkdir()
    held = {
        "src": graph.src,
        "dst": np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)),
        "part": parts,
        "x": graph.x,
        "y": graph.y,
        "train": graph.train,
    }
    for name, array in held.items():
        np.save(folder / f"{name}.npy", np.asarray(array))


def theirs(folder: Path, samplers: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each host of DGL's measured."""
    fanouts = [int(text) for text in str(COMMON["fanout"]).split(",")]
    with hosts(
        args.hosts, mbit=args.mbit, **cores_of_hosts(args.hosts, args.threads, "cpu")
    ) as made:
        job = {
            "folder": str(folder / "dgl"),
            "addresses": str(_addresses(made, folder)),
            "samplers": samplers,
            "threads": args.threads,
            "fanouts": fanouts,
            "batch": BATCH,
            "hidden": COMMON["hidden"],
            "classes": CLASSES,
            "dropout": COMMON["dropout"],
            "epochs": EPOCHS,
        }
        (folder / "job.json").write_text(json.dumps(job))
        # DGL's servers share their graphs under names that hosts of one machine would share too.
        own = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        command = ["sh", "-c", own, "sh", str(args.dgl_python), str(PEER), "host"]
        command.append(str(folder / "job.json"))
        answers = made.run(command, deadline_seconds=DEADLINE_SECONDS, cwd=folder)
    for told in answers:
        if told.code != 0:
            raise RuntimeError(f"DGL's host {told.host}: {told.code} {told.err[-3000:]}")
    told_lines = (each.out.splitlines() for each in answers)  # DGL prints on its way out
    found = [json.loads(next(line for line in lines if line[:1] == "{")) for lines in told_lines]
    for of_host in found:
        of_host["epochs"] = [_in_their_time(epoch, made.slower) for epoch in of_host["epochs"]]
    return found


def _in_their_time(epoch: dict[str, float], slower: int) -> dict[str, float]:
    """Return DGL's seconds as hosts have them; the rest are counts and losses."""
    seconds = ("seconds", "sample", "rows", "train")
    return {key: value / slower if key in seconds else value for key, value in epoch.items()}


def _addresses(made: Hosts, folder: Path) -> Path:
    file = folder / "hosts.txt"
    file.write_text("".join(f"{made.address(host)} 30050\n" for host in range(made.num_hosts)))
    return file


def prepare(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Cut the graph for both sides, and return how much of it minibatches reach."""
    graph = products_like(
        args.nodes, args.steps * BATCH * args.hosts, communities=True, degree=args.degree
    )
    parts = part_of(graph, args.hosts)
    ours, peer = folder / "ours", folder / "peer"
    for made in (ours, peer):
        shutil.rmtree(made, ignore_errors=True)  # of a try that was cut off
        made.mkdir(parents=True)
    cut(graph, parts, args.hosts, ours)
    write_task(graph, parts, peer / "task")
    words = [args.dgl_python, PEER, "cut", peer / "task", args.hosts, peer / "dgl"]
    subprocess.run([str(word) for word in words], check=True, cwd=peer, stdout=subprocess.DEVNULL)
    shutil.rmtree(peer / "task")
    return reach_of(graph, parts, (1, min(32, args.steps)))


def measure_theirs(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return DGL's rows by number of samplers."""
    rows: dict[str, Any] = {}
    for samplers in SAMPLERS:
        told = theirs(folder, samplers, args)
        last = [each["epochs"][-1] for each in told]
        name = f"DistDGL, {samplers} samplers"
        rows[name] = {key: round(max(each[key] for each in last), 3) for key in last[0]}
        rows[name]["epochs"] = [round(each["seconds"], 2) for each in told[0]["epochs"]]
        rows[name]["peer"] = f"DGL {told[0]['dgl']}, torch {told[0]['torch']}"
        print(name, rows[name], flush=True)
    return rows


def measure_ours(parts: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return our rows by how many minibatches are fetched at once."""
    names = chosen(args.contestants)
    job = {
        "threads": args.threads,
        "device": "cpu",
        "contestants": names,
        "trained": names,
        "parts": str(parts),
    }
    told = on_hosts(job, args.hosts, args.mbit)
    rows = {}
    for name in names:
        rows[name] = {
            "seconds": round(max(each[name]["epoch_seconds"] for each in told), 3),
            "fetch": round(max(each[name]["fetch_seconds"] for each in told), 3),
            "feature_mb": round(sum(each[name]["feature_bytes"] for each in told) / 1e6, 1),
            "loss": round(told[0][name]["loss"], 4),
        }
        print(name, rows[name], flush=True)
    return rows


def main() -> None:
    """Measure both sides; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dgl-python", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="of a host")
    parser.add_argument("--folder", type=Path, help="where both cuts are kept, and taken from")
    parser.add_argument("--contestants", default=";".join(OURS), help="ours, with ; between")
    parser.add_argument("--prepare", action="store_true", help="cut, and end")
    args = parser.parse_args()
    if args.prepare and args.folder is None:
        parser.error("--prepare keeps its cuts in --folder F")
    for compile_kernels in (warm_up, warm_up_wire, warm_up_sampling):
        compile_kernels()
    with tempfile.TemporaryDirectory(prefix="siafu-distdgl-") as scratch:
        folder = (args.folder or Path(scratch)).resolve()
        asked = {name: getattr(args, name) for name in ("hosts", "nodes", "degree", "steps")}
        facts = folder / "reach.json"
        if not facts.exists():
            facts.write_text(json.dumps({"asked": asked, **prepare(folder, args)}))
        reach = json.loads(facts.read_text())
        if (cut_for := reach.pop("asked")) != asked:
            parser.error(f"{folder} was cut for {cut_for}, not for {asked}")
        if args.prepare:
            return
        rows = measure_ours(next((folder / "ours").iterdir()), args)
        rows |= measure_theirs(folder / "peer", args)
    peer = min(row["seconds"] for name, row in rows.items() if name.startswith("DistDGL"))
    for row in rows.values():
        row["times_distdgl"] = round(peer / row["seconds"], 2)
    about = {
        "benchmark": "distdgl",
        **{key: getattr(args, key) for key in ("hosts", "mbit", "nodes", "degree", "steps")},
        **reach,
        **machine(),
        "threads": args.threads,
        "slower": slower_by(args.hosts * args.threads),
        "rows": rows,
    }
    if args.json:
        append_json(args.json, about)
    print(json.dumps(about))


if __name__ == "__main__":
    main()
