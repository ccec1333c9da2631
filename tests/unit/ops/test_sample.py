"""Samples by address: the kernels give the definition's, whatever is asked for beside them."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from siafu.errors import ConfigError, PlanError
from siafu.ops import DrawKey, sample_positions, sample_reference, set_threads
from tests.unit.ops.interpreter import INTERPRETED

KEYS = [DrawKey(seed=5, epoch=1, purpose=p) for p in range(3)]
DEGREES = [0, 1, 7, 200, 0, 64, 65, 15, 16, 3]
FANOUTS = [-1, 0, 1, 2, 7, 15] if INTERPRETED else [-1, 0, 1, 2, 7, 15, 64, 65, 150]


def offsets_of(degrees: list[int]) -> Tensor:
    return torch.tensor([0, *degrees]).cumsum(0)


def requests(num_rows: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, repeated and in no order; ids that use all of their 48 bits; minibatches."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(0, num_rows, (count,), generator=generator)
    id_of_row = torch.randint(0, 2**48, (num_rows,), generator=generator)
    return rows, id_of_row[rows], torch.randint(0, len(KEYS), (count,), generator=generator)


def weights_of(num_edges: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Weights of which a third are 0, and all of the 16 edges of row 8."""
    weight = torch.rand(num_edges, generator=torch.Generator().manual_seed(3), dtype=dtype)
    weight[::3] = 0
    weight[sum(DEGREES[:8]) : sum(DEGREES[:9])] = 0
    return weight


def groups(counts: Tensor, positions: Tensor) -> list[list[int]]:
    return [piece.tolist() for piece in positions.split(counts.tolist())]


def sampled_on(
    device: torch.device,
    indptr: Tensor,
    asked: tuple[Tensor, ...],
    fanout: int,
    *,
    replace: bool = False,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the kernels of a device draw, on the host."""
    rows, ids, batch = (column.to(device) for column in asked)
    there = None if weight is None else weight.to(device)
    counts, positions = sample_positions(
        indptr.to(device), rows, ids, batch, KEYS, fanout, replace=replace, weight_E=there
    )
    return counts.cpu(), positions.cpu()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_gives_what_the_definition_says(device, replace, weighted):
    indptr = offsets_of(DEGREES)
    weight = weights_of(sum(DEGREES)) if weighted else None
    asked = requests(len(DEGREES), 13 if INTERPRETED else 37)  # not a multiple of the lanes
    for fanout in FANOUTS:
        got = sampled_on(device, indptr, asked, fanout, replace=replace, weight=weight)
        want = sample_reference(indptr, *asked, KEYS, fanout, replace=replace, weight_E=weight)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_weights_in_float64_are_not_rounded(device):
    indptr, weight = offsets_of([3]), torch.tensor([1e-60, 1e-300, 2e-60], dtype=torch.float64)
    asked = torch.zeros(50, dtype=torch.int64), torch.arange(50), torch.zeros(50, dtype=torch.int64)
    got = sampled_on(device, indptr, asked, 1, weight=weight)
    assert torch.equal(got[1], sample_reference(indptr, *asked, KEYS, 1, weight_E=weight)[1])
    assert set(got[1].tolist()) == {0, 2}


def test_least_weights_there_are_fill_a_sample(device):
    """Their -log(u) / weight is infinite, yet they come before edges of weight 0.

    Not run by Triton's interpreter, where an overflow is a warning.
    """
    least = 5e-324
    indptr = offsets_of([5])
    weight = torch.tensor([0, least, 1e-60, least, 2e-60], dtype=torch.float64)
    asked = torch.zeros(9, dtype=torch.int64), torch.arange(9), torch.zeros(9, dtype=torch.int64)
    for replace in (False, True):
        got = sampled_on(device, indptr, asked, 3, replace=replace, weight=weight)
        want = sample_reference(indptr, *asked, KEYS, 3, replace=replace, weight_E=weight)
        assert torch.equal(got[1], want[1])
        assert 0 not in got[1].tolist()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [5, 100])
def test_rows_may_be_longer_than_32_bits(device, fanout, replace):
    indptr = torch.tensor([0, 3, 3 + 2**40, 2**62])
    asked = torch.tensor([1, 2, 1]), torch.tensor([4, 5, 6]), torch.tensor([0, 1, 2])
    got = sampled_on(device, indptr, asked, fanout, replace=replace)
    want = sample_reference(indptr, *asked, KEYS, fanout, replace=replace)
    assert torch.equal(got[1], want[1])
    assert int(got[1].max()) > 2**60


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanout", [15, 2000])
def test_hub_gives_distinct_edges_of_its_own(fanout, weighted):
    indptr = offsets_of([10, 100_000, 10])
    weight = torch.rand(100_020, generator=torch.Generator().manual_seed(4)) if weighted else None
    asked = torch.ones(6, dtype=torch.int64), torch.arange(6), torch.zeros(6, dtype=torch.int64)
    counts, positions = sample_positions(indptr, *asked, KEYS, fanout, weight_E=weight)
    assert counts.tolist() == [fanout] * 6
    for edges in groups(counts, positions):
        assert len(set(edges)) == fanout
        assert min(edges) >= 10
        assert max(edges) < 100_010


def test_short_rows_are_taken_whole_and_in_order():
    indptr, weight = offsets_of(DEGREES), weights_of(sum(DEGREES))
    rows = torch.arange(len(DEGREES))
    whole = [list(range(lo, hi)) for lo, hi in pairwise(indptr.tolist())]
    for fanout, short in [(-1, 1000), (15, 15)]:
        sampled = sample_positions(indptr, rows, rows, torch.zeros_like(rows), KEYS, fanout)
        for got, want in zip(groups(*sampled), whole, strict=True):
            assert got == want or len(want) > short
    _, usable = sample_positions(
        indptr, rows, rows, torch.zeros_like(rows), KEYS, -1, weight_E=weight
    )
    assert usable.tolist() == weight.nonzero().flatten().tolist()


@pytest.mark.parametrize("weighted", [False, True])
def test_sample_depends_on_key_id_and_row_alone(threads, weighted):
    degrees = torch.randint(0, 40, (500,), generator=torch.Generator().manual_seed(1)).tolist()
    indptr = offsets_of(degrees)
    weight = weights_of(sum(degrees)) if weighted else None
    rows, ids, batch = requests(500, 20_000)  # enough for several threads
    set_threads(1)
    alone = groups(*sample_positions(indptr, rows, ids, batch, KEYS, 10, weight_E=weight))
    set_threads(3)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(8))
    # other minibatches before, and other rows of the same ids elsewhere in the offsets
    keys = [DrawKey(seed=9, epoch=9, purpose=9), *KEYS]
    mixed = sample_positions(
        indptr, rows[order], ids[order], batch[order] + 1, keys, 10, weight_E=weight
    )
    assert groups(*mixed) == [alone[q] for q in order.tolist()]


def test_minibatches_hops_and_nodes_draw_apart():
    indptr, rows = offsets_of([1000]), torch.zeros(6, dtype=torch.int64)
    ids, batch = torch.tensor([0, 1, 2**32, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 2])
    counts, positions = sample_positions(indptr, rows, ids, batch, KEYS, 8)
    assert len({tuple(edges) for edges in groups(counts, positions)}) == 6


def test_no_requests_give_no_samples():
    none = torch.zeros(0, dtype=torch.int64)
    for weight in (None, torch.ones(4)):
        counts, positions = sample_positions(
            offsets_of([4]), none, none, none, [], 3, weight_E=weight
        )
        assert len(counts) == len(positions) == 0


def test_misuse_is_named():
    indptr, one = offsets_of([2]), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="fan-out"):
        sample_positions(indptr, one, one, one, KEYS, -2)
    with pytest.raises(PlanError, match="a row, an id and a minibatch"):
        sample_positions(indptr, one, one.repeat(2), one, KEYS, 2)
    with pytest.raises(PlanError, match="offsets"):
        sample_positions(indptr.int(), one, one, one, KEYS, 2)
    with pytest.raises(PlanError, match="Weights"):
        sample_positions(indptr, one, one, one, KEYS, 2, weight_E=torch.ones(2).long())
    with pytest.raises(PlanError, match="one per edge"):
        sample_positions(indptr, one, one, one, KEYS, 2, weight_E=torch.ones(1))
    with pytest.raises(PlanError, match="key"):
        sample_positions(indptr, one, one, one + 3, KEYS, 2)
    with pytest.raises(PlanError, match="rows"):
        sample_positions(indptr, one + 1, one, one, KEYS, 2)
