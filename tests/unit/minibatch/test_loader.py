"""The loader: PyG's shape, seeds by row, mask or id, and every seed once an epoch."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.errors import ConfigError, DataError
from siafu.graph import TextIds, graph_from_edges
from siafu.minibatch import Macrobatch, SampledData, loader
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from tests.parity.graphs import awkward_graph


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """The awkward graph, whole."""
    return shard_of(awkward_graph(weighted=True), tmp_path_factory.mktemp("whole"))


def shard_of(graph: siafu.Graph, folder: Path) -> Shard:
    part_of = np.zeros(graph.num_nodes, np.int32)
    write_parts(graph, part_of, folder / "g.parts", num_parts=1, method="hash", seed=0)
    return open_shard(folder / "g.parts", World())


def test_minibatches_have_pygs_shape(shard: Shard) -> None:
    graph = awkward_graph(weighted=True)
    edges = set(map(tuple, graph.edge_index().T.tolist()))
    mask = torch.zeros(41, dtype=torch.bool)
    mask[shard.train] = True
    seen = []
    with siafu.MinibatchLoader(shard, [3, 2], batch_size=4, input_nodes=mask) as batches:
        assert len(batches) == -(-len(shard.train) // 4)
        for batch in batches:
            assert isinstance(batch, Data)
            size, ids = batch.batch_size, batch.n_id.numpy()
            assert len(np.unique(ids)) == len(ids) == sum(batch.num_sampled_nodes)
            assert batch.num_sampled_nodes[0] == size
            assert sum(batch.num_sampled_edges) == batch.edge_index.size(1) == batch.num_edges
            assert set(map(tuple, ids[batch.edge_index.numpy()].T.tolist())) <= edges
            assert torch.equal(batch.x, torch.from_numpy(graph.x[ids]))
            assert batch.y.tolist() == graph.y[ids[:size]].tolist()
            assert torch.equal(shard.train[batch.input_id], batch.n_id[:size])
            assert len(batch.edge_weight) == len(batch.edge_attr) == batch.num_edges
            seen += ids[:size].tolist()
    assert sorted(seen) == shard.train.tolist()


def test_trimmed_layers_give_the_seeds_the_same_rows(shard: Shard) -> None:
    convs = [SAGEConv(6, 5), SAGEConv(5, 4)]
    with siafu.MinibatchLoader(shard, [4, 3], batch_size=7) as batches:
        batch = next(iter(batches))
    whole, x, edge_index = batch.x, batch.x, batch.edge_index
    for number, conv in enumerate(convs):
        x, edge_index, _ = trim_to_layer(
            number, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
        )
        x, whole = conv(x, edge_index), conv(whole, batch.edge_index)
    torch.testing.assert_close(x[: batch.batch_size], whole[: batch.batch_size])


def test_epochs_differ_and_macrobatches_do_not_matter(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_pyg_data", lambda: None)  # as where PyG is not installed
    with (
        siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=1) as one,
        siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=3) as many,
    ):
        pairs = list(zip(one, many, strict=True))
        assert all(isinstance(batch, SampledData) for pair in pairs for batch in pair)
        for first, second in pairs:
            assert torch.equal(first.n_id, second.n_id)
            assert torch.equal(first.edge_index, second.edge_index)
        again = [batch.to("cpu").n_id for batch in one]
        assert not all(torch.equal(a, b[0].n_id) for a, b in zip(again, pairs, strict=True))
        one.epoch = 0
        assert all(torch.equal(a.n_id, b[0].n_id) for a, b in zip(one, pairs, strict=True))


def test_minibatches_built_in_turn_are_those_built_ahead(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=1) as ahead:
        want = [batch.n_id for batch in ahead]
    with siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=1) as in_turn:
        sampler, built = in_turn._feed.sampler, []
        build = sampler.build
        monkeypatch.setattr(sampler, "build", lambda *given: built.append(1) or build(*given))
        sampler.is_ahead = False
        for number, batch in enumerate(in_turn):
            assert len(built) == number + 1
            assert torch.equal(batch.n_id, want[number])


def addresses_of(macrobatches: Iterator[Macrobatch]) -> list[list[int]]:
    return [each.rows.addresses_U.tolist() for each in macrobatches]


def test_start_of_the_next_epoch_is_built_before_this_one_ends(shard: Shard) -> None:
    with siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=2) as loader:
        sampler = loader._feed.sampler
        want = [addresses_of(sampler.macrobatches(epoch, 2)) for epoch in (1, 2)]
        first = addresses_of(sampler.macrobatches(1, 2, goes_on=True))
        sampler.settle()
        epoch, size, begun = sampler._begun
        assert (epoch, size) == (2, 2)
        assert begun.done()
        assert begun.result()[0].rows.addresses_U.tolist() == want[1][0]
        assert [first, addresses_of(sampler.macrobatches(2, 2))] == want
        # What was begun for another epoch is dropped.
        addresses_of(sampler.macrobatches(1, 2, goes_on=True))
        assert addresses_of(sampler.macrobatches(1, 2)) == want[0]


def test_two_loops_over_one_loader_do_not_disturb_each_other(shard: Shard) -> None:
    with siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=2) as loader:
        want = [[batch.n_id.tolist() for batch in loader] for _ in range(2)]
        loader.epoch = 0
        pairs = [(a.n_id.tolist(), b.n_id.tolist()) for a, b in zip(loader, loader, strict=True)]
        loader.epoch = 0
        assert next(iter(loader)).n_id.tolist() == want[0][0]
        assert next(iter(loader)).n_id.tolist() == want[1][0]
    assert [[first for first, _ in pairs], [second for _, second in pairs]] == want


def test_two_macrobatches_are_in_memory_at_a_time(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with siafu.MinibatchLoader(shard, [2], batch_size=3, macrobatch=1) as loader:
        sampler, made = loader._feed.sampler, []
        build = sampler.build

        def noted(*given: Any) -> Macrobatch:
            macrobatch = build(*given)
            made.append(weakref.ref(macrobatch))
            return macrobatch

        monkeypatch.setattr(sampler, "build", noted)
        for _ in sampler.macrobatches(1, 1, goes_on=True):
            sampler.settle()
            assert sum(one() is not None for one in made) <= 2
        assert len(made) > 4
        del _
        assert [one() is not None for one in made] == [False] * (len(made) - 1) + [True]
    assert not any(one() for one in made)


def test_loop_collected_on_the_thread_ahead_does_not_wait_for_it(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with siafu.MinibatchLoader(shard, [2], batch_size=5, macrobatch=1) as loader:
        sampler, is_dropped, built = loader._feed.sampler, threading.Event(), []
        build = sampler.build

        def collecting(*given: Any) -> Macrobatch:
            if built:
                is_dropped.wait(30)
                gc.collect()
            built.append(1)
            return build(*given)

        monkeypatch.setattr(sampler, "build", collecting)
        gc.disable()
        try:
            loop: list[Any] = [sampler.macrobatches(1, 1)]
            next(loop[0])
            loop.append(loop)  # a cycle, which only the collector finds
            del loop
            is_dropped.set()
            resting = threading.Thread(target=sampler.settle, daemon=True)
            resting.start()
            resting.join(30)
            assert not resting.is_alive()
        finally:
            gc.enable()


def test_training_that_is_given_up_leaves_no_thread(shard: Shard) -> None:
    settings = {"strategy": "batchgnn", "fanout": "2,2", "batch_size": 5, "macrobatch": "1"}
    training = begin(make_config(data="awkward", **settings).resolved(), shard)
    training.step()
    (ahead,) = [t for t in threading.enumerate() if t.name.startswith("siafu-relay")]
    training.abandon()
    ahead.join(30)
    assert not ahead.is_alive()


def test_seeds_are_named_by_the_users_ids(tmp_path: Path) -> None:
    names = TextIds.from_arrow(pa.array([f"v{number}" for number in range(5)]))
    x = np.eye(5, dtype=np.float32)
    graph = graph_from_edges(np.array([0, 1, 2]), np.array([1, 2, 3]), 5, x=x, ids=names)
    shard = shard_of(graph, tmp_path)
    with siafu.MinibatchLoader(shard, [-1], input_ids=["v3", "v1", "v3"]) as batches:
        (batch,) = batches
    assert sorted(zip(batch.n_id[:2].tolist(), batch.input_id.tolist(), strict=True)) == [
        (1, 1),
        (3, 0),
    ]
    assert "y" not in batch
    with pytest.raises(DataError, match="'v9'"):
        siafu.MinibatchLoader(shard, [1], input_ids=["v1", "v9"])


def test_mistakes_are_named(shard: Shard) -> None:
    with pytest.raises(DataError, match="12345"):
        siafu.MinibatchLoader(shard, [1], input_ids=[3, 12345])
    with pytest.raises(DataError, match="not of the kind"):
        siafu.MinibatchLoader(shard, [1], input_ids=["no number"])
    with pytest.raises(DataError, match="row 41"):
        siafu.MinibatchLoader(shard, [1], input_nodes=torch.tensor([0, 41]))
    with pytest.raises(DataError, match="does not fit"):
        siafu.MinibatchLoader(shard, [1], input_nodes=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="twice"):
        siafu.MinibatchLoader(shard, [1], input_ids=[3], input_nodes=torch.tensor([0]))
    with pytest.raises(ConfigError, match="neighbours"):
        siafu.MinibatchLoader(shard, [3, 0])
    with pytest.raises(ConfigError, match="batch_size"):
        siafu.MinibatchLoader(shard, [3], batch_size=0)
