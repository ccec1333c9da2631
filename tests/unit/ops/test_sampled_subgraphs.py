"""Sub-graphs of several minibatches grown together on a device: those of the relay to the bit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siafu.comm import World
from siafu.minibatch.device_relay import DeviceGraph, DeviceRelay
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Minibatch
from siafu.minibatch.served import Sampling, Served
from siafu.minibatch.subgraph import Subgraph
from siafu.ops import CSR, kernels
from siafu.shard import HeldRows
from tests.unit.ops.interpreter import INTERPRETED

ON_CPU = kernels.fast["cpu"]
KINDS = [
    {},
    {"replace": True},
    {"replace": True, "weighted": True},
    {"weighted": True},
]


def served_of(degrees: list[int], seed: int, *, weighted: bool) -> Served:
    """A rank that owns all nodes, with edges drawn by `seed`; ids are far beyond the nodes."""
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    nodes, edges = len(degrees), int(indptr[-1])
    index = torch.randint(0, nodes, (edges,), generator=generator, dtype=torch.int32)
    weight = torch.rand(edges, generator=generator)
    weight[::3] = 0
    columns: dict[Any, HeldRows] = {
        "edge_weight": HeldRows(weight),
        "edge_attr": HeldRows(torch.rand(edges, 2, generator=generator)),
        "edge_type": HeldRows(torch.randint(0, 3, (edges,), generator=generator)),
    }
    shard: Any = SimpleNamespace(
        csr=CSR(indptr, index, nodes, weight),
        row_ids=torch.randint(0, 2**48, (nodes,), generator=generator),
        reader=columns.get,
        let_go=lambda: None,
    )
    chances = weight if weighted else None
    return Served(shard, torch.arange(nodes), HeldRows(index), columns, {}, chances)


def drawn_on_host(relay: Relay, epoch: int, batches: list[Minibatch]) -> list[Subgraph]:
    """What the relay draws with the kernels of the CPU, whichever are under test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernels.fast, "cpu", ON_CPU)
        return relay.sample(epoch, batches)


def same(got: Subgraph, want: Subgraph) -> None:
    assert (got.number, got.reached, got.ends) == (want.number, want.reached, want.ends)
    assert list(got.edges) == list(want.edges)
    pairs = [(getattr(got, name), getattr(want, name)) for name in ("addresses", "indptr", "index")]
    pairs += zip(got.edges.values(), want.edges.values(), strict=True)
    pairs.append((got.degree(got.reached[-2]), want.indptr.diff()))
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("kind", KINDS, ids=["distinct", "replace", "weighted", "earliest"])
@settings(
    max_examples=3 if INTERPRETED else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    degrees=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_sub_graphs_are_those_of_the_relay(device, kind, degrees, fanouts, sizes, seed) -> None:
    sampling = Sampling(fanouts=tuple(fanouts), **kind)
    served = served_of(degrees, seed, weighted=sampling.weighted)
    generator = torch.Generator().manual_seed(seed)
    batches = [
        # some seeds twice, as edges have them
        Minibatch(number, torch.randint(0, len(degrees), (size,), generator=generator))
        for number, size in enumerate(sizes)
    ]
    relay = Relay(served, World(), sampling, seed=7)
    graph = DeviceGraph.build(served, device)
    together = DeviceRelay(graph, served, World(), sampling, seed=7)
    for epoch in (1, 2):
        got, want = together.sample(epoch, batches), drawn_on_host(relay, epoch, batches)
        for ours, theirs in zip(got, want, strict=True):
            same(ours, theirs)


def test_minibatches_that_do_not_fit_together_grow_in_groups(device, monkeypatch) -> None:
    monkeypatch.setattr("siafu.minibatch.device_relay._TABLE_BYTES", 2 * 4 * 30)
    served = served_of([5] * 30, 3, weighted=False)
    sampling = Sampling(fanouts=(3, 2))
    batches = [Minibatch(number, torch.arange(number, number + 4)) for number in range(5)]
    relay = Relay(served, World(), sampling, seed=7)
    together = DeviceRelay(DeviceGraph.build(served, device), served, World(), sampling, seed=7)
    want = drawn_on_host(relay, 1, batches)
    for ours, theirs in zip(together.sample(1, batches), want, strict=True):
        same(ours, theirs)
