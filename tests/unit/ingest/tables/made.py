"""Tables written as a user has them, and the graphs they become."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.graph import Graph, Schema, check_graph, load_store
from siafu.ingest import TableOptions, build_store, find_tables, ingest_to_store

NODES = {
    "id": [10, 20, 30, 40],
    "label": ["cat", "dog", None, "ant"],
    "split": ["train", "valid", "", "test"],
    "a": [1, 2, 3, 4],
    "b": [0.5, 1.5, 2.5, 3.5],
    "comment": ["w", "x", "y", "z"],
}
EDGES = {"src": [10, 20, 30, 30, 10], "dst": [20, 30, 10, 10, 10], "w": [1.0, 2, 3, 4, 5]}


def write_tables(folder, nodes=NODES, edges=EDGES, ending="parquet"):
    """Return a folder with these two tables."""
    folder.mkdir()
    for name, columns in (("nodes", nodes), ("edges", edges)):
        if columns is not None:
            write = pq.write_table if ending == "parquet" else pa_csv.write_csv
            write(pa.table(columns), folder / f"{name}.{ending}")
    return folder


def build(tmp_path, source, **options):
    """Return the graph of the tables at a place, and what was told."""
    chosen = TableOptions(**options)
    notes = build_store(find_tables(source, chosen), tmp_path / "store", options=chosen)
    return load_store(tmp_path / "store"), notes


def assert_fails(tmp_path, problem, nodes=NODES, edges=EDGES, ending="parquet", **options):
    """Return what is told of these tables, which are refused and leave nothing behind."""
    source = write_tables(tmp_path / "tables", nodes, edges, ending)
    with pytest.raises(DataError, match=problem) as caught:
        build(tmp_path, source, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    return str(caught.value)


def made(
    folder: Path,
    nodes: dict[str, Any],
    edges: dict[str, Any] | None = None,
    ending: str = "parquet",
    **options: Any,
) -> tuple[Graph, str]:
    """Return the graph of these tables and all that was told."""
    folder.mkdir(exist_ok=True)
    write = pa_csv.write_csv if ending == "csv" else pq.write_table
    count = len(next(iter(nodes.values())))
    edges = edges or {"src": [0, 1], "dst": [1, 2]}
    write(pa.table({"id": list(range(count)), **nodes}), folder / f"nodes.{ending}")
    write(pa.table(edges), folder / f"edges.{ending}")
    notes = ingest_to_store(folder, folder / "store", options=TableOptions(**options))
    graph = load_store(folder / "store")
    check_graph(graph)
    return graph, "\n".join(notes)


def schema_of(graph: Graph) -> Schema:
    """Return the schema, which tables always have."""
    assert graph.schema is not None
    return graph.schema
