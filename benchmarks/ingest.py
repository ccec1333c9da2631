"""How fast does a big edge table become a store, then parts, by threads and ranks, in what memory?

Run: python -m benchmarks.ingest [--edges 100000000] [--threads 1,16] [--ranks 4,16]
    [--ids dense|scattered|text] [--json FILE]
Build and partition run in fresh processes, so that their peak resident memory is their own; stores
and parts have to be the same to the byte whatever the number of threads and ranks. Ranks divide the
cores among them; seconds count from when all of them are there. Pages of
files can be shared and dropped: `own` memory is without them, as seen every few milliseconds.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STATUS = Path("/proc/self/status")
_LOOK_SECONDS = 0.02


def ids_of(numbers: np.ndarray[Any, Any], kind: str) -> pa.Array:
    """Return the ids of nodes by their number: the same, far apart, or words."""
    if kind == "dense":
        return pa.array(numbers)
    apart = pa.array((numbers.astype(np.uint64) * _SPREAD).view(np.int64))
    if kind == "scattered":
        return apart
    return pc.binary_join_element_wise("node", apart.cast(pa.string()), "")


def make_tables(
    folder: Path, *, num_edges: int, num_nodes: int, weights: bool, ids: str = "dense"
) -> None:
    """Write the edges as Parquet files; a third of the sources are hubs."""
    (folder / "edges").mkdir(parents=True)

    def make(start: int) -> None:
        generator = np.random.default_rng([7, start])
        count = min(_FILE_EDGES, num_edges - start)
        dst = generator.integers(num_nodes, size=count)
        skewed = (num_nodes * generator.random(count) ** 3).astype(np.int64)
        src = np.where(generator.random(count) < 1 / 3, skewed, generator.permutation(dst))
        columns = {"src": ids_of(src, ids), "dst": ids_of(dst, ids)}
        if weights:
            columns["weight"] = generator.random(count, dtype=np.float32)
        pq.write_table(pa.table(columns), folder / "edges" / f"{start:012d}.parquet")

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(make, range(0, num_edges, _FILE_EDGES)))
    numbers = np.arange(num_nodes)
    nodes = {"id": ids_of(numbers, ids), "label": numbers % 10}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")


def gate(folder: Path, store: Path, ids: str) -> Graph:
    """Return the store; no time is reported where its rows differ from the source."""
    graph = load_store(store)
    rows = np.random.default_rng(0).integers(graph.num_nodes, size=_GATE_ROWS)
    names = ids_of(rows, ids)
    want: dict[Any, list[Any]] = {name: [] for name in names.to_pylist()}
    num_edges = 0
    for file in sorted((folder / "edges").iterdir()):
        for batch in pq.ParquetFile(file).iter_batches(1 << 20, columns=["src", "dst"]):
            num_edges += batch.num_rows
            found = batch.filter(pc.is_in(batch["dst"], names))
            for src, dst in zip(found["src"].to_pylist(), found["dst"].to_pylist(), strict=True):
                want[dst].append(src)
    assert num_edges == graph.num_edges, f"{graph.num_edges} of {num_edges} edges in the store"
    for row, name in zip(rows, names.to_pylist(), strict=True):
        got = ids_of(graph.src[graph.indptr[row] : graph.indptr[row + 1]], ids).to_pylist()
        assert got == want[name], f"row {row} differs from the source"
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
    told.sort(key=lambda row: "seconds" not in row)  # rank 0 first
    return told[0] | {
        "peak_gib": max(row["peak_gib"] for row in told),
        "all_gib": sum(row["peak_gib"] for row in told),
        "own_gib": [round(row["own_gib"], 3) for row in told],
    }


class _Phases:
    """Seconds of each phase, told by whoever tells how far it is."""

    def __init__(self) -> None:
        self.seconds, self.now = dict[str, float](), "start"
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._since = time.perf_counter()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Note that a phase goes on."""
        del done, total
        now = time.perf_counter()
        self.seconds[self.now] = self.seconds.get(self.now, 0.0) + now - self._since
        self.now, self._since = phase, now


class _Watch:
    """The most that this process held of its own, beside pages of files, in each phase."""

    def __init__(self, phases: _Phases) -> None:
        self.gib, self._phases = dict[str, float](), phases
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            phase = self._phases.now
            self.gib[phase] = max(self.gib.get(phase, 0.0), _status_gib("RssAnon"))


def run_task(task: str, source: Path, target: Path) -> None:
    """Do one task, or a rank's share of it, and print its seconds and peak memory."""
    idle_gib, options = _peak_gib(), TableOptions()
    figures: dict[str, Any] = {"idle_gib": idle_gib}
    phases = _Phases()

    def helps(crew: Crew) -> Mapping[str, Help]:
        if task == "build":
            return table_helps(source, options)
        return cut_helps(source, SourceReading(), Budget(), crew)

    with _Watch(phases) as watch, crew_of_ranks(f"{task} {source}", helps) as crew:
        if crew is not None:
            phases.begin()
            start = time.perf_counter()
            if task == "build":
                build_store(find_tables(source, options), target, progress=phases, crew=crew)
            else:
                cut = Cut(num_parts=_NUM_PARTS, method="streaming")
                allowance = Allowance(crew=crew, progress=phases)
                cut_source(source, target, cut, allowance=allowance)
            figures["seconds"] = time.perf_counter() - start
            phases("end", 0, None)
            figures["phases"] = {name: round(t, 2) for name, t in phases.seconds.items()}
            figures["own_by_phase"] = {name: round(n, 3) for name, n in watch.gib.items()}
    figures |= {"peak_gib": _peak_gib(), "own_gib": max(watch.gib.values(), default=0.0)}
    # In one piece: ranks share where they write to.
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def _peak_gib() -> float:
    """Return this process's own peak: ru_maxrss also counts what the parent held at the fork."""
    if _STATUS.exists():
        return _status_gib("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _compile(folder: Path, weights: bool, ids: str) -> None:
    """Have every kernel compiled, which later processes load, before anything is timed."""
    make_tables(
        folder, num_edges=_WARM_EDGES, num_nodes=_WARM_EDGES // 10, weights=weights, ids=ids
    )
    child("build", folder, folder / "store", 1, 1)
    child("partition", folder / "store", folder / "parts", 1, 1)
    shutil.rmtree(folder)


def _status_gib(name: str) -> float:
    """Return what the kernel says of this process, 0 where there is no such word."""
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(row.split()[1]) * 1024 / 2**30 for row in lines if row.startswith(name)), 0.0)


def measure(
    folder: Path,
    *,
    num_edges: int,
    num_nodes: int,
    weights: bool,
    ids: str,
    layouts: list[tuple[int, int]],
) -> dict[str, object]:
    """Return the figures of all layouts, (ranks, threads of each), its files in `folder`."""
    _compile(folder / "warm", weights, ids)
    source = folder / "tables"
    make_tables(source, num_edges=num_edges, num_nodes=num_nodes, weights=weights, ids=ids)
    rows: list[dict[str, object]] = []
    seen = set[tuple[str, str]]()
    for ranks, count in layouts:
        store, parts = folder / "store", folder / "parts"
        built = child("build", source, store, count, ranks)
        if not rows:
            gate(source, store, ids)
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
                "build_own_gib": built["own_gib"],
                "build_own_by_phase": built["own_by_phase"],
                "build_phases": built["phases"],
                "partition_parts": _NUM_PARTS,
                "partition_seconds": round(parted["seconds"], 2),
                "partition_edges_per_second": round(num_edges / parted["seconds"]),
                "partition_peak_gib": round(parted["peak_gib"], 3),
                "partition_all_ranks_gib": round(parted["all_gib"], 3),
                "partition_own_gib": parted["own_gib"],
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
    sizes = {"benchmark": "ingest", "edges": num_edges, "nodes": num_nodes, "ids": ids}
    return sizes | {"rows": rows} | machine()


def main() -> None:
    """Measure, or do one task of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--nodes", type=int, default=None, help="a tenth of the edges if left out")
    parser.add_argument("--ids", choices=["dense", "scattered", "text"], default="dense")
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
            ids=args.ids,
            layouts=layouts,
        )
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
