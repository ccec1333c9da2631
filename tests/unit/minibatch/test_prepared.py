"""Loops and transposes of several sub-graphs at once are those of each alone."""

from itertools import accumulate

import pytest
import torch

from siafu.minibatch.prepared import prepare
from siafu.minibatch.subgraph import Subgraph
from siafu.nn.normalisation import with_self_loops


def graph_of(seed: int, met: list[int]) -> Subgraph:
    """A sub-graph of so many nodes per hop, with loops, rows without edges and repeated edges."""
    generator = torch.Generator().manual_seed(seed)
    reached = tuple(accumulate(met))
    degree = torch.randint(0, 4, (reached[-2],), generator=generator)
    ends = tuple(int(degree[:count].sum()) for count in reached[:-1])
    columns = [
        torch.randint(0, max(1, until), (high - low,), generator=generator, dtype=torch.int32)
        for until, low, high in zip(reached[1:], (0, *ends), ends, strict=False)
    ]
    indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    addresses = torch.arange(reached[-1])
    return Subgraph(seed, addresses, reached, indptr, torch.cat(columns), {}, ends)


@pytest.mark.parametrize("loops", [False, True])
def test_each_has_what_it_would_derive_alone(loops: bool) -> None:
    graphs = [graph_of(1, [4, 5, 6]), graph_of(2, [0, 0, 0]), graph_of(3, [3, 0, 9])]
    for graph, made in zip(graphs, prepare(graphs, loops=loops, first_layer=True), strict=True):
        for number in range(2):
            plain = graph.layer(number, 2)
            want = with_self_loops(plain)[0] if loops else plain
            got = made.layer(number, 2, looped=loops)
            assert torch.equal(got.indptr, want.indptr)
            assert torch.equal(got.index, want.index)
            back, wanted = got.transpose(), want.transpose()
            assert back is made.turned[1 - number]
            assert torch.equal(back.indptr, wanted.indptr)
            assert torch.equal(back.index, wanted.index)
            assert back.index.dtype == wanted.index.dtype
            counts = made.at_hand(number, 2).inverse_count(torch.float64)
            assert torch.equal(counts, 1 / plain.degree().clamp(min=1).double())


def test_what_first_layers_never_turn_is_left_out() -> None:
    (made,) = prepare([graph_of(1, [4, 5, 6])], loops=False, first_layer=False)
    assert made.turned[1] is None
    assert made.turned[0] is not None
