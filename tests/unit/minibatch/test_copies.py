"""Minibatches that are copied ahead of training are those that would be copied when trained on."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.minibatch.copies import Copier
from siafu.minibatch.subgraph import Subgraph
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from tests.harness import RankPool

SETTINGS: list[dict[str, Any]] = [
    {"model": "sage"},
    {"model": "gcn", "norm": "batch"},
    {"model": "sage", "feature_bits": 8, "macrobatch": 3},
    {"model": "sage", "step_minibatches": 3, "seed_order": "global"},
]


def losses(world: World, folder: Path, settings: dict[str, Any], ahead: bool) -> list[float]:
    """Return the losses of two epochs, with minibatches copied ahead as on a GPU or not."""
    given = {"strategy": "batchgnn", "batch_size": 20, "hidden": 8, "epochs": 2} | settings
    training = begin(
        make_config(data="planted", ranks=world.size, **given).resolved(),
        open_shard(folder, world, place="host"),
    )
    feed = training.workload.network.feed
    if ahead:
        feed.sampler.copier = Copier(torch.device("cpu"), feed.decoded)
    found = []
    for _ in range(2):
        found.append(training.step())
        training.progress.epochs += 1
    training.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("siafu-copies")]
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_losses_are_the_same_to_the_bit(
    ranks: RankPool, tmp_path: Path, settings: dict[str, Any], size: int
) -> None:
    partition_graph(load("planted:300"), tmp_path / "parts", num_parts=size, method="hash")
    want, got = (
        ranks.run(losses, size, tmp_path / "parts", settings, ahead) for ahead in (False, True)
    )
    assert got == want


def subgraph(number: int, seeds: int = 2) -> Subgraph:
    ends = torch.tensor([0, 1, 3])
    edges = {"edge_weight": torch.arange(3.0) + number}
    index = torch.tensor([1, 2, 3], dtype=torch.int32)
    return Subgraph(number, torch.arange(4), (seeds, 4), ends, index, edges, (3,))


def test_one_is_copied_ahead_and_an_empty_one_never() -> None:
    picked: list[int] = []

    def pick(graph: Subgraph) -> dict[str, torch.Tensor]:
        picked.append(graph.number)
        return {"x": torch.full((4, 2), float(graph.number))}

    copier, graphs = Copier(torch.device("cpu"), dict), [subgraph(n, seeds=n % 4) for n in range(9)]
    copies = copier.begin(graphs, pick)
    for number in (1, 2, 5):  # 3 is one that this rank does not train on after all
        graph, columns = copies.take(graphs[number])
        assert (graph.number, float(columns["x"].sum())) == (number, 8.0 * number)
    copier.close()
    assert set(picked) <= {1, 2, 3, 5, 6}
    assert sorted(set(picked)) == sorted(picked), "each once"


def test_what_fails_there_is_raised_here() -> None:
    def pick(graph: Subgraph) -> dict[str, torch.Tensor]:
        raise OSError("the file is gone")

    copier, graph = Copier(torch.device("cpu"), dict), subgraph(1)
    copies = copier.begin([graph], pick)
    with pytest.raises(OSError, match="gone"):
        copies.take(graph)
    copier.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_copies_on_a_gpu_are_what_was_on_the_host() -> None:
    rows = {n: torch.randn(50_000, 64) for n in range(6)}
    copier, graphs = Copier(torch.device("cuda", 0), dict), [subgraph(n) for n in range(6)]
    copies = copier.begin(graphs, lambda graph: {"x": rows[graph.number]})
    for graph in graphs:
        there, columns = copies.take(graph)
        doubled = columns["x"] * 2  # on the stream of training, which waits for the copy
        assert there.index.is_cuda
        assert torch.equal(there.index.cpu(), graph.index)
        assert torch.equal(doubled.cpu(), rows[graph.number] * 2)
        assert torch.equal(there.edges["edge_weight"].cpu(), graph.edges["edge_weight"])
    copier.close()
