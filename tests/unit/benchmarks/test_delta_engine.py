"""Every way to send snapshots trains alike at a tiny size, and its bytes are counted."""

from argparse import Namespace

import pytest

from benchmarks.delta_engine import living_pairs, measure_model
from siafu.engine.dynamic import network, snapshots
from siafu.ops import DeltaStream, WindowStream


@pytest.mark.parametrize(
    ("model", "least"), [("tm-gcn", {"coo64": 18, "csr32": 7}), ("evolvegcn-o", {"coo64": 8})]
)
def test_ways_have_the_same_losses_and_unlike_bytes(model, least):
    graph = living_pairs(200, 3_000)
    row = measure_model(model, graph, Namespace(device="cpu", repeats=1))
    assert row["deltas epoch_median_ms"] > 0
    for name, times in least.items():
        assert row[f"{name} / deltas bytes"] > times
    # what stood for the engine's own is gone
    assert snapshots.DeltaStream is DeltaStream
    assert snapshots.WindowStream is WindowStream
    assert network.Reading is snapshots.Reading
