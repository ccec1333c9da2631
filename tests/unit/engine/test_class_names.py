"""Classes go out as the user named them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import siafu
from siafu.launch import write_inference


def test_predictions_name_the_classes(tmp_path: Path) -> None:
    graph = siafu.load("planted:200")
    words = np.array([f"class {number}" for number in range(graph.num_classes)])
    src, dst = graph.edge_index()
    (tmp_path / "data").mkdir()
    columns = {f"x{k}": graph.x[:, k] for k in range(graph.num_features)}
    nodes = pa.table({"id": np.arange(200), "label": words[graph.y], **columns})
    pq.write_table(nodes, tmp_path / "data" / "nodes.parquet")
    pq.write_table(pa.table({"src": src, "dst": dst}), tmp_path / "data" / "edges.parquet")

    run = siafu.fit(str(tmp_path / "data"), epochs=3, out=str(tmp_path / "run"))

    table = run.predictions.sort_by("id").to_pydict()
    assert table["label"] == words[graph.y].tolist()
    assert set(table["prediction"]) <= set(words.tolist())
    # Another graph without labels: the names are the run's.
    pq.write_table(nodes.drop_columns(["label"]), tmp_path / "data" / "nodes.parquet")
    write_inference(run.path, tmp_path / "out", data=str(tmp_path / "data"), say=lambda line: None)
    again = pq.read_table(tmp_path / "out").sort_by("id").to_pydict()
    assert again["prediction"] == table["prediction"]


def test_nodes_of_unknown_labels_are_predicted_without_one(tmp_path: Path) -> None:
    draw, count = np.random.default_rng(0), 60
    unknown = np.arange(count) % 6 == 0
    nodes = pa.table(
        {
            "id": np.arange(count),
            "x": draw.normal(size=count),
            "a": pa.array(draw.integers(0, 2, count), mask=unknown),
            "b": draw.integers(0, 2, count),
        }
    )
    src, dst = draw.integers(0, count, (2, 300))
    edges = pa.table({"src": src, "dst": dst})
    run = siafu.fit(nodes=nodes, edges=edges, label="a,b", epochs=2, out=str(tmp_path / "run"))
    for row in run.predictions.to_pylist():
        assert (row["label"] is None) == (row["split"] == "") == unknown[row["id"]]
        assert 0 < row["p(a)"] < 1
