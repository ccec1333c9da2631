"""Looking ids up, sorting in buckets with wide indices, and gathering different ids."""

import numpy as np
import pyarrow as pa
import pytest

from siafu.graph import IntegerIds, TextIds, add_reverse_edges, graph_from_edges
from siafu.ingest.tables.buckets import Buckets, record_type
from siafu.ingest.tables.ids import (
    IntegerRows,
    ScatteredIntegerRows,
    SeenIds,
    TextRows,
    index_ids,
)


@pytest.mark.parametrize("make", [IntegerRows, ScatteredIntegerRows])
@pytest.mark.parametrize("ids", [[5, 6, 7], [7, 5, 6], [-3, 0, 4]])
def test_integers_are_found_and_strangers_are_not(make, ids):
    rows = make(IntegerIds(np.array(ids)))
    extremes = [2**63 - 1, -(2**63), 100, 1]
    found = rows.find(pa.array([ids[2], ids[0], *extremes], pa.int64()))
    np.testing.assert_array_equal(found, [2, 0, -1, -1, -1, -1])


def test_many_texts_are_found():
    texts = [f"node-{i}" for i in range(5_000)]
    rows = TextRows(TextIds.from_arrow(pa.array(texts)))
    wanted = pa.array([*texts[::-1], "node", "", "node-5000"], pa.large_string())
    np.testing.assert_array_equal(rows.find(wanted), [*range(4_999, -1, -1), -1, -1, -1])


def test_slices_of_text_columns_are_found():
    rows = TextRows(TextIds.from_arrow(pa.array(["a", "bb", "ccc"])))
    column = pa.array(["zz", "ccc", "a"], pa.large_string()).slice(1)
    np.testing.assert_array_equal(rows.find(column), [2, 0])


@pytest.mark.parametrize(
    ("ids", "kind"), [([1, 2, 3], IntegerRows), ([1, 10**9], ScatteredIntegerRows)]
)
def test_kind_of_lookup_follows_the_range(ids, kind):
    assert isinstance(index_ids(IntegerIds(np.array(ids))), kind)


@pytest.mark.parametrize(("kind", "make"), [("integer", int), ("text", str)])
def test_seen_ids_are_merged_and_sorted(monkeypatch, kind, make):
    monkeypatch.setattr("siafu.ingest.tables.ids._GATHERED_ROWS", 5)
    kept = SeenIds(kind)
    values = np.random.default_rng(0).integers(-40, 40, size=(30, 7))
    wanted_type = pa.int64() if kind == "integer" else pa.large_string()
    for part in values:
        kept.add(pa.array([make(v) for v in part], wanted_type))
    want = sorted({make(v) for v in values.ravel()})
    assert kept.finish().to_arrow().to_pylist() == want


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_buckets_sort_either_index_type(tmp_path, index, undirected):
    generator = np.random.default_rng(1)
    src, dst = generator.integers(37, size=(2, 400))
    records = np.zeros(
        400, record_type(np.dtype(index), undirected=undirected, weight=False, attr=0)
    )
    records["src"], records["dst"] = src, dst
    want = graph_from_edges(src, dst, 37)
    if undirected:
        reverses = records.copy()
        reverses["src"], reverses["dst"], reverses["reverse"] = dst, src, True
        records = np.concatenate([records, reverses])
        want = add_reverse_edges(want)
    buckets = Buckets(tmp_path / "b", range(37), records.dtype, most_buckets=3)
    with buckets:
        for part in np.array_split(records, 7):
            buckets.add(part)
    numbers = range(buckets.num_buckets)
    rows = [rows for b in numbers for rows in buckets.sorted_rows(b, most_records=50)]
    np.testing.assert_array_equal(np.concatenate([r.counts for r in rows]), np.diff(want.indptr))
    np.testing.assert_array_equal(np.concatenate([r.records["src"] for r in rows]), want.src)
    assert sorted((tmp_path / "b").rglob("*")) == sorted(buckets.path(b) for b in numbers)
