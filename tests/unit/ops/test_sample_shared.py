"""Draws of sources: kernels give the definition's, nodes agree, and each row is a plain sample."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from siafu.ops import DrawKey, key_words, shared_positions
from siafu.ops.sample import numba, positions, reference, sorting
from tests.unit.ops.test_sample import DEGREES, groups, offsets_of

KEYS = [DrawKey(seed=5, epoch=1, purpose=p) for p in range(3)]
WAYS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "numba": numba.share,
    "sorting": sorting.share,
}


def sources_of(num_edges: int) -> Tensor:
    """Sources that repeat, of ids that use all of their 48 bits."""
    generator = torch.Generator().manual_seed(6)
    ids = torch.randint(0, 2**48, (max(1, num_edges // 2),), generator=generator)
    return ids[torch.randint(0, len(ids), (num_edges,), generator=generator)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("degrees", [DEGREES, [], [0, 0], [1], [3000, 0, 2]], ids=str)
def test_kernels_give_what_the_definition_says(way: str, degrees: list[int]) -> None:
    indptr, ids = offsets_of(degrees), sources_of(sum(degrees))
    batch = torch.arange(len(degrees)) % len(KEYS)
    for fanout in (0, 1, 2, 7, 15, 64, 100, 5000):
        want = reference.share(indptr, ids, batch, key_words(KEYS), fanout)
        got = WAYS[way](indptr, ids, batch, key_words(KEYS), fanout)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def drawn(degrees: list[int], rows: Tensor, batch: Tensor, fanout: int, ids: Tensor):
    read: list[int] = []

    def ids_of(edges: Tensor) -> Tensor:
        read.append(len(edges))
        return ids[edges]

    indptr = offsets_of(degrees)
    found = shared_positions(indptr, rows, batch, key_words(KEYS), fanout, ids_of)
    return groups(*found), read


def test_a_sample_depends_on_key_and_sources_alone(monkeypatch) -> None:
    degrees = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    ids = sources_of(sum(degrees))
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(0, 300, (2000,), generator=generator)
    batch = torch.randint(0, len(KEYS), (2000,), generator=generator)
    alone, _ = drawn(degrees, rows, batch, 10, ids)
    # a few rows at a time, one of which has more edges than are compared at once
    monkeypatch.setattr(positions, "EDGES_AT_ONCE", 35)
    order = torch.randperm(2000, generator=generator)
    mixed, read = drawn(degrees, rows[order], batch[order], 10, ids)
    assert mixed == [alone[q] for q in order.tolist()]
    assert max(read) <= 35, "a longer row is read in slices"
    cut = [degrees[row] for row in rows.tolist() if degrees[row] > 10]
    assert sum(cut) <= sum(read) <= 1.5 * sum(cut), "rows that are taken whole are not read"


def test_rows_keep_the_same_ones_of_their_common_sources() -> None:
    ids = torch.arange(1000, 1040)
    both, _ = drawn([40, 40], torch.tensor([0, 1]), torch.tensor([0, 0]), 7, ids.repeat(2))
    assert both[0] == [edge - 40 for edge in both[1]]
    apart, _ = drawn([40, 40], torch.tensor([0, 1]), torch.tensor([0, 1]), 7, ids.repeat(2))
    assert apart[0] != [edge - 40 for edge in apart[1]]


@pytest.mark.parametrize(("degree", "fanout"), [(12, 5), (40, 1), (200, 15)])
def test_every_edge_of_a_row_is_equally_likely(degree: int, fanout: int) -> None:
    samples, keys = 20_000, [DrawKey(seed=3, epoch=e, purpose=0) for e in range(100)]
    batch, indptr = torch.arange(samples) % 100, torch.arange(samples + 1) * degree
    ids = torch.arange(samples * degree) * 7  # no source twice: rows are independent
    _, edges = numba.share(indptr, ids, batch, key_words(keys), fanout)
    seen = np.bincount((edges % degree).numpy(), minlength=degree)
    share = fanout / degree
    variance = samples * share * (1 - share) * degree / (degree - 1)
    p = chi2.sf(((seen - samples * share) ** 2).sum() / variance, degree - 1)
    assert 1e-4 < p < 1 - 1e-4


def test_no_requests_give_no_samples() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    counts, edges = shared_positions(
        offsets_of([4]), none, none, key_words(KEYS), 3, lambda edges: edges
    )
    assert len(counts) == len(edges) == 0
