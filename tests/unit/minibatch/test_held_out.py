"""Held-out edges: gone from the graph, both directions together, kept by number."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.errors import ConfigError, DataError, StoreError
from siafu.graph import Graph, graph_from_edges
from siafu.minibatch import HeldOut, held_out, hold_out_edges, hold_out_of_shard
from siafu.partitioning import partition_graph, write_parts
from siafu.shard import open_shard
from tests.folders import change_array
from tests.parity.graphs import assignment, awkward_graph


def pairs_of(graph: Graph) -> set[tuple[int, int]]:
    return set(map(tuple, graph.edge_index().T.tolist()))


def test_edges_fall_on_one_side_with_their_reverse() -> None:
    graph = awkward_graph(weighted=True)
    left, held = hold_out_edges(graph, "0.6,0.2", seed=3)
    kept, val, test = pairs_of(left), set(map(tuple, held.val)), set(map(tuple, held.test))
    assert kept | val | test == pairs_of(graph)
    assert len(val) == len(held.val) > 10
    assert len(test) == len(held.test) > 10
    for one, others in ((kept, val | test), (val, kept | test), (test, kept | val)):
        assert not {(v, u) for u, v in one} & others
        assert not one & others
    assert {(v, v) for v in range(5, 9)} <= kept
    rows = {pair: set() for pair in kept}
    for pair, weight in zip(graph.edge_index().T.tolist(), graph.edge_weight, strict=True):
        if tuple(pair) in rows:
            rows[tuple(pair)].add(float(weight))
    for pair, weight in zip(left.edge_index().T.tolist(), left.edge_weight, strict=True):
        assert float(weight) in rows[tuple(pair)]


def test_shares_are_met_and_follow_the_seed() -> None:
    generator = np.random.default_rng(0)
    graph = graph_from_edges(*generator.integers(0, 5000, (2, 20_000)), 5000)
    _, held = hold_out_edges(graph, None, seed=0)
    assert len(held.val) == pytest.approx(2000, abs=150)
    assert len(held.test) == pytest.approx(2000, abs=150)
    again, other = hold_out_edges(graph, None, seed=0)[1], hold_out_edges(graph, None, seed=1)[1]
    assert np.array_equal(held.val, again.val)
    assert not np.array_equal(held.val, other.val)


def test_what_is_saved_comes_back_checked(tmp_path: Path) -> None:
    _, held = hold_out_edges(awkward_graph(), None, seed=0)
    held.save(tmp_path / "data.parts")
    back = HeldOut.load(tmp_path / "data.parts")
    assert np.array_equal(back.val, held.val)
    assert np.array_equal(back.test, held.test)
    file = tmp_path / "data.links" / "val.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(StoreError, match="checksum"):
        HeldOut.load(tmp_path / "data.parts")


def test_held_out_edges_of_nodes_that_are_not_there_are_refused(tmp_path: Path) -> None:
    graph = awkward_graph()
    partition_graph(graph, tmp_path / "data.parts", num_parts=1)
    HeldOut(np.array([[0, 1]]), np.array([[0, graph.num_nodes]])).save(tmp_path / "data.parts")
    shard = open_shard(tmp_path / "data.parts", World())
    with pytest.raises(DataError, match="does not exist"):
        HeldOut.load(tmp_path / "data.parts").share(shard)
    change_array(tmp_path / "data.links", "val", (0, 0), -1)
    with pytest.raises(StoreError, match=r"val\.npy is damaged"):
        HeldOut.load(tmp_path / "data.parts")


@pytest.mark.parametrize("place", ["host", "disk"])
def test_edges_of_a_shard_are_held_out_alike_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Literal["host", "disk"]
) -> None:
    graph = awkward_graph(weighted=True)
    part_of = assignment(graph, "hash", 1)
    write_parts(graph, part_of, tmp_path / "parts", num_parts=1, method="hash", seed=0)
    whole = open_shard(tmp_path / "parts", World(), place=place)
    left, held = hold_out_edges(graph, "0.6,0.2", seed=3)
    for edges in (1 << 20, 37, 1):
        monkeypatch.setattr(held_out, "_EDGES_AT_ONCE", edges)
        shard, mine = hold_out_of_shard(whole, "0.6,0.2", 3)
        assert shard.is_mapped == (place == "disk")
        assert np.array_equal(mine.val, held.val)
        assert np.array_equal(mine.test, held.test)
        assert np.array_equal(shard.csr.indptr, left.indptr)
        for name, column in left.edge_arrays():
            reader = shard.reader(name)
            assert reader is not None
            assert np.array_equal(reader.read(torch.arange(left.num_edges)), column), name


def test_bad_splits_are_named() -> None:
    graph = awkward_graph()
    with pytest.raises(ConfigError, match=r"0\.8,0\.3"):
        hold_out_edges(graph, "0.8,0.3", seed=0)
    with pytest.raises(ConfigError, match="20,30"):
        hold_out_edges(graph, "20,30", seed=0)
    loops = graph_from_edges(np.arange(4), np.arange(4), 4)
    with pytest.raises(DataError, match="No edges are left"):
        hold_out_edges(loops, None, seed=0)
