"""What the meter counts along time equals the formulas of docs/dynamic.md."""

import numpy as np
import pytest
import torch

from siafu.comm import BACKWARD, FORWARD, Redistribution, World, even_counts, to_nodes, to_steps
from siafu.ops import row_bytes
from siafu.partitioning import TimePlan, plan_time
from siafu.strategy import Strategy, TimeStrategy
from siafu.strategy.time.cost import (
    all_to_all_traffic,
    banded_traffic,
    row_size,
    wavefront_traffic,
)
from tests.dynamic.graphs import NUM_NODES, NUM_STEPS, awkward_dynamic
from tests.dynamic.steps import TRAIN, distributed_steps
from tests.dynamic.test_parity import assert_same
from tests.dynamic.threads import run_threads
from tests.harness import RankPool

ITEM = 8
"""Bytes of a float64."""
HIDDEN, FEATURES, BAND = 4, 3, 4


def there_and_back(world: World) -> dict[str, tuple[int, int]]:
    """Return bytes and messages of one redistribution each way, and of their gradients."""
    steps = even_counts(16, world.size)
    plan = Redistribution(steps, even_counts(24, world.size))
    number = torch.arange(16 * 24 * 5, dtype=torch.float32).view(16, 24, 5)
    mine = number.split(list(steps))[world.rank].clone().requires_grad_()
    there = to_nodes(mine, plan, world)
    assert torch.equal(there, number.split(list(plan.nodes), dim=1)[world.rank])
    back = to_steps(there, plan, world)
    assert torch.equal(back, mine)
    back.backward(mine.detach())
    assert torch.equal(mine.grad, mine.detach())
    meter = world.meter
    return {k: (meter.bytes_sent[k], meter.messages_sent[k]) for k in (FORWARD, BACKWARD)}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_redistribution_sends_what_the_paper_says(ranks: RankPool, size: int) -> None:
    """T N F (P - 1) / P elements each way, however many ranks there are."""
    run = run_threads if size > 4 else ranks.run
    found = run(there_and_back, size)
    volume = 16 * 24 * 5 * (size - 1) // size * 4
    for purpose in (FORWARD, BACKWARD):
        assert sum(part[purpose][0] for part in found) == 2 * volume
        assert sum(part[purpose][1] for part in found) == 2 * size * (size - 1)


def plan_of(size: int, block: int) -> TimePlan:
    graph = awkward_dynamic()
    costs = [int(e) + graph.num_nodes for e in graph.edges_per_snapshot()]
    return plan_time(costs, size, train_steps=TRAIN, block_steps=block)


WIDE = 20
"""A hidden width whose rows are rounded."""


@pytest.mark.parametrize(("size", "block"), [(2, 0), (4, 4)])
@pytest.mark.parametrize(
    ("model", "exchange", "bits"),
    [("tm-gcn", "all-to-all", 8), ("tm-gcn", "banded", 2), ("cd-gcn", "all-to-all", 4)],
)
def test_rounded_rows_are_packed(ranks: RankPool, model, exchange, bits, size, block) -> None:
    """8 + 4 ceil(D b / 32) bytes a row, there and back, where exact rows have 8 D."""
    strategy = TimeStrategy(block=block, exchange=exchange, rounding=Strategy(wire=bits))
    found = ranks.run(distributed_steps, size, model, strategy, 1000, (), WIDE)
    sent = sum(part["sent"].get(k, 0) for part in found for k in (FORWARD, BACKWARD))
    plan, form = plan_of(size, block), {"bits": bits, "item_bytes": ITEM}
    if exchange == "banded":
        assert sent == banded_traffic(plan, NUM_NODES, WIDE, BAND, **form).size
        return
    widths = [WIDE] if model == "tm-gcn" else [FEATURES + WIDE, 2 * WIDE]
    traffic = [
        all_to_all_traffic(plan, NUM_NODES, width, WIDE, is_last=width == widths[-1], **form)
        for width in widths
    ]
    assert sent == sum(each.size for each in traffic)
    assert row_size(23, 4) == row_bytes(4, 23) == 8 + 4 * 3


def formula(model: str, exchange: str, plan: TimePlan, chunks: int, nodes: int = NUM_NODES) -> int:
    """Return the bytes of one training step."""
    if model == "tm-gcn":
        banded = banded_traffic(plan, nodes, HIDDEN, BAND)
        # The only temporal part that is run is the second: the first is made once.
        spread = all_to_all_traffic(plan, nodes, HIDDEN, HIDDEN, is_last=True)
        return ITEM * (banded if exchange == "banded" else spread).elements
    widths = [FEATURES + HIDDEN, 2 * HIDDEN]
    if exchange == "wavefront":
        each = wavefront_traffic(plan, nodes, 2 * HIDDEN, chunks)
        return ITEM * 2 * each.elements
    first = all_to_all_traffic(plan, nodes, widths[0], HIDDEN)
    last = all_to_all_traffic(plan, nodes, widths[1], HIDDEN, is_last=True)
    return ITEM * (first.elements + last.elements)


CASES = [
    (model, exchange, size, block)
    for model, exchange in (
        ("tm-gcn", "all-to-all"),
        ("tm-gcn", "banded"),
        ("cd-gcn", "all-to-all"),
        ("cd-gcn", "wavefront"),
    )
    for size, block in ((2, 0), (4, 4), (8, 0))
]


@pytest.mark.parametrize(("model", "exchange", "size", "block"), CASES)
def test_a_step_sends_what_the_formula_says(ranks: RankPool, model, exchange, size, block) -> None:
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=3)
    run = run_threads if size > 4 else ranks.run
    found = run(distributed_steps, size, model, strategy)
    assert_same(found, model)
    sent = sum(part["sent"].get(k, 0) for part in found for k in (FORWARD, BACKWARD))
    assert sent == formula(model, exchange, plan_of(size, block), 3)


@pytest.mark.parametrize("size", [2, 4])
def test_evolving_weights_exchange_no_nodes(ranks: RankPool, size: int) -> None:
    """The variant o nothing at all, h the chosen rows of every snapshot: (P - 1) T D O each way."""
    for model, volume in (("evolvegcn-o", 0), ("evolvegcn-h", (FEATURES + HIDDEN) * HIDDEN)):
        found = ranks.run(distributed_steps, size, model, TimeStrategy())
        for purpose in (FORWARD, BACKWARD):
            sent = sum(part["sent"].get(purpose, 0) for part in found)
            assert sent == (size - 1) * TRAIN * volume * ITEM


def test_banded_and_wavefront_send_less_than_all_to_all() -> None:
    """The examples of the derivation: T = 200, P = 8, band 20, in units of N F."""
    plan = plan_time([1] * 200, 8, train_steps=200)
    assert all_to_all_traffic(plan, 8, 1, 1).elements / 8 == 2 * 350
    assert banded_traffic(plan, 8, 1, 20).elements / 8 == 2 * 133
    assert wavefront_traffic(plan, 8, 2, 4).elements / 8 == 2 * 14
    short = plan_time([1] * 128, 32, train_steps=128)
    assert all_to_all_traffic(short, 32, 1, 1).elements / 32 == 2 * 248
    assert banded_traffic(short, 8, 1, 20).elements / 8 == 2 * 199


GROUPS = (0, 1, 1)


def halo_rows(steps: int) -> int:
    """Return how many rows of other groups all ranks need, over the first snapshots."""
    graph = awkward_dynamic()
    group = np.resize(np.array(GROUPS), graph.num_nodes)
    total = 0
    for snapshot in graph.iterate(0, steps):
        dst, src = snapshot.dst(), np.asarray(snapshot.src)
        crosses = group[dst] != group[src]
        total += len(np.unique(group[dst[crosses]] * graph.num_nodes + src[crosses]))
    return total


@pytest.mark.parametrize("exchange", ["all-to-all", "wavefront"])
def test_a_grid_sends_halos_inside_snapshots_and_rows_along_time(ranks, exchange: str) -> None:
    """What goes along time is what each group would send by itself."""
    strategy = TimeStrategy(exchange=exchange, chunks=2)
    found = ranks.run(distributed_steps, 4, "cd-gcn", strategy, 1000, (), HIDDEN, GROUPS)
    plan, along_time = plan_of(2, 0), 0
    for size in np.bincount(np.resize(GROUPS, NUM_NODES)):
        along_time += formula("cd-gcn", exchange, plan, 2, int(size))
    assert sum(part["sent"].get(k, 0) for part in found for k in (FORWARD, BACKWARD)) == along_time
    inside = {
        k: sum(part["sent"].get(f"halo_{k}", 0) for part in found) for k in ("forward", "backward")
    }
    # Once: degrees, and the features that the first layer sums. Each step: the second layer's rows.
    trained = halo_rows(TRAIN) * HIDDEN
    assert inside["forward"] == ITEM * (halo_rows(NUM_STEPS) * (1 + FEATURES) + trained)
    assert inside["backward"] == ITEM * trained
