"""Groups of nodes have all edges of a dynamic graph between them, each once."""

from dataclasses import replace

import numpy as np
import pytest

from siafu.graph import DynamicGraph, group_graph
from tests.dynamic.graphs import awkward_dynamic

GROUPS = (2, 0, 0, 1)


def grouped() -> DynamicGraph:
    graph = awkward_dynamic()
    return replace(graph, part_of=np.resize(np.array(GROUPS, np.int32), graph.num_nodes))


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize("keys_at_once", [5, 1 << 22])
def test_groups_add_up_to_the_graph(monkeypatch, outward: bool, keys_at_once: int) -> None:
    monkeypatch.setattr("siafu.graph.node_groups._KEYS_AT_ONCE", keys_at_once)
    graph = grouped()
    parts = [group_graph(graph, part, outward=outward) for part in range(3)]
    for step, whole in enumerate(graph.iterate()):
        edges = {}
        for number, part in enumerate(parts):
            snapshot = part.graph.snapshot(step)
            ends = part.nodes_C[snapshot.dst()], part.nodes_C[snapshot.src]
            assert (graph.part_of[ends[1 if outward else 0]] == number).all()
            pairs = zip(ends[0].tolist(), ends[1].tolist(), strict=True)
            edges |= dict(zip(pairs, snapshot.weight.tolist(), strict=True))
        pairs = zip(whole.dst().tolist(), whole.src.tolist(), strict=True)
        assert edges == dict(zip(pairs, whole.weight.tolist(), strict=True))


def test_a_group_knows_its_own_and_whom_they_meet() -> None:
    graph = grouped()
    part = group_graph(graph, 1)
    own = np.flatnonzero(graph.part_of == 1)
    assert (part.nodes_C[part.own_n] == own).all()
    met = {int(v) for s in part.graph.iterate() for v in part.nodes_C[s.src]}
    assert set(part.nodes_C.tolist()) == met | set(own.tolist())
