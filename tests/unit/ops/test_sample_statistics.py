"""How often each edge, pair and order is sampled, against what probability says.

Draws are fixed by their keys, so a test that passes always does.
"""

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare

from siafu.ops import DrawKey, sample_positions

KEYS = [DrawKey(seed=1, epoch=e, purpose=p) for e in range(10) for p in range(10)]
SAMPLES = 60_000
WEIGHTS = [0.5, 3.0, 0.0, 1.0, 0.25, 2.0]
UNLIKELY = 1e-4


def samples(degree: int, fanout: int, **how) -> np.ndarray:
    """Offsets of one row, one line a sample, over many keys and ids."""
    row = torch.ones(SAMPLES, dtype=torch.int64)
    number = torch.arange(SAMPLES)
    indptr = torch.tensor([0, 1, 1 + degree])
    if "weights" in how:
        how["weight_E"] = torch.tensor([9.0, *how.pop("weights")])
    batch = number % len(KEYS)
    counts, positions = sample_positions(indptr, row, number // 7, batch, KEYS, fanout, **how)
    assert bool((counts == fanout).all())
    return positions.view(SAMPLES, fanout).numpy() - 1


def assert_frequencies(seen: np.ndarray, expected: np.ndarray) -> None:
    """Neither further from what was expected than chance explains, nor closer."""
    p = chisquare(seen, expected / expected.sum() * seen.sum()).pvalue
    assert UNLIKELY < p < 1 - UNLIKELY


@pytest.mark.parametrize(("degree", "fanout"), [(12, 5), (40, 1), (1000, 15), (90, 70)])
def test_every_edge_is_equally_likely_without_replacement(degree, fanout):
    share = fanout / degree
    seen = np.bincount(samples(degree, fanout).ravel(), minlength=degree)
    # the picks of one sample exclude each other, which makes counts vary less by this factor
    variance = SAMPLES * share * (1 - share) * degree / (degree - 1)
    p = chi2.sf(((seen - SAMPLES * share) ** 2).sum() / variance, degree - 1)
    assert UNLIKELY < p < 1 - UNLIKELY


@pytest.mark.parametrize(("degree", "fanout"), [(7, 2), (7, 3), (8, 7), (20, 2)])
def test_every_set_of_edges_is_equally_likely(degree, fanout):
    sets = {edges: n for n, edges in enumerate(combinations(range(degree), fanout))}
    drawn = np.sort(samples(degree, fanout), axis=1)
    seen = np.bincount([sets[tuple(line)] for line in drawn.tolist()], minlength=len(sets))
    assert_frequencies(seen, np.ones(len(sets)))


def test_pairs_of_a_large_sample_are_equally_likely():
    """At a fan-out whose taken edges are hashed: pairs of some edges, left out together."""
    degree, fanout = 90, 70
    taken = np.zeros((SAMPLES, degree), bool)
    np.put_along_axis(taken, samples(degree, fanout), values=True, axis=1)
    probability = fanout * (fanout - 1) / degree / (degree - 1)
    some = [0, 19, 20, 21, 45, 88, 89]  # on both sides of where Floyd's first draw ends
    deviation = np.sqrt(SAMPLES * probability * (1 - probability))
    for i, j in combinations(some, 2):
        together = int((taken[:, i] & taken[:, j]).sum())
        assert abs(together - SAMPLES * probability) < 4 * deviation


def test_draws_with_replacement_are_uniform_and_independent():
    drawn = samples(9, 4, replace=True)
    for first, second in [(0, 1), (1, 2), (0, 3)]:
        seen = np.bincount(9 * drawn[:, first] + drawn[:, second], minlength=81)
        assert_frequencies(seen, np.ones(81))


def test_draws_by_weight_with_replacement_follow_the_weights():
    drawn, weights = samples(6, 3, replace=True, weights=WEIGHTS), np.array(WEIGHTS)
    usable = np.flatnonzero(weights)
    for c in range(3):
        seen = np.bincount(drawn[:, c], minlength=6)
        assert seen[2] == 0
        assert_frequencies(seen[usable], weights[usable])
    together = np.bincount(6 * drawn[:, 0] + drawn[:, 2], minlength=36).reshape(6, 6)
    joint = np.outer(weights, weights)
    assert_frequencies(together[joint > 0], joint[joint > 0])


def test_draws_by_weight_without_replacement_follow_the_weights_in_turn():
    drawn = samples(6, 3, weights=WEIGHTS)
    usable = np.flatnonzero(WEIGHTS).tolist()
    orders = {order: n for n, order in enumerate(permutations(usable, 3))}
    seen = np.bincount([orders[tuple(line)] for line in drawn.tolist()], minlength=len(orders))
    expected = []
    for order in orders:
        left, probability = sum(WEIGHTS), 1.0
        for edge in order:
            probability *= WEIGHTS[edge] / left
            left -= WEIGHTS[edge]
        expected.append(probability)
    assert_frequencies(seen, np.array(expected))
