"""A dynamic graph's features, labels and events, and its folder."""

from dataclasses import replace

import numpy as np
import pytest

from siafu.errors import ConfigError, DataError, StoreError
from siafu.graph import (
    check_dynamic,
    degree_features,
    fingerprint_dynamic,
    load_dynamic_store,
    save_dynamic,
    smooth,
    snapshot_from_keys,
)
from siafu.ingest import load_dynamic


@pytest.fixture(scope="module")
def graph():
    return load_dynamic("drifting:60", edge_life=3)[0]


def test_store_gives_back_everything_memory_mapped(graph, tmp_path):
    save_dynamic(graph, tmp_path / "store")
    loaded = load_dynamic_store(tmp_path / "store")
    assert isinstance(loaded.deltas.added, np.memmap)
    assert fingerprint_dynamic(loaded) == fingerprint_dynamic(graph)
    assert loaded.edge_class_names == ("apart", "together")
    for got, want in zip(loaded.iterate(4, 9), graph.iterate(4, 9), strict=True):
        assert got.equals(want)
    assert load_dynamic(tmp_path / "store")[0].num_snapshots == graph.num_snapshots
    for asked in ({"window": 3}, {"edge_life": 2}, {"symmetric": True}):
        with pytest.raises(DataError, match="has its windows already"):
            load_dynamic(tmp_path / "store", **asked)


def test_a_damaged_store_is_refused(graph, tmp_path):
    save_dynamic(graph, tmp_path / "store")
    file = tmp_path / "store" / "added.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"added\.npy is damaged"):
        load_dynamic_store(tmp_path / "store")


def test_events_labels_and_features_follow_the_step(graph):
    events = graph.edge_events(5)
    assert events.src.shape == events.dst.shape == events.label.shape == events.weight.shape
    assert (events.weight == 1).all()
    assert graph.labels(5).shape == (60,)
    assert graph.features(5).shape == (60, graph.num_features) == (60, 16)
    bare = replace(graph, x=None, y=None)
    assert bare.labels(0) is None
    np.testing.assert_array_equal(bare.features(5), degree_features(graph.snapshot(5)))
    with pytest.raises(DataError, match="no such snapshot"):
        graph.snapshot(24)


def test_degree_features_are_in_and_out_degree():
    snapshot = snapshot_from_keys(np.array([1, 2, 5]), np.array([1.0, 2.0, 4.0]), 3)
    plain = degree_features(snapshot, "plain")
    np.testing.assert_array_equal(plain, [[3, 0], [4, 1], [0, 6]])
    np.testing.assert_allclose(degree_features(snapshot), np.log1p(plain))
    np.testing.assert_allclose(degree_features(snapshot, "standard").mean(axis=0), 0, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x": np.ones((59, 2), np.float32)}, "x does not fit"),
        ({"x": np.full((60, 2), np.nan, np.float32)}, "x is NaN"),
        ({"y": np.full(60, 4)}, "y is out of range"),
        ({"signal": np.ones((23, 60, 1), np.float32)}, "signal does not fit"),
        ({"event_label": np.zeros(3, np.int64)}, "event_label does not fit"),
        ({"num_edge_classes": 1}, "event_label is out of range"),
    ],
)
def test_contradictions_are_named(graph, change, problem):
    with pytest.raises(DataError, match=problem):
        check_dynamic(replace(graph, **change))


def test_a_moving_average_of_nothing_is_refused(graph):
    with pytest.raises(ConfigError, match="at least one"):
        next(smooth(graph.iterate(), 0))


def test_events_are_read_by_time(graph, tmp_path):
    attr = np.arange(graph.num_events, dtype=np.float32)[:, None]
    save_dynamic(replace(graph, event_attr=attr), tmp_path / "store")
    for each in (replace(graph, event_attr=attr), load_dynamic_store(tmp_path / "store")):
        for start, stop in [(3, 5), (2.5, 4), (-9, 0.5), (4, 4), (5, 3), (7, 1e9)]:
            inside = np.flatnonzero((graph.event_time >= start) & (graph.event_time < stop))
            found = each.events_between(start, stop)
            assert np.array_equal(found.attr[:, 0], inside)
            assert np.array_equal(found.time, graph.event_time[inside])
            assert np.array_equal(found.src, graph.event_src[inside])
            assert np.array_equal(found.label, graph.event_label[inside])
    for unfit in (replace(graph, event_time=None), replace(graph, overlapping=True)):
        with pytest.raises(DataError, match="read by time"):
            unfit.events_between(0, 1)
