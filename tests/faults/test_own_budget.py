"""Training, scores and predictions of a user's own model keep to `--memory` on minibatches."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from siafu.graph import graph_from_edges
from siafu.partitioning import partition_graph

NODES, EDGES = 20_000, 400_000
BEYOND_MB = 300
"""What a run may take beyond one on next to no data: messages of all edges are twice that."""
MODEL = """
import torch
from torch_geometric.nn import GATConv


class Gat(torch.nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim=2):
        super().__init__()
        self.first = GATConv(in_channels, 64, heads=2, edge_dim=edge_dim)
        self.last = GATConv(128, out_channels, edge_dim=edge_dim)

    def forward(self, x, edge_index, edge_attr):
        return self.last(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)
"""
TRAINING = ["--strategy", "batchgnn", "--fanout", "10,10", "--batch-size", 400, "--epochs", 1]
TRAINING += ["--steps-per-epoch", 5, "--device", "cpu"]


def siafu(*words: object) -> str:
    command = [sys.executable, "-m", "siafu", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def parts_of(target: Path, nodes: int, edges: int) -> Path:
    draw = np.random.default_rng(0)
    turn = np.arange(nodes) % 10
    graph = graph_from_edges(
        *draw.integers(0, nodes, (2, edges)),
        nodes,
        x=draw.standard_normal((nodes, 8), np.float32),
        edge_attr=draw.standard_normal((edges, 2), np.float32),
        y=turn % 3,
        num_classes=3,
        **{name: turn % 3 == k for k, name in enumerate(("train", "val", "test"))},
    )
    partition_graph(graph, target, num_parts=1)
    return target


def peak_mb(run: Path) -> float:
    return float(json.loads((run / "result.json").read_text())["peak_mb"][0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and what a rank takes on next to no data."""
    here = tmp_path_factory.mktemp("own")
    (here / "nets.py").write_text(MODEL)
    model = ["--model", f"{here / 'nets.py'}:Gat"]
    small = parts_of(here / "small.parts", 300, 3000)
    siafu("train", small, *model, *TRAINING, "--memory", "2GB", "--out", here / "small")
    return here


def test_an_own_model_scores_and_predicts_within_the_budget(folder: Path) -> None:
    budget = peak_mb(folder / "small") + BEYOND_MB
    parts, run = parts_of(folder / "parts", NODES, EDGES), folder / "run"
    model, memory = f"{folder / 'nets.py'}:Gat", ["--memory", int(budget * 1e6)]
    told = siafu("train", parts, "--model", model, *TRAINING, *memory, "--out", run)
    assert peak_mb(run) * 2**20 < budget * 1e6
    assert "with all their in-edges of 2 hops, in about" in told
    assert sum(pq.read_metadata(file).num_rows for file in run.rglob("*.parquet")) >= NODES


INFER = """
import sys
import siafu

run, out, model, memory = sys.argv[1:]
siafu.infer(run, out=out, model=model, memory=memory or None, quiet=True)
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_inference_keeps_to_a_budget_of_its_own(folder: Path) -> None:
    budget = peak_mb(folder / "small") + BEYOND_MB
    parts, model = parts_of(folder / "again.parts", NODES, EDGES), f"{folder / 'nets.py'}:Gat"
    run, peaks, answers = folder / "free", [], []
    siafu("train", parts, "--model", model, *TRAINING, "--inference", "none", "--out", run)
    for memory in ("", f"{budget}MB"):
        out = folder / f"answers {memory}"
        words = [sys.executable, "-c", INFER, str(run), str(out), model, memory]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) * 1024)
        answers.append(pq.read_table(out).sort_by("id"))
    assert peaks[1] < budget * 1e6 < peaks[0]
    assert answers[0].column("prediction") == answers[1].column("prediction")
