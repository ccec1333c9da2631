"""A step over several ranks equals one process: loss, every gradient, weights after three steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.nn import CARDS, ModelSpec, cards_that, local
from siafu.strategy import BlockNeighbours, Strategy, neighbours
from siafu.strategy.dropping import LateDropout
from tests.harness import RankPool
from tests.parity.steps import STEPS, assert_same, distributed_steps, single_steps

EXACT = {"rtol": 1e-10, "atol": 1e-12}
"""float64 steps, so only summation order may differ."""

OPTIONS = {
    "plain": {},
    "batch-residual": {"norm": "batch", "residual": True, "layers": 3},
    "layer-jk-cat": {"norm": "layer", "jk": "cat", "layers": 3},
    "jk-max": {"jk": "max"},
    "wide": {"hidden": 4, "dropout": 0.0},
}
FEW = ("gcn", "sage-max", "gat")
WORLD_OF = (("hash", 1), ("metis", 2), ("hash", 3), ("gap", 4))
CASES = [(model, "plain", *world) for model in CARDS for world in WORLD_OF]
CASES += [
    (model, "plain", *world) for model in ("gcn", "gat") for world in (("metis", 3), ("hash", 4))
]
CASES += [(model, option, "hash", 3) for model in CARDS for option in ("batch-residual", "wide")]
CASES += [(model, option, "hash", 3) for model in FEW for option in ("layer-jk-cat", "jk-max")]
CASES += [("gcn", "batch-residual", *world) for world in (("hash", 1), ("metis", 2), ("gap", 4))]
"""What a model does between its aggregations knows of ranks only in batch norm."""


TYPED = ("rgcn", "typed-gat")


def spec_of(model: str, option: str) -> ModelSpec:
    """Return a small model of that name."""
    settings = {"hidden": 8, "heads": 2, "dropout": 0.3, **OPTIONS[option]}
    return ModelSpec(name=model, in_width=6, out_width=3, num_types=3, **settings)


@pytest.mark.parametrize(("model", "option", "kind", "size"), CASES)
def test_steps_equal_one_process(ranks: RankPool, parts_of, model, option, kind, size) -> None:
    weighted = option in ("plain", "jk-max") or model in TYPED
    want = single_steps(parts_of("hash", 1, weighted), spec_of(model, option))
    got = ranks.run(distributed_steps, size, parts_of(kind, size, weighted), spec_of(model, option))
    assert_same(got, want, **EXACT)


STAGES = {
    "two": Strategy(stages=2, recompute=True),
    "two-kept": Strategy(stages=2),
    "each-peer": Strategy(stages=4, recompute=True),
    "some-kept": Strategy(stages=4, recompute=0.5),
}
WORLDS = [
    ("each-peer", "hash", 1),
    ("two-kept", "hash", 2),
    ("two-kept", "hash", 3),
    ("two", "gap", 4),
    ("each-peer", "hash", 4),
    ("some-kept", "hash", 1),
    ("some-kept", "hash", 2),
    ("some-kept", "metis", 3),
    ("some-kept", "hash", 4),
]
"""Only 4 ranks have more rounds than two stages; with fewer every peer has a stage."""


@pytest.mark.parametrize(("stages", "kind", "size"), WORLDS)
@pytest.mark.parametrize("model", CARDS)
def test_stages_change_nothing(ranks: RankPool, parts_of, model, stages, kind, size) -> None:
    spec = spec_of(model, "plain")
    want = single_steps(parts_of("hash", 1, True), spec)
    got = ranks.run(distributed_steps, size, parts_of(kind, size, True), spec, STAGES[stages])
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("stages", "size"), [(1, 1), (4, 2), (1, 3), (2, 4), (4, 4)])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "mul", "softmax"])
def test_user_messages_equal_one_process(ranks: RankPool, parts_of, reduce, stages, size) -> None:
    want = single_steps(parts_of("hash", 1, True), reduce)
    strategy = Strategy(stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts_of("hash", size, True), reduce, strategy)
    assert_same(got, want, **EXACT)


def steps_boundary_first(world: World, drops_early: bool, *given: Any) -> dict[str, Any]:
    """Return a rank's steps with rows that others need taken apart, and how many left early."""
    written, write = [0], LateDropout.write

    def counted(late: LateDropout, rows: Tensor) -> Tensor:
        written[0] += len(rows)
        return write(late, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siafu.strategy.neighbours._MOST_NEEDED", 2.0)
        patch.setattr(LateDropout, "write", counted)
        if not drops_early:
            patch.setattr(BlockNeighbours, "_leaves_early", False)
        return distributed_steps(world, *given) | {"written": written[0]}


@pytest.mark.parametrize("option", ["plain", "batch-residual", "layer-jk-cat"])
@pytest.mark.parametrize(("hidden", "size"), [(8, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("model", cards_that(lambda card: card.input_aggregation is not None))
def test_dropping_what_others_need_first_changes_no_bit(
    ranks: RankPool, parts_of, model, hidden, size, option
) -> None:
    spec = replace(spec_of(model, option), hidden=hidden)
    given = parts_of("hash", size, True), spec, Strategy(stages=1 if size < 4 else 4)
    early, late = (ranks.run(steps_boundary_first, size, early, *given) for early in (True, False))
    for one, other in zip(early, late, strict=True):
        assert one["written"] == len(one["rows"]) * spec.layers * STEPS
        assert other["written"] == 0
        assert one["losses"] == other["losses"]
        assert all(torch.equal(one["grads"][name], other["grads"][name]) for name in one["grads"])
    assert_same(early, single_steps(parts_of("hash", 1, True), spec), **EXACT)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("reduce", ["sum", "max", "softmax"])
def test_messages_with_some_rows_kept(ranks: RankPool, parts_of, reduce, size) -> None:
    want = single_steps(parts_of("hash", 1, True), reduce)
    strategy = Strategy(stages=4, recompute=0.5, overlap=size != 3)
    got = ranks.run(distributed_steps, size, parts_of("hash", size, True), reduce, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("stages", "size"), [(1, 1), (1, 3), (4, 4)])
@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer"])
def test_edge_features_equal_one_process(ranks: RankPool, parts_of, model, stages, size) -> None:
    spec = replace(spec_of(model, "plain"), edge_width=2)
    want = single_steps(parts_of("hash", 1, True), spec)
    strategy = Strategy(stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts_of("hash", size, True), spec, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("stages", "size"), [(1, 1), (4, 2), (1, 3), (4, 4)])
@pytest.mark.parametrize("model", [*CARDS, "sum"])
def test_pruning_changes_nothing(ranks: RankPool, parts_of, model, stages, size) -> None:
    plan = spec_of(model, "layer-jk-cat") if model in CARDS else model
    want = single_steps(parts_of("hash", 1, True), plan)
    strategy = Strategy(stages=stages, recompute=stages > 1, prune=True)
    kind = "gap" if size == 4 else "hash"
    got = ranks.run(distributed_steps, size, parts_of(kind, size, True), plan, strategy)
    assert_same(got, want, **EXACT)


CACHED = [
    (model, size)
    for model in cards_that(lambda card: card.input_aggregation is not None)
    for size in (1, 3)
] + [("rgcn", size) for size in (1, 2, 3, 4)]


@pytest.mark.parametrize(("model", "size"), CACHED)
def test_cached_input_changes_nothing(ranks: RankPool, parts_of, model, size) -> None:
    spec = replace(spec_of(model, "plain"), input_dropout=0.0)
    want = single_steps(parts_of("hash", 1, True), spec)
    strategy = Strategy(input_cache=True)
    got = ranks.run(distributed_steps, size, parts_of("hash", size, True), spec, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize("option", ["plain", "wide", "batch-residual"])
@pytest.mark.parametrize("weighted", [False, True])
def test_loops_that_sums_take_along_change_nothing(
    parts_of, monkeypatch: pytest.MonkeyPatch, option: str, weighted: bool
) -> None:
    """As a GPU does it, whose kernels add a row's own term: `ops.sum_with_own`."""
    parts, spec = parts_of("hash", 1, weighted), spec_of("gcn", option)
    want = single_steps(parts, spec)
    for module in (local, neighbours):
        monkeypatch.setattr(module, "adds_own", lambda device: True)
    assert_same([distributed_steps(World(), parts, spec)], want, **EXACT)
    assert_same([single_steps.__wrapped__(parts, spec)], want, **EXACT)
