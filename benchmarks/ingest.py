"""How fast does a big edge table become a store, then parts, by threads, and in how much memory?

Run: python -m benchmarks.ingest [--edges 100000000] [--threads 1,16] [--json FILE]
Build and partition run in fresh processes, so that their peak resident memory is their own; stores
and parts have to be the same to the byte whatever the number of threads.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import append_json, machine
from siafu.graph import Graph, load_store, open_folder
from siafu.ingest import TableOptions, build_store, find_tables
from siafu.partitioning import open_parts, partition_store

_FILE_EDGES = 10_000_000
_GATE_ROWS = 20
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


def child(task: str, source: Path, target: Path, threads: int) -> dict[str, float]:
    """Return seconds and peak resident GiB of one task in a fresh process."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.ingest", "--task", task]
    command += ["--source", str(source), "--target", str(target)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_task(task: str, source: Path, target: Path) -> None:
    """Do one task and print its seconds and peak memory."""
    idle_gib = _peak_gib()
    start = time.perf_counter()
    if task == "build":
        build_store(find_tables(source, TableOptions()), target)
    else:
        partition_store(source, target, num_parts=_NUM_PARTS, method="streaming")
    seconds = time.perf_counter() - start
    figures = {"seconds": seconds, "peak_gib": _peak_gib(), "idle_gib": idle_gib}
    print(json.dumps(figures))


def _peak_gib() -> float:
    """Return this process's own peak: ru_maxrss also counts what the parent held at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def measure(
    folder: Path, *, num_edges: int, num_nodes: int, weights: bool, threads: list[int]
) -> dict[str, object]:
    """Return the figures of one run, its files in `folder`."""
    source = folder / "tables"
    make_tables(source, num_edges=num_edges, num_nodes=num_nodes, weights=weights)
    rows: list[dict[str, object]] = []
    seen = set[tuple[str, str]]()
    for count in threads:
        store, parts = folder / "store", folder / "parts"
        built = child("build", source, store, count)
        if not rows:
            gate(source, store)
        parted = child("partition", store, parts, count)
        both = built["seconds"] + parted["seconds"]
        quality = open_parts(parts).quality
        rows.append(
            {
                "threads": count,
                "build_seconds": round(built["seconds"], 2),
                "build_edges_per_second": round(num_edges / built["seconds"]),
                "build_peak_gib": round(built["peak_gib"], 3),
                "build_idle_gib": round(built["idle_gib"], 3),
                "partition_parts": _NUM_PARTS,
                "partition_seconds": round(parted["seconds"], 2),
                "partition_edges_per_second": round(num_edges / parted["seconds"]),
                "partition_peak_gib": round(parted["peak_gib"], 3),
                "edges_per_second": round(num_edges / both),
                "cut_fraction": round(quality.cut_fraction, 4),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr)
        seen.add((open_folder(store, "store").fingerprint, open_folder(parts, "parts").fingerprint))
        for made in (store, parts):
            shutil.rmtree(made)
    assert len(seen) == 1, "threads change the bytes"
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
    args = parser.parse_args()
    if args.task:
        run_task(args.task, args.source, args.target)
        return
    num_nodes = args.nodes or max(10, args.edges // 10)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        row = measure(
            Path(folder),
            num_edges=args.edges,
            num_nodes=num_nodes,
            weights=args.weights,
            threads=[int(count) for count in args.threads.split(",")],
        )
    if args.json:
        append_json(args.json, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
