"""Widths of least variance: against a solver, in the order of the rows, for any layers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from siafu.comm.links import Lanes, Link, ring_lanes
from siafu.comm.width_search import chain_of
from siafu.comm.widths import (
    Messages,
    assign_bytes,
    assign_seconds,
    assign_tradeoff,
    cost_of,
    mean_bits_budget,
    random_assignment,
    sensitivity,
    uniform_widths,
)
from siafu.errors import PlanError
from siafu.ops import row_bytes

GAP = 1.02


def solve(messages, lanes, choices, *, budget=None, weight=None, scale=1.0):
    """Return the optimum that HiGHS proves: one width a message, a length for each round."""
    count, num_choices, rounds = len(messages), len(choices), lanes.num_rounds
    low, high = (
        cost_of(messages, uniform_widths(count, bits), lanes)
        for bits in (min(choices), max(choices))
    )
    unit = 1e4 / high.seconds  # the solver's tolerances are absolute
    size = np.array([[row_bytes(b, int(w)) for b in choices] for w in messages.width_K])
    variance = messages.beta_K[:, None] / (2.0 ** np.array(choices) - 1) ** 2
    used = np.unique(messages.lane_K)
    columns = count * num_choices
    matrix = lil_matrix((count + len(used) + 1, columns + rounds))
    least, most = np.full(matrix.shape[0], -np.inf), np.full(matrix.shape[0], np.inf)
    for k in range(count):
        matrix[k, k * num_choices : (k + 1) * num_choices] = 1
        least[k] = most[k] = 1
    for row, lane in enumerate(used, start=count):
        for k in np.flatnonzero(messages.lane_K == lane):
            for b in range(num_choices):
                time = lanes.byte_seconds_L[lane] * size[k, b] * unit
                matrix[row, k * num_choices + b] = time
        matrix[row, columns + lanes.round_L[lane]] = -1
        most[row] = -lanes.start_seconds_L[lane] * unit
    matrix[-1, columns:] = 1
    target = np.zeros(columns + rounds)
    if budget is not None:
        most[-1] = budget * unit
        target[:columns] = variance.ravel() / scale
    else:
        target[:columns] = weight * variance.ravel() / (low.variance - high.variance)
        target[columns:] = (1 - weight) / (high.seconds - low.seconds) / unit
    found = milp(
        target,
        constraints=LinearConstraint(matrix.tocsr(), least, most),
        integrality=np.repeat([1, 0], [columns, rounds]),
        bounds=Bounds(0, np.repeat([1, np.inf], [columns, rounds])),
        options={"mip_rel_gap": 1e-6},
    )
    assert found.status == 0
    return found.fun * scale


def problem(seed, choices=(2, 4, 8)):
    """Return messages over the pairs of some ranks and exchanges, and their lanes."""
    draw = np.random.default_rng(seed)
    ranks, exchanges, count = draw.integers(2, 5), draw.integers(1, 3), int(draw.integers(12, 60))
    links = [
        [Link(draw.uniform(0, 1e-4), draw.uniform(0.5, 2) * 1e-8) for _ in range(ranks)]
        for _ in range(ranks)
    ]
    numbers = np.arange(ranks * ranks * exchanges)
    between = numbers[numbers // ranks % ranks != numbers % ranks]
    lane = draw.choice(between, count)
    width = draw.choice([41, 64, 256], exchanges)[lane // (ranks * ranks)]
    messages = Messages(draw.lognormal(0, 2, count), width, lane)
    lanes = ring_lanes(links, exchanges)
    ends = [cost_of(messages, uniform_widths(count, b), lanes) for b in (choices[0], choices[-1])]
    return messages, lanes, ends, draw.uniform(0.05, 0.8)


@pytest.mark.parametrize("choices", [(2, 4, 8), (2, 4, 8, 16), (4, 8)])
@pytest.mark.parametrize("seed", range(6))
def test_bytes_are_spent_as_well_as_the_solver_does(seed, choices):
    messages, _, (low, high), share = problem(seed, choices)
    budget = low.num_bytes + share * (high.num_bytes - low.num_bytes)
    got = assign_bytes(messages, budget, choices)
    assert got.num_bytes <= budget
    one = replace(messages, lane_K=messages.lane_K * 0)
    flat = Lanes(np.zeros(1), np.ones(1), np.zeros(1, int))
    assert got.variance <= GAP * solve(one, flat, choices, budget=budget, scale=got.variance)


@pytest.mark.parametrize("choices", [(2, 4, 8), (2, 4, 8, 16)])
@pytest.mark.parametrize("seed", range(8))
def test_seconds_are_spent_as_well_as_the_solver_does(seed, choices):
    messages, lanes, (low, high), share = problem(seed, choices)
    budget = low.seconds + share * (high.seconds - low.seconds)
    got = assign_seconds(messages, lanes, budget, choices)
    assert got.seconds <= budget * (1 + 1e-9)
    assert got.variance <= GAP * solve(messages, lanes, choices, budget=budget, scale=got.variance)


@pytest.mark.parametrize("seed", range(8))
def test_tradeoff_is_as_good_as_the_solver_s(seed):
    messages, lanes, (low, high), weight = problem(seed)
    got = assign_tradeoff(messages, lanes, weight)
    value = weight * got.variance / (low.variance - high.variance)
    value += (1 - weight) * got.seconds / (high.seconds - low.seconds)
    assert value <= GAP * solve(messages, lanes, (2, 4, 8), weight=weight)


def follows_scores(messages, bits_K):
    """Return whether a row with a larger score never has fewer bits, in one lane and width."""
    for lane in np.unique(messages.lane_K):
        inside = messages.lane_K == lane
        ordered = bits_K[inside][np.argsort(messages.beta_K[inside])]
        if (np.diff(ordered.astype(int)) < 0).any():
            return False
    return True


def test_scores_follow_rows_and_a_mix_up_would_show():
    """AdaQP's released code reads sorted scores by the original ids; widths are then noise."""
    draw = np.random.default_rng(3)
    messages = Messages(draw.lognormal(0, 2, 900), np.full(900, 256), draw.integers(0, 3, 900))
    lanes = Lanes(np.full(3, 1e-4), np.full(3, 1e-8), np.arange(3))
    budget = cost_of(messages, uniform_widths(900, 4), lanes).seconds
    right = assign_seconds(messages, lanes, budget)
    assert follows_scores(messages, right.bits_K)
    mixed_up = replace(messages, beta_K=np.sort(messages.beta_K)[::-1].copy())
    wrong = cost_of(messages, assign_seconds(mixed_up, lanes, budget).bits_K, lanes)
    assert not follows_scores(messages, wrong.bits_K)
    assert right.variance < 0.5 * wrong.variance


def test_reordered_messages_get_reordered_widths():
    draw = np.random.default_rng(5)
    messages, lanes, (low, high), share = problem(11)
    order = draw.permutation(len(messages))
    moved = Messages(messages.beta_K[order], messages.width_K[order], messages.lane_K[order])
    for assign, least, most in (
        (assign_bytes, low.num_bytes, high.num_bytes),
        (lambda m, budget: assign_seconds(m, lanes, budget), low.seconds, high.seconds),
    ):
        budget = least + share * (most - least)
        assert np.array_equal(assign(messages, budget).bits_K[order], assign(moved, budget).bits_K)


def test_twelve_layers_of_a_directed_graph_share_one_budget():
    """Forward and backward sets differ, layers differ in width, and one layer matters most."""
    draw = np.random.default_rng(8)
    layers, ranks = 12, 3
    exchanges = 2 * layers - 1
    lanes = ring_lanes([[Link(1e-4, 1e-8)] * ranks] * ranks, exchanges)
    beta, width, lane = [], [], []
    for exchange in range(exchanges):
        # forward only from rank 0 to 1 and 2, backward only home
        pairs = [(0, 1), (0, 2)] if exchange < layers else [(1, 0), (2, 0)]
        for i, j in pairs:
            beta.append(draw.lognormal(6 if exchange == 11 else 0, 1, 80))
            width.append(np.full(80, 500 if exchange == 0 else 64))
            lane.append(np.full(80, (exchange * ranks + i) * ranks + j))
    messages = Messages(np.concatenate(beta), np.concatenate(width), np.concatenate(lane))
    uniform = cost_of(messages, uniform_widths(len(messages), 4), lanes)
    got = assign_seconds(messages, lanes, uniform.seconds)
    assert got.seconds <= uniform.seconds * (1 + 1e-9)
    assert got.variance < 0.2 * uniform.variance
    mean_bits = [got.bits_K[messages.lane_K // 9 == x].mean() for x in range(exchanges)]
    assert np.argmax(mean_bits) == 11


def test_a_hundred_thousand_messages_take_a_moment():
    """benchmarks/wire.py has the figure; the bound here only rules out another growth."""
    draw = np.random.default_rng(2)
    count, lanes = 100_000, ring_lanes([[Link(1e-4, 1e-8)] * 4] * 4, 5)
    between = [n for n in range(80) if n // 4 % 4 != n % 4]
    messages = Messages(
        draw.lognormal(0, 2, count), np.full(count, 256), draw.choice(between, count)
    )
    uniform = cost_of(messages, uniform_widths(count, 4), lanes)
    got = assign_seconds(messages, lanes, uniform.seconds)
    assert 0.99 * uniform.seconds < got.seconds <= uniform.seconds * (1 + 1e-9)
    assert got.variance < uniform.variance / 3


def test_random_and_uniform_are_worse_at_the_same_bytes():
    messages, *_ = problem(4)
    messages = replace(messages, width_K=np.full(len(messages), 256))
    budget = mean_bits_budget(messages, 4)
    assert budget == cost_of(messages, uniform_widths(len(messages), 4)).num_bytes
    ours, random = assign_bytes(messages, budget), random_assignment(messages, budget, seed=1)
    assert random.num_bytes <= budget
    assert ours.variance < cost_of(messages, uniform_widths(len(messages), 4)).variance
    assert ours.variance < random.variance
    again = random_assignment(messages, budget, seed=1)
    assert np.array_equal(again.bits_K, random.bits_K)
    other = random_assignment(messages, budget, seed=2)
    assert not np.array_equal(other.bits_K, random.bits_K)


def test_ends_of_the_budget_give_the_ends_of_the_choices():
    messages, lanes, (low, high), _ = problem(6)
    assert (assign_bytes(messages, 0.5 * low.num_bytes).bits_K == 2).all()
    assert (assign_bytes(messages, high.num_bytes).bits_K == 8).all()
    assert (assign_seconds(messages, lanes, high.seconds).bits_K == 8).all()
    least = assign_seconds(messages, lanes, 0.5 * low.seconds)
    assert least.seconds == pytest.approx(low.seconds)
    assert least.variance < low.variance  # faster lanes of a round use the time they have
    still = replace(messages, beta_K=messages.beta_K * 0)
    assert (assign_bytes(still, 1e9).bits_K == 2).all()
    nothing = Messages(np.zeros(0), np.zeros(0, int), np.zeros(0, int))
    assert len(assign_bytes(nothing, 10).bits_K) == 0
    assert len(assign_seconds(nothing, lanes, 1.0).bits_K) == 0


def test_free_links_carry_the_most_bits():
    messages, lanes, (low, _), _ = problem(6)
    free = replace(lanes, byte_seconds_L=lanes.byte_seconds_L * 0)
    assert (assign_seconds(messages, free, low.seconds).bits_K == 8).all()


def test_chains_leave_out_what_is_never_worth_it():
    assert chain_of(256, 4, (2, 4, 8))[0] == [2, 4, 8]
    # one column: four bytes as they are, twelve with a header
    assert chain_of(1, 4, (2, 4, 8, 16, 32))[0] == [32]
    assert chain_of(16, 4, (2, 4, 8, 32))[1] == [12, 16, 24, 64]


def test_sensitivity_is_the_variance_at_one_level():
    beta = sensitivity(np.array([0.5, 2.0]), np.array([3.0, 1.0], np.float32), 12)
    assert np.allclose(beta, [0.5 * 9 * 2, 2 * 1 * 2])


def test_foreseeable_misuse_is_refused():
    with pytest.raises(PlanError, match="0 or more"):
        Messages(np.array([np.nan]), np.array([4]), np.array([0]))
    with pytest.raises(PlanError, match="one length"):
        Messages(np.ones(2), np.array([4]), np.array([0]))
    messages, lanes, *_ = problem(1)
    with pytest.raises(PlanError, match="does not exist"):
        assign_seconds(replace(messages, lane_K=messages.lane_K + 999), lanes, 1.0)
    with pytest.raises(PlanError, match="weight of variance"):
        assign_tradeoff(messages, lanes, 1.0)
    with pytest.raises(PlanError, match="Unknown wire width"):
        assign_bytes(messages, 1e5, (2, 3))


def test_rows_that_share_a_width_cost_what_they_cost_apart() -> None:
    """A message of several rows is one choice: their bytes together, their sensitivities added."""
    draw = np.random.default_rng(3)
    rows, width = draw.integers(1, 17, 300), draw.choice([20, 23], 300)
    beta = draw.lognormal(0, 2, 300)
    groups = Messages(beta, width, np.zeros(300, int), rows_K=rows)
    parts = np.repeat(np.arange(300), rows)
    apart = Messages(beta[parts] / rows[parts], width[parts], np.zeros(len(parts), int))
    budget = mean_bits_budget(groups, 4)
    assert budget == mean_bits_budget(apart, 4)
    found = assign_bytes(groups, budget)
    same = cost_of(apart, found.bits_K[parts])
    assert found.num_bytes == same.num_bytes
    assert found.variance == pytest.approx(same.variance)
    assert 0.99 * budget < found.num_bytes <= budget
    assert assign_bytes(apart, budget).variance <= found.variance * (1 + 1e-9)
    blind = random_assignment(groups, budget, 1)
    assert found.variance < blind.variance
