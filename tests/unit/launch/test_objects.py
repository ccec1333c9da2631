"""What people have in memory: frames, networkx graphs, matrices; read as files are."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import siafu
from siafu.errors import SiafuError
from siafu.ingest import empty_cache, list_cache

NAMES = [f"0{k}" for k in range(40)]
SETTINGS: dict[str, Any] = {"epochs": 2, "hidden": 8, "label": "is_fraud", "node_id": "who"}


def columns() -> tuple[dict[str, list], dict[str, list]]:
    """Return two tables with ids as text, numbers with a gap and a category."""
    draw = np.random.default_rng(0)
    nodes: dict[str, list] = {
        "who": NAMES,
        "age": [None if k == 3 else float(k) for k in range(40)],
        "country": [("de", "fr", "it")[k % 3] for k in range(40)],
        "is_fraud": [k % 2 for k in range(40)],
    }
    pairs = draw.integers(0, 40, (2, 160))
    edges: dict[str, list] = {
        "src": [NAMES[k] for k in pairs[0]],
        "dst": [NAMES[k] for k in pairs[1]],
    }
    return nodes, edges


def frames(library: str) -> tuple[Any, Any]:
    nodes, edges = columns()
    if library == "pyarrow":
        return pa.table(nodes), pa.table(edges)
    if library == "pandas with an index":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame(nodes).set_index("who"), pandas.DataFrame(edges)[::1]
    module = pytest.importorskip(library.split()[0])
    if library == "polars lazy":
        return module.LazyFrame(nodes), module.LazyFrame(edges)
    if library == "pandas category":
        table = module.DataFrame(nodes)
        return table.astype({"country": "category"}), module.DataFrame(edges)
    return module.DataFrame(nodes), module.DataFrame(edges)


@pytest.fixture(scope="module")
def from_files(tmp_path_factory: pytest.TempPathFactory) -> siafu.Run:
    root = tmp_path_factory.mktemp("files")
    for name, table in zip(("nodes", "edges"), columns(), strict=True):
        pq.write_table(pa.table(table), root / f"{name}.parquet")
    return siafu.fit(
        root / "edges.parquet", nodes=root / "nodes.parquet", out=str(root / "run"), **SETTINGS
    )


@pytest.mark.parametrize(
    "library",
    ["pandas", "pandas with an index", "pandas category", "polars", "polars lazy", "pyarrow"],
)
def test_frames_are_trained_on_as_files_are(library: str, from_files, tmp_path: Path) -> None:
    nodes, edges = frames(library)
    run = siafu.fit(nodes=nodes, edges=edges, out=str(tmp_path / "run"), **SETTINGS)
    assert run.result["losses"] == from_files.result["losses"]
    assert sorted(run.predictions.column("id").to_pylist()) == sorted(NAMES)
    graph = siafu.load(nodes=nodes, edges=edges, label="is_fraud", node_id="who")
    assert (graph.num_nodes, graph.num_edges) == (40, 160)
    again = run.predict(nodes=nodes, edges=edges)
    assert again.num_rows == 40
    two = siafu.partition(edges, tmp_path / "two", nodes=nodes, label="is_fraud", node_id="who")
    assert two.num_parts == 2


def test_runs_of_frames_are_named_by_what_they_predict(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes, edges = frames("pyarrow")
    settings = {**SETTINGS, "epochs": 1, "quiet": True}
    assert siafu.fit(nodes=nodes, edges=edges, **settings).path.name == "is_fraud-gcn-001"


def test_a_list_of_frames_is_one_table(from_files, tmp_path: Path) -> None:
    nodes, edges = frames("pyarrow")
    halves = [edges.slice(0, 100), edges.slice(100)]
    run = siafu.fit(nodes=nodes, edges=halves, out=str(tmp_path / "run"), **SETTINGS)
    assert run.result["losses"] == from_files.result["losses"]


def test_the_same_rows_are_kept_once_and_cleared(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path))
    nodes, edges = frames("pyarrow")
    for _ in range(2):
        siafu.load(nodes=nodes, edges=edges, label="is_fraud", node_id="who")
    kept = [one.path for one in list_cache() if one.path.parent.name == "frames"]
    assert len(kept) == 2
    empty_cache()
    assert not list((tmp_path / "frames").iterdir())


def test_events_of_a_frame_become_snapshots() -> None:
    table = pa.table({"src": [0, 1, 2, 0], "dst": [1, 2, 0, 2], "time": [0, 1, 10, 11]})
    assert siafu.load_dynamic(table, window="10").num_snapshots == 2


def test_networkx_graphs_keep_ids_and_attributes() -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    for name, kind in (("a", "x"), ("b", "y"), ("c", "x")):
        graph.add_node(name, height=float(ord(name)), kind=kind)
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    found = siafu.load(graph, label="kind", split="0.4,0.3")
    assert (found.num_nodes, found.num_edges, found.num_classes) == (3, 4, 2)
    assert found.feature_names == ("height",)
    directed = siafu.load(networkx.DiGraph(graph.edges))
    assert directed.num_edges == 2


def test_matrices_and_edge_indices_have_x_and_y_beside_them(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    draw = np.random.default_rng(0)
    edges = np.unique(draw.integers(0, 30, (2, 90)), axis=1)
    x, y = draw.random((30, 4), dtype=np.float32), draw.integers(0, 2, 30)
    matrix = sparse.csr_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(30, 30))
    runs = [
        siafu.fit(source, x=rows, y=y, epochs=2, out=str(tmp_path / str(number)))
        for number, (source, rows) in enumerate(
            [(matrix, x), (edges, x), (torch.tensor(edges), torch.tensor(x)), (matrix, x)]
        )
    ]
    assert len({tuple(run.result["losses"]) for run in runs}) == 1
    held = siafu.load(matrix * 2, x=sparse.csr_matrix(x), y=y)
    assert held.x.shape == (30, 4)
    assert set(held.edge_weight) == {2.0}
    assert runs[0].predict(matrix, x=x).num_rows == 30
    with pytest.raises(SiafuError, match="x does not fit"):
        siafu.load(matrix, x=x[:5])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "no edges"),
        ({"data": "planted", "edges": "planted"}, "twice"),
        ({"data": "planted", "x": np.ones(3)}, "x and y"),
        ({"data": {"a": 1}}, "not a graph we know"),
    ],
)
def test_what_is_no_graph_is_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(SiafuError, match=told):
        siafu.load(**wrong)


def test_lists_are_lists_whatever_their_names_have_in_them(tmp_path: Path) -> None:
    nodes, edges = columns()
    nodes["Crime, Thriller"] = nodes["is_fraud"]
    nodes['a "Drama"'] = [k % 3 // 2 for k in range(40)]
    nodes["age, in years"] = nodes.pop("age")
    labels, features = ["Crime, Thriller", 'a "Drama"'], ["age, in years", "country"]
    run = siafu.fit(
        nodes=pa.table(nodes),
        edges=pa.table(edges),
        label=labels,
        features=features,
        split=(0.6, 0.2),
        metric=["macro-f1", "micro-f1"],
        schema={"nodes": {"age, in years": {"scale": "none"}}},
        epochs=1,
        out=str(tmp_path / "run"),
    )
    assert run.probabilities.column_names == ["id", *labels]
    assert run.result["metric"] == "macro-f1"
    table = run.predict(nodes=pa.table(nodes), edges=pa.table(edges), quiet=True)
    assert table.num_rows == 40


def test_columns_that_cannot_be_read_are_told() -> None:
    pandas = pytest.importorskip("pandas")
    mixed = pandas.DataFrame({"src": [0, 1], "dst": [1, 0], "why": [1, "a"]}, dtype=object)
    with pytest.raises(SiafuError, match="why"):
        siafu.load(mixed)
    prices = {"id": range(4), "price": [1.5, np.int64(2), "n/a", 3.0]}
    with pytest.raises(SiafuError) as error:
        siafu.load(nodes=pandas.DataFrame(prices), edges=mixed[["src", "dst"]], label="price")
    assert "column 'price' has 3 numbers and 1 that are none, such as 'n/a'" in str(error.value)
    assert "pd.to_numeric(df['price'], errors=\"coerce\")" in str(error.value)
    twins = pandas.DataFrame([[0, 1, 2]], columns=["src", "dst", "dst"])
    with pytest.raises(SiafuError, match="Two columns"):
        siafu.load(twins)
