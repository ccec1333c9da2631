"""How fast does a big edge table become a store, then parts, by threads and ranks, in what memory?

Run: python -m benchmarks.ingest [--edges 100000000] [--threads 1,16] [--ranks 4,16] [--json FILE]
Build and partition run in fresh processes, so that their peak resident memory is their own; stores
and parts have to be the same to the byte whatever the number of threads and ranks. Ranks divide the
cores among them; seconds count from when all of them are there.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import append_json, machine
from siafu.graph import Crew, Graph, Help, load_store, open_folder
from siafu.ingest import TableOptions, build_store, find_tables
from siafu.ingest.tables.build import table_helps
from siafu.launch.crew import crew_of_ranks
from siafu.launch.cut import Allowance, SourceReading, cut_helps, cut_source
from siafu.memory import Budget
from siafu.partitioning import Cut, open_parts

_FILE_EDGES = 10_000_000
_GATE_ROWS = 20
_WARM_EDGES = 5_000_000
"""Enough for the code of large graphs: out-edges in files, several pieces."""
_NUM_PARTS = 4


def make_tables(folder: Path, *, num_edges: int, num_nodes: int, weights: bool) -> None:
    """Write the edges as Parquet files; a third of the sources are hubs."""
    (folder / "edges").mkdir(parents=True)

    def make(start: int) -> None:
        generator = np.random.default_rng([7, start])
        count = min(_FILE_EDGES, num_edges - start)
        dst = generator.integers(num_nodes, size=count)
        skewed = (num_nodes * generator.random(count) ** 3).astype(np.int64)
        src = np.where(generator.random(count) < 1 / 3, skewed, generator.permutation(dst))
        columns = {"src": src, "dst": dst}
        if weights:
            columns["weight"] = generator.random(count, dtype=np.float32)
        pq.write_table(pa.table(columns), folder / "edges" / f"{start:012d}.parquet")

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(make, range(0, num_edges, _FILE_EDGES)))
    ids = np.arange(num_nodes)
    pq.write_table(pa.table({"id": ids, "label": ids % 10}), folder / "nodes.parquet")


def gate(folder: Path, store: Path) -> Graph:
    """Return the store; no time is reported where its rows differ from the source."""
    graph = load_store(store)
    rows = np.random.default_rng(0).integers(graph.num_nodes, size=_GATE_ROWS)
    want: dict[int, list[int]] = {int(row): [] for row in rows}
    num_edges = 0
    for file in sorted((folder / "edges").iterdir()):
        for batch in pq.ParquetFile(file).iter_batches(1 << 20, columns=["src", "dst"]):
            src, dst = batch["src"].to_numpy(), batch["dst"].to_numpy()
            num_edges += len(src)
            for at in np.flatnonzero(np.isin(dst, rows)):
                want[int(dst[at])].append(int(src[at]))
    assert num_edges == graph.num_edges, f"{graph.num_edges} of {num_edges} edges in the store"
    for row, sources in want.items():
        got = graph.src[graph.indptr[row] : graph.indptr[row + 1]].tolist()
        assert got == sources, f"row {row} differs from the source"
    return graph


def child(task: str, source: Path, target: Path, threads: int, ranks: int) -> dict[str, Any]:
    """Return seconds and peak resident GiB of one task in a fresh process, or in several."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.ingest", "--task", task]
    if ranks > 1:
        started = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, "-m", *started, *command[1:]]
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    command += ["--source", str(source), "--target", str(target)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (figures,) = (row for row in told if "seconds" in row)
    return figures | {
        "peak_gib": max(row["peak_gib"] for row in told),
        "all_gib": sum(row["peak_gib"] for row in told),
    }


class _Phases:
    """Seconds of each phase, told by whoever tells how far it is."""

    def __init__(self) -> None:
        self.seconds, self._now, self._since = dict[str, float](), "start", time.perf_counter()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Note that a phase goes on."""
        del done, total
        now = time.perf_counter()
        self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        self._now, self._since = phase, now


def run_task(task: str, source: Path, target: Path) -> None:
    """Do one task, or a rank's share of it, and print its seconds and peak memory."""
    idle_gib, options = _peak_gib(), TableOptions()
    figures: dict[str, Any] = {"idle_gib": idle_gib}

    def helps(crew: Crew) -> Mapping[str, Help]:
        if task == "build":
            return table_helps(source, options)
        return cut_helps(source, SourceReading(), Budget(), crew)

    with crew_of_ranks(f"{task} {source}", helps) as crew:
        if crew is not None:
            phases, start = _Phases(), time.perf_counter()
            if task == "build":
                build_store(find_tables(source, options), target, progress=phases, crew=crew)
            else:
                cut = Cut(num_parts=_NUM_PARTS, method="streaming")
                allowance = Allowance(crew=crew, progress=phases)
                cut_source(source, target, cut, allowance=allowance)
            figures["seconds"] = time.perf_counter() - start
            phases("end", 0, None)
            figures["phases"] = {name: round(t, 2) for name, t in phases.seconds.items()}
    # In one piece: ranks share where they write to.
    sys.stdout.write(json.dumps(figures | {"peak_gib": _peak_gib()}) + "\n")
    sys.stdout.flush()


def _peak_gib() -> float:
    """Return this process's own peak: ru_maxrss also counts what the parent held at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _compile(folder: Path, weights: bool) -> None:
    """Have every kernel compiled, which later processes load, before anything is timed."""
    make_tables(folder, num_edges=_WARM_EDGES, num_nodes=_WARM_EDGES // 10, weights=weights)
    child("build", folder, folder / "store", 1, 1)
    child("partition", folder / "store", folder / "parts", 1, 1)
    shutil.rmtree(folder)


def measure(
    folder: Path,
    *,
    num_edges: int,
    num_nodes: int,
    weights: bool,
    layouts: list[tuple[int, int]],
) -> dict[str, object]:
    """Return the figures of all layouts, (ranks, threads of each), its files in `folder`."""
    _compile(folder / "warm", weights)
    source = folder / "tables"
    make_tables(source, num_edges=num_edges, num_nodes=num_nodes, weights=weights)
    rows: list[dict[str, object]] = []
    seen = set[tuple[str, str]]()
    for ranks, count in layouts:
        store, parts = folder / "store", folder / "parts"
        built = child("build", source, store, count, ranks)
        if not rows:
            gate(source, store)
        parted = child("partition", store, parts, count, ranks)
        both = built["seconds"] + parted["seconds"]
        quality = open_parts(parts).quality
        rows.append(
            {
                "ranks": ranks,
                "threads": count,
                "build_seconds": round(built["seconds"], 2),
                "build_edges_per_second": round(num_edges / built["seconds"]),
                "build_peak_gib": round(built["peak_gib"], 3),
                "build_all_ranks_gib": round(built["all_gib"], 3),
                "build_idle_gib": round(built["idle_gib"], 3),
                "build_phases": built["phases"],
                "partition_parts": _NUM_PARTS,
                "partition_seconds": round(parted["seconds"], 2),
                "partition_edges_per_second": round(num_edges / parted["seconds"]),
                "partition_peak_gib": round(parted["peak_gib"], 3),
                "partition_all_ranks_gib": round(parted["all_gib"], 3),
                "partition_phases": parted["phases"],
                "edges_per_second": round(num_edges / both),
                "cut_fraction": round(quality.cut_fraction, 4),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr)
        seen.add((open_folder(store, "store").fingerprint, open_folder(parts, "parts").fingerprint))
        for made in (store, parts):
            shutil.rmtree(made)
    assert len(seen) == 1, "threads or ranks change the bytes"
    sizes = {"benchmark": "ingest", "edges": num_edges, "nodes": num_nodes}
    return sizes | {"rows": rows} | machine()


def main() -> None:
    """Measure, or do one task of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--nodes", type=int, default=None, help="a tenth of the edges if left out")
    parser.add_argument("--weights", action="store_true", help="edges carry a weight column")
    parser.add_argument("--folder", type=Path, default=None, help="where the files go meanwhile")
    parser.add_argument("--json", type=Path, default=None, help="append the result to this file")
    parser.add_argument("--task", choices=["build", "partition"], help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", default=str(os.cpu_count()), help="one run for each")
    parser.add_argument("--ranks", default="", help="one run for each, which divide the cores")
    args = parser.parse_args()
    if args.task:
        run_task(args.task, args.source, args.target)
        return
    num_nodes = args.nodes or max(10, args.edges // 10)
    layouts = [(1, int(count)) for count in args.threads.split(",")]
    cores = os.cpu_count() or 1
    layouts += [(int(n), max(1, cores // int(n))) for n in args.ranks.split(",") if n]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        row = measure(
            Path(folder),
            num_edges=args.edges,
            num_nodes=num_nodes,
            weights=args.weights,
            layouts=layouts,
        )
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
