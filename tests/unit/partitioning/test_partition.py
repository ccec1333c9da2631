"""Whole runs: memory refused beforehand, nothing left behind, folders that belong together."""

import re
import shutil

import numpy as np
import pytest

from siafu.errors import PartitionError, StoreError
from siafu.graph import Graph, graph_facts, graph_from_edges, load_store, save_store
from siafu.memory import held_bytes
from siafu.options import read_bytes
from siafu.partitioning import (
    METHODS,
    open_parts,
    partition,
    partition_graph,
    partition_store,
    predict_peak_bytes,
    score,
    split,
    write_parts,
)
from siafu.partitioning.memory import sample_reverse_share


def _graph(seed: int = 0, num_nodes: int = 60) -> Graph:
    rng = np.random.default_rng(seed)
    source, destination = rng.integers(0, num_nodes, (2, 300))
    x = rng.random((num_nodes, 4), np.float32)
    return graph_from_edges(source, destination, num_nodes, x=x, train=rng.random(num_nodes) < 0.5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_store_becomes_parts_by_every_method(method, num_parts, tmp_path):
    save_store(_graph(), tmp_path / "store")
    seen = []
    quality = partition_store(
        tmp_path / "store",
        tmp_path / "parts",
        num_parts=num_parts,
        method=method,
        progress=lambda *event: seen.append(event),
    )
    parts = open_parts(tmp_path / "parts")
    assert parts.num_parts == num_parts
    assert parts.quality == quality
    assert parts.facts["method"] == ("metis" if method == "auto" else method)
    assert {"fingerprint", "parts", "nodes"} <= {phase for phase, _, _ in seen}
    part = parts.part(0)
    assert (part.facts["num_nodes"], part.facts["num_edges"]) == (60, 300)
    if num_parts == 1:
        assert quality.cut_edges == part.facts["num_halo"] == 0
        assert part.facts["num_interior"] == 60


@pytest.mark.parametrize("method", ["metis", "streaming", "hash"])
def test_too_little_memory_is_refused_with_the_number_and_nothing_is_left(method, tmp_path):
    graph = _graph()
    predicted = predict_peak_bytes({"num_nodes": 60, "num_edges": 300}, "streaming", 3)
    with pytest.raises(PartitionError, match=r"needs about .* MiB \(\d+ bytes\)") as caught:
        partition_graph(graph, tmp_path / "p", num_parts=3, method=method, memory_bytes=1000)
    assert str(predicted) in caught.value.seen
    assert ("--method streaming" in caught.value.fix) == (method == "metis")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["metis", "streaming", "hash", "auto"])
def test_the_budget_that_a_refusal_names_is_enough(method, tmp_path):
    graph, target = _graph(), tmp_path / "p"
    with pytest.raises(PartitionError) as caught:
        partition_graph(graph, target, num_parts=3, method=method, memory_bytes=held_bytes())
    named = re.search("give --memory ([0-9]+MB) or more", caught.value.fix)
    memory = read_bytes(named[1])
    assert memory < held_bytes() + 2 * predict_peak_bytes(graph_facts(graph), "streaming", 3)
    partition_graph(graph, target, num_parts=3, method=method, memory_bytes=memory)
    assert open_parts(target).num_parts == 3


def test_metis_is_predicted_to_need_memory_by_the_edge():
    small, large = ({"num_nodes": 10**6, "num_edges": e} for e in (10**7, 10**8))
    assert predict_peak_bytes(large, "metis", 4) > 9 * predict_peak_bytes(small, "metis", 4)
    assert predict_peak_bytes(large, "streaming", 4) < 1.2 * predict_peak_bytes(
        small, "streaming", 4
    )
    larger, largest = ({"num_nodes": 10**6, "num_edges": e} for e in (10**9, 10**10))
    assert predict_peak_bytes(largest, "streaming", 4) == predict_peak_bytes(larger, "streaming", 4)
    both_ways = predict_peak_bytes(large, "metis", 4, reverse_share=1.0)
    assert both_ways < 0.6 * predict_peak_bytes(large, "metis", 4)


def test_reverse_edges_are_noticed():
    source, destination = np.arange(50), (np.arange(50) + 1) % 50
    one_way = graph_from_edges(source, destination, 50)
    both = graph_from_edges(
        np.concatenate([source, destination]), np.concatenate([destination, source]), 50
    )
    assert sample_reverse_share(one_way) == 0
    assert sample_reverse_share(both) == 1


def test_auto_streams_where_metis_does_not_fit_or_would_take_long(monkeypatch):
    graph = _graph()
    cut = partition.Cut(num_parts=3)
    assert partition.choose_method(graph, cut, 1 << 40) == "metis"
    assert partition.choose_method(graph, cut, 1000) == "streaming"
    monkeypatch.setattr(partition, "METIS_MOST_NODES", 59)
    assert partition.choose_method(graph, cut, 1 << 40) == "streaming"


def test_unknown_methods_and_existing_targets_are_refused(tmp_path):
    with pytest.raises(PartitionError, match="method='magic'"):
        partition_graph(_graph(), tmp_path / "p", num_parts=2, method="magic")
    partition_graph(_graph(), tmp_path / "p", num_parts=2, method="hash")
    with pytest.raises(StoreError, match="exists already"):
        partition_graph(_graph(), tmp_path / "p", num_parts=2, method="hash")
    partition_graph(_graph(), tmp_path / "p", num_parts=3, method="hash", overwrite=True)
    assert open_parts(tmp_path / "p").num_parts == 3


@pytest.mark.parametrize("part_of", [[0] * 59, [-1] + [0] * 59, [2] + [0] * 59])
def test_an_assignment_that_does_not_fit_is_refused(part_of, tmp_path):
    with pytest.raises(PartitionError, match="does not fit"):
        write_parts(
            _graph(), np.array(part_of), tmp_path / "p", num_parts=2, method="given", seed=0
        )
    assert not list(tmp_path.iterdir())


def test_a_failing_write_leaves_nothing(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(split, "read", full)
    with pytest.raises(StoreError, match="disk is full"):
        partition_graph(_graph(), tmp_path / "p", num_parts=2, method="hash")
    assert not list(tmp_path.iterdir())


def test_a_part_of_another_graph_is_refused(tmp_path):
    for seed, name in enumerate("ab"):
        partition_graph(_graph(seed), tmp_path / name, num_parts=2, method="contiguous")
    shutil.rmtree(tmp_path / "a" / "part1")
    shutil.copytree(tmp_path / "b" / "part1", tmp_path / "a" / "part1")
    with pytest.raises(StoreError, match="parts folder of another graph"):
        open_parts(tmp_path / "a")


def test_more_parts_than_one_word_of_readers_are_counted(tmp_path):
    graph = _graph(num_nodes=200)
    part_of = (np.arange(200) % 70).astype(np.int32)
    quality = score(graph, part_of, 70)
    destination = np.repeat(np.arange(200), np.diff(graph.indptr))
    pairs = {
        (part_of[v], u)
        for u, v in zip(graph.src, destination, strict=True)
        if part_of[u] != part_of[v]
    }
    assert list(quality.halo_rows) == np.bincount([p for p, _ in pairs], minlength=70).tolist()
    assert quality.cut_edges == int((part_of[graph.src] != part_of[destination]).sum())
    write_parts(graph, part_of, tmp_path / "p", num_parts=70, method="given", seed=0)
    assert open_parts(tmp_path / "p").quality == quality


def test_parts_written_in_small_pieces_are_the_same(tmp_path, monkeypatch):
    save_store(_graph(), tmp_path / "store")
    graph = load_store(tmp_path / "store")
    partition_graph(graph, tmp_path / "whole", num_parts=3, method="hash")
    monkeypatch.setattr("siafu.partitioning.chunks.EDGES_AT_ONCE", 7)
    monkeypatch.setattr("siafu.partitioning.chunks.BYTES_AT_ONCE", 64)
    partition_graph(graph, tmp_path / "pieces", num_parts=3, method="hash")
    whole, pieces = open_parts(tmp_path / "whole"), open_parts(tmp_path / "pieces")
    assert whole.folder.fingerprint == pieces.folder.fingerprint
    for part in range(3):
        assert whole.part(part).fingerprint == pieces.part(part).fingerprint
