"""Widths of least variance: against a solver, in the order of the rows, for any layers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from siafu.comm import UNCHANGED, Format
from siafu.errors import PlanError
from siafu.strategy.rounding.assignment import (
    Messages,
    assign_bytes,
    chain_of,
    cost_of,
    mean_bits_budget,
    random_assignment,
    sensitivity,
    uniform,
)

GAP = 1.02


def rounded(*bits):
    """Return formats of so many bits."""
    return tuple(Format("rounded", each) for each in bits)


FOUR = Format("rounded", 4)


def solve(messages, choices, *, budget, scale):
    """Return the optimum that HiGHS proves: one width per message, and bytes within the budget."""
    count, num_choices = len(messages), len(choices)
    size = np.array([[each.row_bytes(int(w)) for each in choices] for w in messages.width_K])
    variance = messages.beta_K[:, None] * np.array([each.variance for each in choices])
    columns = count * num_choices
    matrix = lil_matrix((count + 1, columns))
    for k in range(count):
        matrix[k, k * num_choices : (k + 1) * num_choices] = 1
    matrix[-1] = size.ravel()
    least, most = np.append(np.ones(count), -np.inf), np.append(np.ones(count), budget)
    found = milp(
        variance.ravel() / scale,
        constraints=LinearConstraint(matrix.tocsr(), least, most),
        integrality=np.ones(columns),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-6},
    )
    assert found.status == 0
    return found.fun * scale


def problem(seed, choices=(2, 8)):
    """Return messages of one or two widths, what the ends of the choices cost, and a share."""
    draw = np.random.default_rng(seed)
    exchanges, count = draw.integers(1, 3), int(draw.integers(12, 60))
    width = draw.choice([41, 64, 256], exchanges)[draw.integers(0, exchanges, count)]
    messages = Messages(draw.lognormal(0, 2, count), width)
    ends = [cost_of(messages, uniform(count, each)) for each in rounded(choices[0], choices[-1])]
    return messages, ends, draw.uniform(0.05, 0.8)


@pytest.mark.parametrize("choices", [(2, 4, 8), (2, 4, 8, 16), (4, 8)])
@pytest.mark.parametrize("seed", range(6))
def test_bytes_are_spent_as_well_as_the_solver_does(seed, choices):
    messages, (low, high), share = problem(seed, choices)
    budget = low.num_bytes + share * (high.num_bytes - low.num_bytes)
    formats = rounded(*choices)
    got = assign_bytes(messages, budget, formats)
    assert got.num_bytes <= budget
    assert got.variance <= GAP * solve(messages, formats, budget=budget, scale=got.variance)


def follows_scores(messages, codes_K):
    """Return whether a row with a larger score never has fewer bits, all of one width."""
    ordered = codes_K[np.argsort(messages.beta_K)]
    return not (np.diff(ordered.astype(int)) < 0).any()


def test_scores_follow_rows_and_a_mix_up_would_show():
    """AdaQP's released code reads sorted scores by the original ids; widths are then noise."""
    draw = np.random.default_rng(3)
    messages = Messages(draw.lognormal(0, 2, 900), np.full(900, 256))
    budget = cost_of(messages, uniform(900, FOUR)).num_bytes
    right = assign_bytes(messages, budget)
    assert follows_scores(messages, right.codes_K)
    mixed_up = replace(messages, beta_K=np.sort(messages.beta_K)[::-1].copy())
    wrong = cost_of(messages, assign_bytes(mixed_up, budget).codes_K)
    assert not follows_scores(messages, wrong.codes_K)
    assert right.variance < 0.5 * wrong.variance


def test_reordered_messages_get_reordered_widths():
    draw = np.random.default_rng(5)
    messages, (low, high), share = problem(11)
    order = draw.permutation(len(messages))
    moved = Messages(messages.beta_K[order], messages.width_K[order])
    budget = low.num_bytes + share * (high.num_bytes - low.num_bytes)
    want = assign_bytes(messages, budget).codes_K[order]
    assert np.array_equal(want, assign_bytes(moved, budget).codes_K)


def test_twelve_layers_of_a_directed_graph_share_one_budget():
    """Forward and backward sets differ, layers differ in width, and one layer matters most."""
    draw = np.random.default_rng(8)
    layers = 12
    exchanges = 2 * layers - 1
    beta = [draw.lognormal(6 if n == 11 else 0, 1, 160) for n in range(exchanges)]
    width = [np.full(160, 500 if n == 0 else 64) for n in range(exchanges)]
    messages = Messages(np.concatenate(beta), np.concatenate(width))
    same = cost_of(messages, uniform(len(messages), FOUR))
    got = assign_bytes(messages, same.num_bytes)
    assert got.num_bytes <= same.num_bytes
    assert got.variance < 0.2 * same.variance
    mean_bits = got.codes_K.reshape(exchanges, 160).mean(axis=1)
    assert np.argmax(mean_bits) == 11


def test_a_hundred_thousand_messages_take_a_moment():
    """benchmarks/wire.py has the figure; the bound here only rules out another growth."""
    draw = np.random.default_rng(2)
    count = 100_000
    messages = Messages(draw.lognormal(0, 2, count), np.full(count, 256))
    same = cost_of(messages, uniform(count, FOUR))
    got = assign_bytes(messages, same.num_bytes)
    assert 0.99 * same.num_bytes < got.num_bytes <= same.num_bytes
    assert got.variance < same.variance / 3


def test_random_and_uniform_are_worse_at_the_same_bytes():
    messages, *_ = problem(4)
    messages = replace(messages, width_K=np.full(len(messages), 256))
    budget = mean_bits_budget(messages, 4)
    assert budget == cost_of(messages, uniform(len(messages), FOUR)).num_bytes
    ours, random = assign_bytes(messages, budget), random_assignment(messages, budget, seed=1)
    assert random.num_bytes <= budget
    assert ours.variance < cost_of(messages, uniform(len(messages), FOUR)).variance
    assert ours.variance < random.variance
    again = random_assignment(messages, budget, seed=1)
    assert np.array_equal(again.codes_K, random.codes_K)
    other = random_assignment(messages, budget, seed=2)
    assert not np.array_equal(other.codes_K, random.codes_K)


def test_ends_of_the_budget_give_the_ends_of_the_choices():
    messages, (low, high), _ = problem(6)
    assert (assign_bytes(messages, 0.5 * low.num_bytes).codes_K == 2).all()
    assert (assign_bytes(messages, high.num_bytes).codes_K == 8).all()
    still = replace(messages, beta_K=messages.beta_K * 0)
    assert (assign_bytes(still, 1e9).codes_K == 2).all()
    nothing = Messages(np.zeros(0), np.zeros(0, int))
    assert len(assign_bytes(nothing, 10).codes_K) == 0


def test_chains_leave_out_what_is_never_worth_it():
    assert chain_of(256, rounded(2, 4, 8))[0] == [2, 4, 8]
    # one column: four bytes as they are, twelve with a header
    assert chain_of(1, (*rounded(2, 4, 8, 16), UNCHANGED))[0] == [32]
    assert chain_of(16, (*rounded(2, 4, 8), UNCHANGED))[1] == [12, 16, 24, 64]


def test_sensitivity_is_the_variance_at_one_level():
    beta = sensitivity(np.array([0.5, 2.0]), np.array([3.0, 1.0], np.float32), 12)
    assert np.allclose(beta, [0.5 * 9 * 2, 2 * 1 * 2])


def test_foreseeable_misuse_is_refused():
    with pytest.raises(PlanError, match="0 or more"):
        Messages(np.array([np.nan]), np.array([4]))
    with pytest.raises(PlanError, match="one length"):
        Messages(np.ones(2), np.array([4]))
    with pytest.raises(PlanError, match="Unknown format"):
        rounded(2, 3)


def test_rows_that_share_a_width_cost_what_they_cost_apart() -> None:
    """A message of several rows is one choice: their bytes together, their sensitivities added."""
    draw = np.random.default_rng(3)
    rows, width = draw.integers(1, 17, 300), draw.choice([20, 23], 300)
    beta = draw.lognormal(0, 2, 300)
    groups = Messages(beta, width, rows)
    parts = np.repeat(np.arange(300), rows)
    apart = Messages(beta[parts] / rows[parts], width[parts])
    budget = mean_bits_budget(groups, 4)
    assert budget == mean_bits_budget(apart, 4)
    found = assign_bytes(groups, budget)
    same = cost_of(apart, found.codes_K[parts])
    assert found.num_bytes == same.num_bytes
    assert found.variance == pytest.approx(same.variance)
    assert 0.99 * budget < found.num_bytes <= budget
    assert assign_bytes(apart, budget).variance <= found.variance * (1 + 1e-9)
    blind = random_assignment(groups, budget, 1)
    assert found.variance < blind.variance
