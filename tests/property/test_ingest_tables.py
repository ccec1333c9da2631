"""For any edge list, the store built on disk equals the graph built in memory."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siafu.graph import add_reverse_edges, graph_from_edges, load_store
from siafu.ingest import TableOptions, build_store, find_tables


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 12))
    ends = st.lists(
        st.tuples(st.integers(0, num_nodes - 1), st.integers(0, num_nodes - 1)),
        min_size=1,
        max_size=60,
    )
    return num_nodes, np.array(draw(ends))


def _ids(num_nodes: int, how: str) -> list[int] | list[str]:
    if how == "range":
        return list(range(num_nodes))
    if how == "shuffled":
        return [int(i) - 3 for i in np.random.default_rng(0).permutation(num_nodes)]
    if how == "scattered":
        return [(-1) ** i * i * 10**12 + i for i in range(num_nodes)]
    return [f"é{i}" * (i % 3) + str(i) for i in range(num_nodes)]


@settings(max_examples=50, deadline=None)
@given(
    edges=edge_lists(),
    undirected=st.booleans(),
    bucket_edges=st.integers(1, 80),
    row_group=st.integers(1, 70),
    how=st.sampled_from(["range", "shuffled", "scattered", "text"]),
    typed=st.sampled_from([None, "text", "numbers"]),
)
@example(  # one pair with every type, and the reverse of one of them
    edges=(2, np.array([[0, 1]] * 8 + [[1, 0]])),
    undirected=True,
    bucket_edges=4,
    row_group=3,
    how="range",
    typed="text",
)
def test_store_equals_graph_in_memory(edges, undirected, bucket_edges, row_group, how, typed):
    num_nodes, pairs = edges
    weight = np.arange(len(pairs), dtype=np.float32)
    attr = np.stack([weight * 2, weight * 3], axis=1)
    ids = _ids(num_nodes, how)
    # Met in falling order, so that the order of meeting is not the sorted one.
    values = (len(pairs) - np.arange(len(pairs))) // 2 % 4
    types = np.unique(values, return_inverse=True)[1] if typed else None
    columns = {"edge_weight": weight, "edge_attr": attr, "edge_type": types}
    want = graph_from_edges(pairs[:, 0], pairs[:, 1], num_nodes, **columns)
    if undirected:
        want = add_reverse_edges(want)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tables"
        source.mkdir()
        pq.write_table(pa.table({"id": ids}), source / "nodes.parquet")
        table = {
            "src": [ids[i] for i in pairs[:, 0]],
            "dst": [ids[i] for i in pairs[:, 1]],
            "w": weight,
            "a": attr[:, 0],
            "b": attr[:, 1],
        }
        if typed:
            table["type"] = [f"r{k}" for k in values] if typed == "text" else values
        pq.write_table(pa.table(table), source / "edges.parquet", row_group_size=row_group)
        options = TableOptions(
            edge_weight="w", edge_attr=("a", "b"), undirected=undirected, bucket_edges=bucket_edges
        )
        build_store(find_tables(source, options), Path(folder) / "store", options=options)
        got = load_store(Path(folder) / "store")
        np.testing.assert_array_equal(got.indptr, want.indptr)
        assert got.num_edge_types == want.num_edge_types
        for (name, mine), (_, theirs) in zip(got.edge_arrays(), want.edge_arrays(), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
        assert got.ids.to_arrow().to_pylist() == ids
        assert sorted(path.name for path in Path(folder).iterdir()) == ["store", "tables"]
