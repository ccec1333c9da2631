"""An own model scores and predicts in pieces, where memory is limited, as on the whole graph."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks import pieces
from siafu.engine.networks.network import LateNetwork
from siafu.engine.networks.pieces import Pieces
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.networks.trial import reads_beyond
from siafu.errors import BudgetError
from siafu.graph import graph_from_edges
from siafu.minibatch import Feed, Room
from siafu.partitioning import partition_graph
from siafu.shard import ScratchRows, open_shard
from tests.harness import RankPool
from tests.parity.minibatch_steps import joined_logits, run_epochs

EXACT = {"rtol": 1e-10, "atol": 1e-12}
MODELS = Path(__file__).with_name("own_models.py").absolute()
# GCN reads the degrees of sources, which are whole one hop further out.
HOPS = {"WeightedSage": 2, "Attention": 2, "Gated": 2, "EdgeTypes": 2, "RequiredWeight": 3}
SIZES = [(1, 1), (9, 20), (10**6, 10**6)]
"""Nodes and edges of a piece: one seed at a time, a few, all."""


def sampled(name: str) -> dict[str, Any]:
    fanout = ",".join(["3"] * HOPS[name])
    settings = {"strategy": "batchgnn", "fanout": fanout, "layers": HOPS[name], "batch_size": 8}
    return settings | {"hidden": 8, "model": f"{MODELS}:{name}"}


def run_double(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return run_epochs(world, parts, settings, double=True)


def in_pieces(
    world: World,
    parts: Path,
    settings: dict[str, Any],
    size: tuple[int, int],
    place: str,
    *,
    double: bool = True,
) -> dict[str, Any]:
    """Return what `run_epochs` does, and seeds, nodes and edges of each piece."""
    found: list[tuple[int, int, int]] = []
    inferred = Pieces.rows

    def noting(self: Pieces, rows_R: torch.Tensor, width: int, compute: Any) -> Any:
        def noted(piece: Any, columns: Any) -> torch.Tensor:
            found.append((piece.num_seeds, piece.reached[-1], len(piece.index)))
            out: torch.Tensor = compute(piece, columns)
            return out

        return inferred(self, rows_R, width, noted)

    with (
        mock.patch.object(pieces, "_of_training", return_value=size),
        mock.patch.object(Pieces, "rows", noting),
        mock.patch.object(LateNetwork, "logits", side_effect=AssertionError("the whole graph")),
    ):
        got = run_epochs(world, parts, settings, place=place, double=double and place == "host")
    return got | {"pieces": found}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", HOPS)
def test_pieces_give_what_the_whole_graph_does(
    ranks: RankPool, parts_of, name: str, size: int
) -> None:
    settings, parts = sampled(name), parts_of("hash", size, True)
    want = ranks.run(run_double, size, parts, settings)
    for most in SIZES:
        got = ranks.run(in_pieces, size, parts, settings | {"memory": "9GB"}, most, "host")
        torch.testing.assert_close(joined_logits(got), joined_logits(want), **EXACT)
        for one in got:
            assert one["losses"] == want[0]["losses"]
            assert sum(seeds for seeds, _, _ in one["pieces"]) == len(one["logits"])
            nodes, edges = most
            assert all(n <= nodes and e <= edges for s, n, e in one["pieces"] if s > 1)
        counts = [len(one["pieces"]) for one in got]
        assert max(counts) == 1 if nodes == 10**6 else min(counts) > 2


@pytest.mark.parametrize("name", HOPS)
def test_pieces_of_a_graph_on_disk_are_those_in_memory(
    ranks: RankPool, parts_of, name: str
) -> None:
    settings, parts = sampled(name) | {"memory": "9GB"}, parts_of("hash", 2, True)
    want = ranks.run(run_epochs, 2, parts, sampled(name))
    got = ranks.run(in_pieces, 2, parts, settings, (9, 20), "disk")
    torch.testing.assert_close(joined_logits(got), joined_logits(want), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("place", ["device", "pinned", "host"])
def test_pieces_on_a_gpu_are_those_of_the_host(parts_of, place: str) -> None:
    settings, parts = sampled("Gated") | {"memory": "9GB"}, parts_of("hash", 1, True)
    want = run_epochs(World(), parts, settings)
    gpu = World(device=torch.device("cuda"))
    got = in_pieces(gpu, parts, settings | {"rows_on": place}, (9, 20), "host", double=False)
    assert len(got["pieces"]) > 2
    logits = joined_logits([got]).cpu(), joined_logits([want])
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["exact", "split"])
def test_epochs_are_scored_in_pieces_too(parts_of, kind: str) -> None:
    parts, settings = parts_of("hash", 1, True), sampled("Attention") | {"evaluate": kind}
    scores = []
    by_size = mock.patch.object(SampledNetwork, "seed_rows", side_effect=AssertionError("no limit"))
    for memory in (None, "9GB"):
        shard = open_shard(parts, World(), place="host")
        config = make_config(data="awkward", memory=memory, **settings).resolved()
        training = begin(config, shard)
        training.step()
        if memory is None:
            scores.append(training.workload.evaluate().scores)
        else:
            with by_size:
                scores.append(training.workload.evaluate().scores)
        training.close()
    assert scores[0] == scores[1]


def test_predictions_lie_on_disk_where_those_of_layers_would(parts_of, monkeypatch) -> None:
    shard = open_shard(parts_of("hash", 1, True), World(), place="host")
    config = make_config(data="awkward", memory="9GB", **sampled("Gated")).resolved()
    training = begin(config, shard)
    network = training.workload.network
    held = network.logits()
    network._inferred = None
    monkeypatch.setattr(Feed, "room", lambda *given, **more: Room(on_disk=True))
    rows = network.logit_rows()
    assert isinstance(rows, ScratchRows)
    assert network.embedding_rows() is rows, "its embeddings are what it returns"
    assert torch.equal(rows.slice(0, len(held)), held)
    training.close()


@pytest.mark.parametrize(
    ("name", "hops", "is_told"),
    # PyG's ChebConv adds up at the sources of edges: no hops are enough.
    [
        ("GraphSAGE", 1, True),
        ("GraphSAGE", 2, False),
        ("GCN", 2, True),
        ("GCN", 3, False),
        ("ChebConv", 4, True),
        ("GAT", 2, False),
    ],
)
def test_models_that_read_more_than_is_drawn_are_found_out(
    parts_of, name: str, hops: int, is_told: bool
) -> None:
    shard = open_shard(parts_of("hash", 1, False), World(), place="host")
    sizes = (6, 3, 2) if name == "ChebConv" else (6, 8, 2, 3)
    torch.manual_seed(0)
    model = getattr(pyg, name)(*sizes)
    assert reads_beyond(model, torch.randn(64, 6), shard, hops) == is_told


def test_an_answer_that_differs_from_the_whole_graphs_is_told(parts_of) -> None:
    for fanout, is_told in (("3,3", True), ("3,3,3", False)):
        said: list[str] = []
        settings = sampled("RequiredWeight") | {"fanout": fanout, "layers": fanout.count("3")}
        shard = open_shard(parts_of("hash", 1, True), World(), place="host")
        config = make_config(data="awkward", memory="9GB", **settings).resolved()
        begin(config, shard, say=said.append).close()
        assert any("reads more of the graph than" in line for line in said) == is_told
        assert any("in about" in line and "piece" in line for line in said)


def test_a_node_too_large_for_the_budget_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = 20_000
    source = np.arange(1, nodes)
    graph = graph_from_edges(
        np.concatenate([source, source - 1]),
        np.concatenate([source * 0, source]),
        nodes,
        x=np.ones((nodes, 4), np.float32),
        y=np.arange(nodes) % 3,
        num_classes=3,
        **{name: np.arange(nodes) % 3 == k for k, name in enumerate(("train", "val", "test"))},
    )
    partition_graph(graph, tmp_path / "parts", num_parts=1)
    monkeypatch.setattr("siafu.engine.networks.sampled_memory.memory_in_use", lambda world: 0)
    monkeypatch.setattr("siafu.engine.networks.sampled_memory.RUNTIME_BYTES", 0)
    shard = open_shard(tmp_path / "parts", World(), place="host")
    settings: dict[str, Any] = sampled("WeightedSage") | {"model": f"{MODELS}:OptionalWeight"}

    def begun(memory: str, **more: str) -> None:
        config = make_config(data="hub", memory=memory, **settings, **more).resolved()
        begin(config, shard).close()

    with pytest.raises(BudgetError, match="too small") as caught:
        begun("1MB")
    assert "for the node of most edges at inference" in caught.value.seen
    told = re.search(r"--memory ([0-9.]+GB)", caught.value.fix)
    assert told is not None
    begun(told[1])
    begun("1MB", inference="none")
