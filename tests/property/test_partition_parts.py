"""Whatever the graph and the assignment, the parts together are the graph."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siafu.graph import (
    Graph,
    IntegerIds,
    SparseFeatures,
    TextIds,
    graph_from_edges,
    load_features,
    load_ids,
    load_store,
    save_store,
)
from siafu.partitioning import open_parts, score, write_parts

BOUNDED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def graphs(draw):
    """Return a graph with loops, repeated edges and isolated nodes, and data of any kind."""
    n = draw(st.integers(1, 12))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    columns = {}
    if draw(st.booleans()):
        columns["edge_weight"] = rng.random(len(edges), np.float32)
        columns["edge_attr"] = rng.random((len(edges), 2), np.float32)
    if draw(st.booleans()):
        num_types = draw(st.sampled_from([1, 3, 300]))
        columns["edge_type"] = rng.integers(0, num_types, len(edges))
        columns["edge_type_names"] = tuple(f"r{k}" for k in range(num_types))
    if draw(st.booleans()):
        columns["ids"] = TextIds.from_arrow(pa.array([f"v{'é' * (i % 3)}{i}" for i in range(n)]))
    else:
        columns["ids"] = IntegerIds(rng.permutation(n).astype(np.int64) + 100)
    kind = draw(st.sampled_from(["none", "dense", "sparse"]))
    if kind == "dense":
        columns["x"] = rng.random((n, 3), np.float32)
    if kind == "sparse":
        counts = rng.integers(0, 3, n)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        index = rng.integers(0, 5, indptr[-1]).astype(np.int32)
        columns["x"] = SparseFeatures(indptr, index, rng.random(len(index), np.float32), 5)
    columns["y"] = rng.integers(0, 3, n)
    columns["num_classes"] = 3
    columns["train"] = rng.random(n) < 0.5
    source, destination = np.array(edges, np.int64).reshape(-1, 2).T
    return graph_from_edges(source, destination, n, **columns)


@st.composite
def cuts(draw):
    """Return a graph, a number of parts, and any assignment, empty parts included."""
    graph = draw(graphs())
    num_parts = draw(st.integers(1, min(5, graph.num_nodes)))
    part_of = draw(
        st.lists(st.integers(0, num_parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes)
    )
    return graph, num_parts, np.array(part_of, np.int32)


def _written(graph: Graph, part_of, num_parts: int, folder: str):
    save_store(graph, Path(folder) / "store")
    mapped = load_store(Path(folder) / "store")
    target = Path(folder) / "parts"
    quality = write_parts(mapped, part_of, target, num_parts=num_parts, method="given", seed=0)
    parts = open_parts(target)
    return parts, [parts.part(p) for p in range(num_parts)], quality


@BOUNDED
@given(cuts())
def test_every_node_is_owned_once_with_its_data(cut):
    graph, num_parts, part_of = cut
    with tempfile.TemporaryDirectory() as folder:
        parts, folders, _ = _written(graph, part_of, num_parts, folder)
        rows = np.concatenate([f.load("rows") for f in folders])
        assert sorted(rows) == list(range(graph.num_nodes))
        np.testing.assert_array_equal(parts.part_of, part_of)
        for part, f in enumerate(folders):
            f.verify()
            own = f.load("rows")
            np.testing.assert_array_equal(own, np.flatnonzero(part_of == part))
            assert load_ids(f).to_arrow() == graph.ids.take(own).to_arrow()
            np.testing.assert_array_equal(f.load("y"), graph.y[own])
            np.testing.assert_array_equal(f.load("train"), graph.train[own])
            _check_features(load_features(f), graph.x, own)
        assert parts.ids.to_arrow() == graph.ids.to_arrow()


def _check_features(got, x, own) -> None:
    if x is None:
        assert got is None
    elif isinstance(x, SparseFeatures):
        want = x.take(own)
        for name in ("indptr", "index", "value"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    else:
        np.testing.assert_array_equal(got, x[own])


@BOUNDED
@given(cuts())
def test_the_edges_of_all_parts_are_the_edges_of_the_graph_in_order(cut):
    graph, num_parts, part_of = cut
    with tempfile.TemporaryDirectory() as folder:
        _, folders, _ = _written(graph, part_of, num_parts, folder)
        for f in folders:
            rows, indptr, src = f.load("rows"), f.load("indptr"), f.load("src")
            store_row = np.concatenate([rows, f.load("halo")])
            assert f.facts["num_local_edges"] == len(src) == indptr[-1]
            boundary = 0
            for local, row in enumerate(rows):
                mine = slice(indptr[local], indptr[local + 1])
                whole = slice(graph.indptr[row], graph.indptr[row + 1])
                np.testing.assert_array_equal(store_row[src[mine]], graph.src[whole])
                boundary += bool((src[mine] >= len(rows)).any())
                for name in ("edge_weight", "edge_attr", "edge_type"):
                    column = getattr(graph, name)
                    assert (name in f) == (column is not None)
                    if column is not None:
                        assert f.load(name).dtype == column.dtype
                        np.testing.assert_array_equal(f.load(name)[mine], column[whole])
            assert f.facts.get("num_edge_types", 0) == graph.num_edge_types
            assert tuple(f.facts.get("edge_type_names", ())) == graph.edge_type_names
            assert f.facts["num_interior"] == len(rows) - boundary
        assert sum(f.facts["num_local_edges"] for f in folders) == graph.num_edges


@BOUNDED
@given(cuts())
def test_what_is_sent_is_what_is_received_for_every_pair(cut):
    graph, num_parts, part_of = cut
    with tempfile.TemporaryDirectory() as folder:
        _, folders, _ = _written(graph, part_of, num_parts, folder)
        for sender, f in enumerate(folders):
            sends = np.split(f.load("send_rows"), np.cumsum(f.load("send_counts")))
            assert len(sends) == num_parts + 1
            assert not len(sends[-1])
            for receiver, g in enumerate(folders):
                halos = np.split(g.load("halo"), np.cumsum(g.load("halo_counts")))
                np.testing.assert_array_equal(f.load("rows")[sends[receiver]], halos[sender])
                assert (part_of[halos[sender]] == sender).all()
                assert (np.diff(halos[sender]) > 0).all()
            assert f.load("send_counts")[sender] == 0


@BOUNDED
@given(cuts())
def test_quality_counts_what_was_written(cut):
    graph, num_parts, part_of = cut
    with tempfile.TemporaryDirectory() as folder:
        parts, folders, quality = _written(graph, part_of, num_parts, folder)
        assert parts.quality == quality == score(graph, part_of, num_parts)
        assert list(quality.halo_rows) == [f.facts["num_halo"] for f in folders]
        assert list(quality.nodes) == [f.facts["num_owned"] for f in folders]
        assert list(quality.edges) == [f.facts["num_local_edges"] for f in folders]
        destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        crossing = Counter(part_of[graph.src] != part_of[destination])
        assert quality.cut_edges == crossing[True]
        assert quality.layer_bytes(16) == 2 * 4 * 16 * sum(quality.halo_rows)
