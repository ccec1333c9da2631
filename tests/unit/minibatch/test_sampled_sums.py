"""Sums and means of drawn edges are those of all edges, on average."""

from types import SimpleNamespace

import pytest
import torch

from siafu.minibatch.feature_rows import fact_rows, sampled_of
from siafu.nn import Draws, LocalNeighbours
from siafu.ops import CSR, DrawKey, sample_positions

DRAWS = 4000


@pytest.mark.parametrize("by_weight", [False, True])
@pytest.mark.parametrize("ask", ["sum", "mean", "normalised_sum"])
def test_drawn_edges_stand_for_all(ask: str, by_weight: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, columns = 3, 12
    indptr = torch.tensor([0, 7, 7, 17])
    index = torch.randint(rows, columns, (17,), generator=generator, dtype=torch.int32)
    weight = torch.rand(17, generator=generator, dtype=torch.float64) + 0.1
    whole = CSR(indptr, index, columns, weight)
    x = torch.randn(columns, 2, generator=generator, dtype=torch.float64)
    facts = torch.ones(columns, 3, dtype=torch.float64)
    shard = SimpleNamespace(num_owned=rows, edge_pieces=lambda: [(0, rows, whole)])
    facts[:rows] = fact_rows(shard)
    ids, draws = torch.arange(columns), Draws()
    want = _of_all(ask, whole, facts, x)
    keys = [DrawKey(0, 0, 5)]
    requests = torch.arange(rows).repeat(DRAWS)
    counts, positions = sample_positions(
        indptr,
        requests,
        torch.arange(rows * DRAWS),
        torch.zeros_like(requests),
        keys,
        4,
        replace=True,
        weight_E=weight if by_weight else None,
    )
    total = torch.zeros_like(want)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    for draw in range(DRAWS):
        low, high = starts[draw * rows], starts[(draw + 1) * rows]
        here = CSR(
            starts[draw * rows : (draw + 1) * rows + 1] - low,
            index[positions[low:high]],
            columns,
            None if by_weight else weight[positions[low:high]],
        )
        sampled = sampled_of(here, facts, None, by_weight=by_weight)
        total += getattr(LocalNeighbours(here, ids, draws, sampled=sampled), ask)(x)
    torch.testing.assert_close(total / DRAWS, want, rtol=0.0, atol=0.05 * float(want.abs().max()))


def _of_all(ask: str, whole: CSR, facts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return what all edges give, from a dense matrix."""
    matrix = torch.zeros(whole.num_rows, whole.num_cols, dtype=torch.float64)
    matrix.index_put_((whole.rows(), whole.index.long()), whole.weight, accumulate=True)
    if ask == "sum":
        return matrix @ x
    if ask == "mean":
        return matrix @ x / whole.degree().clamp(min=1)[:, None]
    root, rows = facts[:, 1].rsqrt(), whole.num_rows
    own = (facts[:rows, 2] / facts[:rows, 1])[:, None] * x[:rows]
    return root[:rows, None] * (matrix @ (root[:, None] * x)) + own
