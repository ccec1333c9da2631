"""Cutting tables in processes that are killed again and again, each a little further.

Run: python -m tests.faults.kill_chain FOLDER. Prints one JSON object: what the parts of each chain
were like, beside those of a process that was left alone.
"""

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from siafu.files import write_text_atomically
from siafu.graph import partial as partial_module
from siafu.ingest import TableOptions
from siafu.ingest.tables import edges
from siafu.launch.cut import SourceReading, cut_source
from siafu.partitioning import Cut, chunks, open_parts

MOST_PROCESSES = 150


def make_tables(folder: Path) -> None:
    """Write two files of typed edges over text ids, and nodes with features and a split."""
    rng = np.random.default_rng(0)
    n, e = 61, 700
    (folder / "edges").mkdir(parents=True)
    names = np.array([f"v{number:03d}" for number in range(n)])
    columns = {"id": names, "label": rng.integers(0, 3, n), "a": rng.random(n)}
    pq.write_table(pa.table(columns), folder / "nodes.parquet")
    source, destination = rng.integers(0, n, (2, e))
    destination[: e // 4] = 7  # a hub, whose row spans pieces
    kinds = np.array(["likes", "knows"])[rng.integers(0, 2, e)]
    table = pa.table({"src": names[source], "dst": names[destination], "type": kinds})
    pq.write_table(table.slice(0, 300), folder / "edges" / "0.parquet", row_group_size=70)
    pq.write_table(table.slice(300), folder / "edges" / "1.parquet")


def cut(tables: Path, target: Path) -> None:
    """Cut the tables into 3 parts, in pieces so small that every boundary is crossed."""
    options = TableOptions(bucket_edges=1200, piece_edges=250)
    reading = SourceReading(undirected=True, options=options)
    cut_source(tables, target, Cut(num_parts=3, method="streaming", seed=1), reading)


def fingerprints(target: Path) -> list[str]:
    """Return the checksums of all contents: the folder's own, and each part's."""
    parts = open_parts(target)
    return [parts.folder.fingerprint, *(parts.part(part).fingerprint for part in range(3))]


def kill_at_state(number: int, *, before: bool) -> None:
    """End this process by SIGKILL around the writing of its n-th state."""
    numbers = count(1)

    def write(path: Path, text: str) -> None:
        mine = path.name == "state.json" and next(numbers) == number
        if mine and before:
            os.kill(os.getpid(), signal.SIGKILL)
        write_text_atomically(path, text)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    partial_module.write_text_atomically = write  # type: ignore[attr-defined]


def chain(tables: Path, target: Path, number: int, *, before: bool) -> dict[str, object]:
    """Return how many processes it took, the steps at which they died, and the parts."""
    steps: set[str] = set()
    for processes in range(1, MOST_PROCESSES):
        child = os.fork()
        if child == 0:
            kill_at_state(number, before=before)
            cut(tables, target)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, status
            left = [path.name for path in target.parent.iterdir() if path != target]
            made = fingerprints(target)
            return {"processes": processes, "steps": sorted(steps), "left": left, "made": made}
        for state in target.parent.rglob("state.json"):
            steps |= json.loads(state.read_text())["steps"].keys()
    raise AssertionError("no end")


def main() -> None:
    """Run the chains and print what came out."""
    folder = Path(sys.argv[1])
    partial_module.STEP_SECONDS = partial_module.NOTE_SECONDS = 0.0
    chunks.EDGES_AT_ONCE, edges._PIECES_AT_ONCE = 600, 1
    chunks._FEWEST_PIECES = 3
    make_tables(folder / "tables")
    cut(folder / "tables", folder / "whole" / "x.parts")
    chains = {
        "just after each state": chain(
            folder / "tables", folder / "after" / "x.parts", 1, before=False
        ),
        "just before every fifth": chain(
            folder / "tables", folder / "before" / "x.parts", 5, before=True
        ),
    }
    print(json.dumps({"whole": fingerprints(folder / "whole" / "x.parts"), "chains": chains}))


if __name__ == "__main__":
    main()
