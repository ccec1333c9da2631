"""Budgets in a control group that ends whoever takes more: ingest, cut, training, predictions.

The kernel counts pages of files as the group's too, and every file of data is cold when a command
begins.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.cgroup import Group, NoGroupError, limited
from benchmarks.synthetic import write_tables
from siafu.graph import graph_from_edges
from siafu.options import read_bytes
from siafu.partitioning import partition_graph

NODES, FEATURES = 160_000, 2048
BEYOND_BYTES = 4 * NODES * FEATURES // 10
"""What runs may take beyond what they take on next to no data: a tenth of their features."""
AMPLE = "2GB"
TRAINING = ["--model", "sage", "--strategy", "batchgnn", "--fanout", "2,2", "--hidden", 8]
TRAINING += ["--batch-size", 20, "--epochs", 1, "--device", "cpu"]


def within(limit: int, *words: object) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command in a group of this limit, its data cold; return its end and the peak."""
    for file in (path for word in words if isinstance(word, Path) for path in word.rglob("*")):
        if file.suffix in (".npy", ".parquet"):
            _make_cold(file)
    try:
        with limited(limit) as group:
            return _run(group, [sys.executable, "-m", "siafu", *map(str, words), "--quiet"])
    except NoGroupError as error:
        pytest.skip(str(error))


def _run(group: Group, words: list[str]) -> tuple[subprocess.CompletedProcess[str], int]:
    done = subprocess.run(group.command(words), capture_output=True, text=True, check=False)
    return done, group.peak_bytes()


def _make_cold(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("verb", ["ingest", "partition"])
def test_the_budget_that_is_named_is_enough_where_it_is_enforced(tmp_path: Path, verb: str) -> None:
    source, target = tmp_path / "tables", tmp_path / "made"
    write_tables(source, nodes=40_000, edges=400_000, features=32)
    settings = ["--method", "streaming"] if verb == "partition" else []
    refused, _ = within(read_bytes(AMPLE), verb, source, target, *settings, "--memory", "100MB")
    assert refused.returncode == 2, refused.stderr
    named = re.search("give --memory ([0-9]+MB) or more", refused.stderr)
    assert named is not None, refused.stderr
    budget = ["--memory", named[1]]
    done, _ = within(read_bytes(named[1]), verb, source, target, *settings, *budget)
    assert done.returncode == 0, done.stderr[-2000:]


@dataclass(frozen=True)
class Bounds:
    """What the kernel allows a command, and what a rank of it is told."""

    limit: int
    memory: int


@pytest.fixture(scope="module")
def bounds(tmp_path_factory: pytest.TempPathFactory) -> Bounds:
    run = tmp_path_factory.mktemp("base") / "run"
    words = ["train", "planted:300", *TRAINING, "--memory", AMPLE, "--out", run]
    done, peak = within(read_bytes(AMPLE), *words)
    assert done.returncode == 0, done.stderr[-2000:]
    if not peak:
        pytest.skip("this kernel does not tell the peak of a group")
    rank = json.loads((run / "result.json").read_text())["peak_mb"][0]
    return Bounds(peak + BEYOND_BYTES, int(rank * 1e6) + BEYOND_BYTES)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of a graph with features of ten times what there is room for."""
    target, draw = tmp_path_factory.mktemp("large") / "parts", np.random.default_rng(0)
    source, destination = draw.integers(0, NODES, (2, NODES // 8))
    turn = np.arange(NODES) % 400
    graph = graph_from_edges(
        source,
        destination,
        NODES,
        x=np.broadcast_to(draw.standard_normal(FEATURES, np.float32), (NODES, FEATURES)),
        y=np.arange(NODES) % 7 % 2,
        num_classes=2,
        **{name: turn == k for k, name in enumerate(("train", "val", "test"))},
    )
    partition_graph(graph, target, num_parts=1)
    return target


@pytest.fixture(scope="module")
def run(parts: Path, bounds: Bounds) -> Path:
    """A run on these parts, trained and scored within the limit."""
    out, budget = parts.with_name("run"), ["--memory", bounds.memory]
    done, _ = within(bounds.limit, "train", parts, *TRAINING, *budget, "--out", out)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def test_features_of_ten_times_the_memory_are_trained_on_and_scored(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["sampling"]["on_disk"]
    assert result["score"]["test"] > 0


def test_features_of_ten_times_the_memory_are_predicted_from(
    run: Path, parts: Path, bounds: Bounds
) -> None:
    target = run.with_name("told")
    done, _ = within(bounds.limit, "infer", run, "--data", parts, "--out", target)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet")) == NODES
