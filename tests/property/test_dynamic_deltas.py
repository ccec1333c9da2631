"""For any changes of any edges, deltas rebuild every snapshot exactly, on disk and on a device."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.graph import (
    DynamicGraph,
    IntegerIds,
    Snapshot,
    difference,
    join_deltas,
    load_dynamic_store,
    save_dynamic,
    snapshot_from_keys,
)
from siafu.ops import (
    CSR,
    DeltaStream,
    apply_delta,
    apply_delta_reference,
    decode_delta,
    edge_delta,
    encode_delta,
)

EXAMPLES = settings(max_examples=60, deadline=None)


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Snapshots whose edges come, go, come back and change weight; some have none at all."""
    num_nodes = draw(st.sampled_from([1, 2, 5, 70]))
    keys = st.integers(0, num_nodes * num_nodes - 1)
    weights = st.sampled_from([1.0, 2.0, 0.5, 300.0, -1.5])
    alive: dict[int, float] = {}
    snapshots = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            alive = {}
        for key in draw(st.lists(keys, max_size=8)):
            alive.pop(key, None)
        alive |= draw(st.dictionaries(keys, weights, max_size=12))
        order = sorted(alive)
        values = np.array([alive[key] for key in order], np.float32)
        snapshots.append(snapshot_from_keys(np.array(order, np.int64), values, num_nodes))
    return snapshots


def dynamic(snapshots: list[Snapshot]) -> DynamicGraph:
    deltas = [difference(now, then) for now, then in pairwise(snapshots)]
    return DynamicGraph(
        name="history",
        ids=IntegerIds(np.arange(snapshots[0].num_nodes)),
        times=np.arange(len(snapshots), dtype=np.float64),
        base=snapshots[0],
        deltas=join_deltas(deltas),
        event_starts=np.zeros(len(snapshots) + 1, np.int64),
        event_src=np.empty(0, np.int32),
        event_dst=np.empty(0, np.int32),
    )


def tensors(snapshot: Snapshot, *, weighted: bool = True) -> CSR:
    indptr, src, weight = (torch.from_numpy(array.copy()) for array in snapshot.arrays())
    return CSR.checked(indptr, src, snapshot.num_nodes, weight if weighted else None)


def assert_same(got: CSR, want: CSR) -> None:
    assert torch.equal(got.indptr, want.indptr)
    assert torch.equal(got.index, want.index)
    assert got.index.dtype == want.index.dtype
    assert (got.weight is None) == (want.weight is None)
    assert got.weight is None or torch.equal(got.weight, want.weight)


@EXAMPLES
@given(histories())
def test_deltas_rebuild_every_snapshot(snapshots):
    graph = dynamic(snapshots)
    replayed = list(graph.iterate())
    assert len(replayed) == len(snapshots)
    for t, (got, want) in enumerate(zip(replayed, snapshots, strict=True)):
        assert got.equals(want)
        assert graph.snapshot(t).equals(want)
        assert graph.edges_per_snapshot()[t] == want.num_edges
    half = len(snapshots) // 2
    assert all(g.equals(w) for g, w in zip(graph.iterate(half), snapshots[half:], strict=True))


@settings(max_examples=10, deadline=None)
@given(histories())
def test_a_store_gives_back_what_was_saved(tmp_path_factory, snapshots):
    graph = dynamic(snapshots)
    path = tmp_path_factory.mktemp("dynamic") / "store"
    save_dynamic(graph, path)
    loaded = load_dynamic_store(path)
    for got, want in zip(loaded.iterate(), snapshots, strict=True):
        assert got.equals(want)


@EXAMPLES
@given(histories(), st.booleans())
def test_applied_deltas_equal_their_definition(snapshots, weighted):
    for before, after in pairwise(snapshots):
        now, then = tensors(before, weighted=weighted), tensors(after, weighted=weighted)
        delta = edge_delta(now, then)
        assert_same(apply_delta_reference(now, delta), then)
        assert_same(apply_delta(now, delta), then)
        assert_same(apply_delta(now, decode_delta(*encode_delta(delta))), then)


@EXAMPLES
@given(histories(), st.data())
def test_a_stream_reaches_any_snapshot_from_any_other(snapshots, data):
    matrices = [tensors(snapshot) for snapshot in snapshots]
    stream = DeltaStream(iter(matrices), transpose="sent", first=3)
    times = st.integers(3, 2 + len(matrices))
    for _ in range(3):
        start, stop = data.draw(times), data.draw(times)
        steps = range(start, stop + 1) if stop >= start else range(start, stop - 1, -1)
        for t, got in zip(steps, stream.walk(steps), strict=True):
            assert_same(got, matrices[t - 3])
            assert_same(got.transpose(), matrices[t - 3].transpose())
