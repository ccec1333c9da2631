"""TM-GCN's means of a band, made from counts where they can be: as a rank reads them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.engine.dynamic import snapshots
from siafu.engine.dynamic.snapshots import KEPT_SHARE, Reading, Snapshots
from siafu.engine.dynamic.step_shards import make_grid
from siafu.graph import DynamicGraph, smooth
from siafu.memory import total_bytes
from siafu.nn import Draws
from siafu.ops import CSR, DeltaStream, WindowStream
from tests.dynamic.graphs import awkward_dynamic
from tests.dynamic.steps import make_model

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


def weighted(factor: float) -> DynamicGraph:
    """The awkward graph with events of another weight."""
    graph = awkward_dynamic()
    base, deltas = graph.base, graph.deltas
    return replace(
        graph,
        base=replace(base, weight=base.weight * np.float32(factor)),
        deltas=replace(
            deltas,
            added_weight=deltas.added_weight * np.float32(factor),
            changed_weight=deltas.changed_weight * np.float32(factor),
        ),
    )


def snapshots_of(graph: DynamicGraph, device: str, reading: Reading | None = None) -> Snapshots:
    model = make_model("tm-gcn").to(device)
    share = make_grid(World(device=torch.device(device)), graph, 1).share
    return Snapshots(graph, range(graph.num_snapshots), model, Draws(), share, reading)


def matrices(found: Snapshots, steps: range) -> list[CSR]:
    return [at.neighbours.csr for at in found.read(steps)[1]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize(
    ("factor", "kind"),
    [(1.0, WindowStream), (0.5, WindowStream), (3.0, WindowStream), (0.3, DeltaStream)],
)
def test_means_are_those_of_the_definition(device, outward, factor, kind, monkeypatch):
    monkeypatch.setattr(snapshots, "copies_are_slow", lambda device: True)
    graph = weighted(factor)
    band = make_model("tm-gcn").band
    plain = list(graph.iterate())
    want = list(smooth((s.transposed() for s in plain) if outward else plain, band))
    for most_edges in (0, 10**6):
        found = snapshots_of(graph, device, Reading(outward=outward, most_edges_kept=most_edges))
        assert [type(stream) for _, stream in found._streams] == [kind] * (most_edges == 0)
        blocks = [range(low, min(low + 5, 13)) for low in range(0, 13, 5)]
        for block in [*blocks, *reversed(blocks)]:
            for step, csr in zip(block, matrices(found, block), strict=True):
                assert np.array_equal(csr.indptr.cpu(), want[step].indptr)
                assert np.array_equal(csr.index.cpu(), want[step].src)
                assert np.array_equal(csr.weight.cpu(), want[step].weight)  # to the bit
                turned = want[step].transposed()
                assert np.array_equal(csr.transpose().weight.cpu(), turned.weight)
        assert bool(found.sent_bytes) == (most_edges == 0)


@pytest.mark.parametrize("device", DEVICES)
def test_snapshots_are_kept_where_they_fit(device):
    found = snapshots_of(awkward_dynamic(), device)
    assert not found._streams
    most = found._most_edges(None)
    total = total_bytes() if device == "cpu" else torch.cuda.mem_get_info()[1]
    assert 0 < most * 8 * KEPT_SHARE <= total
    assert found._most_edges(7) == 7


@pytest.mark.parametrize("device", DEVICES)
def test_values_travel_where_copies_are_quick(device, monkeypatch):
    graph, means = awkward_dynamic(), {}
    for slow, kind in ((True, WindowStream), (False, DeltaStream)):
        monkeypatch.setattr(snapshots, "copies_are_slow", lambda device, slow=slow: slow)
        found = snapshots_of(graph, device, Reading(most_edges_kept=0))
        assert [type(stream) for _, stream in found._streams] == [kind]
        means[slow] = [csr.weight.clone() for csr in matrices(found, range(5))]
    assert all(torch.equal(*pair) for pair in zip(*means.values(), strict=True))
