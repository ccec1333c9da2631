"""Tables and stores that the ranks of torchrun turn into parts together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.graph import open_folder
from siafu.partitioning import open_parts
from tests.command import Command

ENDS_WITHIN = 300.0
"""Each rank imports torch; the machine may be busy with other tests."""


def _tables(folder: Path, *, num_edges: int, num_nodes: int = 3000, ids_are: str = "close") -> Path:
    (folder / "edges").mkdir(parents=True)
    rng = np.random.default_rng(0)
    ids = rng.permutation(num_nodes) * 3
    if ids_are != "close":
        ids = ids * 10**9
    if ids_are == "text":
        ids = ids.astype(str).astype(object) + "x"
    gaps = np.where(rng.random(num_nodes) < 0.1, np.nan, rng.random(num_nodes))
    nodes = {"id": ids, "label": np.arange(num_nodes) * 7 % 5, "a": gaps}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    for number in range(3):
        source, destination = ids[rng.integers(0, num_nodes, (2, num_edges // 3))]
        source[:2] = "1" if ids_are == "text" else 1  # no node has it: a few edges are dropped
        edges = {"src": source, "dst": destination, "cost": rng.random(len(source))}
        file = folder / "edges" / f"{number}.parquet"
        pq.write_table(pa.table(edges), file, row_group_size=num_edges // 20)
    return folder


def _torchrun(ranks: int, *words: object, here: Path) -> subprocess.Popen[str]:
    agent = ["torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "-m", "siafu"]
    return subprocess.Popen(
        [*map(str, (sys.executable, "-m", *agent, *words))],
        cwd=here,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _told(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = command.communicate(timeout=ENDS_WITHIN)
    return command.returncode, out, err


def _fingerprints(target: Path) -> list[str]:
    parts = open_parts(target)
    parts.verify()
    folders = [parts.folder, *(parts.part(part) for part in range(parts.num_parts))]
    return [folder.fingerprint for folder in folders]


@pytest.mark.parametrize(("ranks", "ids_are"), [(2, "close"), (3, "scattered"), (4, "text")])
def test_ranks_make_the_store_and_the_parts_of_one_process(
    siafu: Command, ranks: int, ids_are: str
) -> None:
    tables = _tables(siafu.here / "tables", num_edges=60_000, ids_are=ids_are)
    asked = ("--parts", 3, "--method", "streaming", "--undirected", "--quiet", "--json")
    code, out, err = _told(_torchrun(ranks, "partition", tables, "ours", *asked, here=siafu.here))
    assert code == 0, err
    assert siafu("partition", tables, "whole", *asked).code == 0
    assert _fingerprints(siafu.here / "ours") == _fingerprints(siafu.here / "whole")
    assert [line for line in out.splitlines() if line.startswith("{")].__len__() == 1
    code, _, err = _told(_torchrun(ranks, "ingest", tables / "edges", "shared", here=siafu.here))
    assert code == 0, err
    assert siafu("ingest", tables / "edges", "alone").code == 0
    made = [open_folder(siafu.here / name, "store").fingerprint for name in ("shared", "alone")]
    assert made[0] == made[1]
    assert not list(siafu.here.glob("*.partial"))


def test_a_cut_whose_rank_was_killed_goes_on_on_other_ranks(siafu: Command) -> None:
    tables = _tables(siafu.here / "tables", num_edges=3_000_000, num_nodes=60_000)
    asked = ("--parts", 2, "--method", "streaming", "--quiet")
    command = _torchrun(3, "partition", tables, "ours", *asked, here=siafu.here)
    spans = siafu.here / "ours.partial" / "store.partial" / "scratch" / "buckets" / "1"
    latest = time.monotonic() + ENDS_WITHIN
    while not spans.exists():
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < latest
        time.sleep(0.005)
    for process in psutil.Process(command.pid).children(recursive=True):
        if process.environ().get("RANK") == "1":
            process.send_signal(signal.SIGKILL)
            break
    code, _, err = _told(command)
    assert code != 0
    assert "SIGKILL" in err or "-9" in err
    assert not (siafu.here / "ours").exists()
    assert (siafu.here / "ours.partial").exists()
    code, _, err = _told(_torchrun(2, "partition", tables, "ours", *asked, here=siafu.here))
    assert code == 0, err
    assert siafu("partition", tables, "whole", *asked).code == 0
    assert _fingerprints(siafu.here / "ours") == _fingerprints(siafu.here / "whole")
    assert not list(siafu.here.glob("*.partial"))


def test_wrong_data_that_a_helping_rank_finds_is_told_once(siafu: Command) -> None:
    tables = _tables(siafu.here / "tables", num_edges=6_000)
    words = pa.table({"src": ["a"], "dst": ["b"], "cost": [1.0]})
    pq.write_table(words, tables / "edges" / "3.parquet")
    code, _, err = _told(_torchrun(2, "ingest", tables, "store", here=siafu.here))
    assert code != 0
    assert "error:" in err
    assert "fix:" in err
    assert not (siafu.here / "store").exists()
    assert not list(siafu.here.glob("*.partial"))


def test_sources_that_one_rank_reads_are_not_read_by_all(siafu: Command) -> None:
    asked = ("partition", "planted:200", "ours", "--parts", 2, "--quiet", "--json")
    code, out, err = _told(_torchrun(2, *asked, here=siafu.here))
    assert code == 0, err
    assert "One rank does all" in err
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(told) == 1
