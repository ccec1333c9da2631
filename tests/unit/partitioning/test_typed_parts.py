"""Every edge keeps its type, however the graph is cut."""

import json

import numpy as np
import pytest

from siafu.errors import StoreError
from siafu.graph import Graph, count_edge_types, graph_from_edges, load_store, save_store
from siafu.partitioning import METHODS, chunks, open_parts, partition_graph, partition_store

NAMES = ("a", "b", "never", "d")


def _graph(num_nodes: int = 61, num_edges: int = 300) -> Graph:
    rng = np.random.default_rng(0)
    source, destination = rng.integers(0, num_nodes, (2, num_edges))
    types = rng.choice([0, 1, 3], num_edges)
    return graph_from_edges(
        source, destination, num_nodes, edge_type=types, edge_type_names=NAMES, name="typed"
    )


def _edges(src, dst, types) -> list[tuple[int, int, int]]:
    return sorted(zip(src.tolist(), dst.tolist(), types.tolist(), strict=True))


def _edges_of_part(folder) -> list[tuple[int, int, int]]:
    rows = folder.load("rows")
    columns = np.concatenate([rows, folder.load("halo")])
    dst = np.repeat(rows, np.diff(folder.load("indptr")))
    return _edges(columns[folder.load("src")], dst, folder.load("edge_type"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_edges_of_all_parts_have_the_types_of_the_graph(method, num_parts, tmp_path):
    graph = _graph()
    save_store(graph, tmp_path / "store")
    partition_store(tmp_path / "store", tmp_path / "parts", num_parts=num_parts, method=method)
    parts = open_parts(tmp_path / "parts")
    folders = [parts.part(number) for number in range(num_parts)]
    found = sorted(edge for folder in folders for edge in _edges_of_part(folder))
    assert found == _edges(*graph.edge_index(), graph.edge_type)
    for facts in [parts.facts["graph"], *(folder.facts for folder in folders)]:
        assert (facts["num_edge_types"], facts["edge_type_names"]) == (4, list(NAMES))
    counts = sum(count_edge_types(folder.load("edge_type"), 4) for folder in folders)
    assert counts.tolist() == count_edge_types(graph.edge_type, 4).tolist()
    assert counts[2] == 0


def test_types_are_dealt_out_in_pieces(tmp_path, monkeypatch):
    graph = _graph()
    partition_graph(graph, tmp_path / "whole", num_parts=3, method="hash")
    monkeypatch.setattr(chunks, "EDGES_AT_ONCE", 7)
    partition_graph(graph, tmp_path / "pieces", num_parts=3, method="hash")
    whole, pieces = open_parts(tmp_path / "whole"), open_parts(tmp_path / "pieces")
    assert whole.folder.fingerprint == pieces.folder.fingerprint
    for part in range(3):
        entries = [parts.part(part).entries["edge_type"] for parts in (whole, pieces)]
        assert entries[0] == entries[1]


def test_damaged_types_of_a_part_are_found(tmp_path):
    partition_graph(_graph(), tmp_path / "parts", num_parts=2, method="hash")
    file = tmp_path / "parts" / "part1" / "edge_type.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x02")
    with pytest.raises(StoreError, match=r"edge_type\.npy is damaged"):
        open_parts(tmp_path / "parts").part(1).verify()


def test_parts_without_types_say_nothing_of_them(tmp_path):
    rng = np.random.default_rng(0)
    graph = graph_from_edges(*rng.integers(0, 9, (2, 30)), 9)
    save_store(graph, tmp_path / "store")
    partition_graph(load_store(tmp_path / "store"), tmp_path / "parts", num_parts=2, method="hash")
    for manifest in (tmp_path / "parts").rglob("manifest.json"):
        assert "edge_type" not in json.dumps(json.loads(manifest.read_text()))
