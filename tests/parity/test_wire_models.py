"""Every model beside one process fed the same noise, in every width; formats by row too.

The second half of `test_wire.py`: one cut in three, and each width with one model or two.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import UNCHANGED, World
from siafu.nn import Draws
from siafu.shard import open_shard
from siafu.strategy import Strategy, neighbours_of
from siafu.strategy.rounding.exchange import Exchange, Rounding
from tests.harness import RankPool
from tests.parity.message_models import MessagePlan
from tests.parity.noisy import FIRST, Codes
from tests.parity.steps import Plan, assert_same, distributed_steps, run_steps
from tests.parity.test_wire import EXACT, IN_WIDTH, noisy_steps, parts, spec_of

__all__ = ["parts"]
SIZE = 3

MODELS = {
    "gin": "hash",
    "rgcn": "typed",
    "transformer": "hash",
    "typed-gat": "typed",
    "gat edges": "typed",
    "gatv2 edges": "typed",
    "transformer edges": "typed",
    "message sum": "typed",
    "message max": "typed",
    "message softmax": "typed",
}
"""Models beside those of `test_wire.py`, and the cut whose edges have what they read."""


def plan_of(name: str) -> Plan:
    """Return the model: with features of edges, of a user's own messages, or built in."""
    model, _, more = name.partition(" ")
    if model == "message":
        return MessagePlan(more, IN_WIDTH, 12)  # type: ignore[arg-type]
    spec = spec_of(model)
    if model == "typed-gat":
        return replace(spec, num_types=3)
    return replace(spec, edge_width=2) if more else spec


CHOICES: dict[str, dict[str, Any]] = {
    "4 bits": {"wire": 4},
    "16 bits": {"wire": 16},
    "8 bits": {"wire": 8},
    "2 bits": {"wire": 2},
    "fp8": {"wire": "fp8"},
    "bf16": {"wire": "bf16"},
    "fp8, late": {"wire": "fp8", "staleness": 1},
    "bf16, late": {"wire": "bf16", "staleness": 1},
    "changes at 8 bits": {"wire": 8, "changes": True},
    "changes at 4 bits": {"wire": 4, "changes": True},
    "changes at 1 bit": {"wire": 1, "changes": True},
    "changes at 16 bits": {"wire": 16, "changes": True},
    "narrow at 2 bits": {"wire": 2, "changes": True, "kept_bits": 16},
    "narrow late": {"wire": 4, "changes": True, "kept_bits": 16, "staleness": 1},
    "reused": {"wire": 0, "changes": True, "wire_period": 3},
    "late": {"staleness": 1},
}
CASES = [
    (choice, model, 4 if number % 2 else 1)
    for number, choice in enumerate(CHOICES)
    for model in [[*MODELS][(3 * number + other) % len(MODELS)] for other in (0, 4, 7)]
]


def same_steps(
    ranks: RankPool, parts, model: str, kind: str, chosen: dict[str, Any], stages: int
) -> None:
    plan, whole = plan_of(model), parts["typed" if kind == "typed" else "hash", 1]
    want = noisy_steps(whole, kind, SIZE, plan, Strategy(**chosen))
    strategy = Strategy(**chosen, stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, SIZE, parts[kind, SIZE], plan, strategy)
    assert_same(got, want, **EXACT)


@pytest.mark.parametrize(("choice", "model", "stages"), CASES)
def test_steps_of_every_model_equal_one_process_fed_the_same_noise(
    ranks: RankPool, parts, choice: str, model: str, stages: int
) -> None:
    same_steps(ranks, parts, model, MODELS[model], CHOICES[choice], stages)


@pytest.mark.parametrize("wire", [16, 8, "bf16", "fp8"])
@pytest.mark.parametrize("model", ["gcn", "sage", "sage-max", "gat", "gatv2"])
def test_widths_of_the_other_models_too(ranks: RankPool, parts, model: str, wire: Any) -> None:
    same_steps(ranks, parts, model, "hash", {"wire": wire}, 4)


ASSIGNED = {"first_epoch": 2, "steps": 6}
"""A period of 3 ends with the second step, and what it taught is in use in the last two."""


def assigned_steps(
    world: World, folder: Path, plan: Plan, strategy: Strategy
) -> tuple[dict[str, Any], dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]]]:
    """Return what a rank sees of the steps, and the formats of the rows it read, by node."""
    noted: Any = defaultdict(list)
    begin = Rounding.begin

    def watched(self: Rounding, *arguments: Any) -> Exchange | None:
        found = begin(self, *arguments)
        if found is None:
            return None
        for there, back in zip(found.there, found.back, strict=True):
            for out, home in zip(there or (), back or (), strict=True):
                number, epoch = (out.key.purpose - FIRST) >> 21, out.key.epoch
                noted[epoch, number, 0].append((home.ids(), out.received().bits_S))
                noted[epoch, number, 1].append((home.ids(), home.sent().bits_S))
        return found

    torch.set_default_dtype(torch.float64)
    Rounding.begin = watched  # type: ignore[method-assign]
    try:
        shard, draws = open_shard(folder, world), Draws(seed=3)
        neighbours = neighbours_of(shard, draws, strategy)
        steps = run_steps(shard, neighbours, draws, plan, strategy, **ASSIGNED)
    finally:
        Rounding.begin = begin  # type: ignore[method-assign]
        torch.set_default_dtype(torch.float32)
    joined = {
        place: (torch.cat([ids for ids, _ in pairs]), torch.cat([codes for _, codes in pairs]))
        for place, pairs in noted.items()
    }
    return steps, joined


@pytest.mark.parametrize(
    ("model", "stages", "more"),
    [
        ("gcn", 4, {}),
        ("sage", 1, {"changes": True, "wire_bits": 1.0}),
        ("sage-max", 4, {"changes": True, "wire_bits": 1.5}),
        ("gat", 1, {}),
        ("gat edges", 4, {"changes": True, "kept_bits": 16}),
        ("gatv2", 4, {"changes": True, "wire_bits": 1.0}),
        ("gin", 1, {"changes": True, "staleness": 1}),
        ("rgcn", 4, {"changes": True, "wire_bits": 1.0}),
        ("transformer", 1, {"changes": True, "wire_bits": 1.0, "kept_bits": 16}),
        ("typed-gat", 4, {}),
        ("message sum", 4, {"changes": True, "wire_bits": 1.0}),
    ],
)
def test_formats_by_row_equal_one_process_that_writes_rows_so(
    ranks: RankPool, parts, model: str, stages: int, more: dict[str, Any]
) -> None:
    kind, plan = MODELS.get(model, "hash"), plan_of(model)
    chosen: dict[str, Any] = {"wire": "adaptive", "wire_period": 3, **more}
    strategy = Strategy(**chosen, stages=stages, recompute=stages > 1)
    found = ranks.run(assigned_steps, SIZE, parts[kind, SIZE], plan, strategy)
    codes: Codes = {}
    nodes, last, used = 41, ASSIGNED["first_epoch"] + ASSIGNED["steps"] - 1, set()
    for part, (_, formats) in enumerate(found):
        for (epoch, number, direction), (ids, codes_R) in formats.items():
            row = torch.full((nodes,), 8, dtype=torch.uint8)
            row[ids] = codes_R
            codes[epoch, number, direction, part] = row
            used |= set(codes_R.tolist()) if epoch == last else set()
    assert len(used - {UNCHANGED.code}) > 1
    whole = parts["typed" if kind == "typed" else "hash", 1]
    want = noisy_steps(whole, kind, SIZE, plan, Strategy(**chosen), codes, **ASSIGNED)
    assert_same([steps for steps, _ in found], want, **EXACT)
