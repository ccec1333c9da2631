"""For any events, windows and life, snapshots are the sums that their definition says."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.graph import IntegerIds, normalised, smooth
from siafu.ingest import EventOptions, Events, graph_from_events

NUM_NODES = 5


@st.composite
def some_events(draw: st.DrawFn) -> Events:
    """Events at whole times, out of order, with repeats and loops; the ends of time are set."""
    one = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 30))
    rows = [(0, 1, 30), (1, 2, 0), *draw(st.lists(one, max_size=25))]
    src, dst, time = np.array(rows).T
    weights = st.lists(st.sampled_from([1, 2, 0.25]), min_size=len(rows), max_size=len(rows))
    weight = np.array(draw(weights))
    return Events(
        name="some",
        ids=IntegerIds(np.arange(NUM_NODES)),
        src=src,
        dst=dst,
        time=time,
        weight=weight.astype(np.float32),
        label=np.arange(len(rows)),
        num_edge_classes=len(rows),
    )


def window_sums(events: Events, window: int, stride: int, weighting: str) -> list[np.ndarray]:
    """The definition: [dst, src] sums of the events of each window, one event at a time."""
    sums = []
    for start in range(0, 31, stride):
        total = np.zeros((NUM_NODES, NUM_NODES))
        for s, d, t, w in zip(events.src, events.dst, events.time, events.weight, strict=True):
            if start <= t < start + window:
                total[d, s] += w if weighting == "sum" else 1
        sums.append(total)
    return sums


def dense(snapshot) -> np.ndarray:
    out = np.zeros((NUM_NODES, NUM_NODES))
    out[snapshot.dst(), snapshot.src] = snapshot.weight
    return out


@settings(max_examples=60, deadline=None)
@given(
    some_events(),
    st.sampled_from([(1, 1), (7, 7), (7, 3), (3, 7), (30, 30)]),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["sum", "count", "one"]),
)
def test_snapshots_are_sums_over_the_life_of_edges(events, cut, life, symmetric, weighting):
    window, stride = cut
    graph, _ = graph_from_events(
        events,
        window=window,
        stride=stride,
        edge_life=life,
        symmetric=symmetric,
        options=EventOptions(weighting=weighting),
    )
    sums = window_sums(events, window, stride, weighting)
    if symmetric:
        sums = [(a + a.T) / 2 for a in sums]
    assert graph.num_snapshots == len(sums)
    for t, snapshot in enumerate(graph.iterate()):
        want = np.sum(sums[max(0, t - life + 1) : t + 1], axis=0)
        if weighting == "one":
            want = (want > 0).astype(float)
        np.testing.assert_array_equal(dense(snapshot), want)
        assert snapshot.num_edges == np.count_nonzero(want)
        inside = (events.time >= t * stride) & (events.time < t * stride + window)
        assert sorted(graph.edge_events(t).label) == sorted(np.flatnonzero(inside))


@settings(max_examples=15, deadline=None)
@given(some_events(), st.integers(1, 4))
def test_smoothing_is_the_mean_of_the_last_normalised_snapshots(events, bandwidth):
    graph, _ = graph_from_events(events, window=5, edge_life=2)
    dense_A = []
    for snapshot, got in zip(graph.iterate(), smooth(graph.iterate(), bandwidth), strict=True):
        adjacency = dense(snapshot)
        adjacency += np.diag(adjacency.diagonal() == 0)
        root = adjacency.sum(axis=1) ** -0.5
        dense_A.append(root[:, None] * adjacency * root)
        np.testing.assert_allclose(dense(normalised(snapshot)), dense_A[-1], rtol=1e-6)
        np.testing.assert_allclose(dense(got), np.mean(dense_A[-bandwidth:], axis=0), rtol=1e-6)
