"""Blocked and distributed training equals the sequential reference: losses, gradients, weights."""

import pytest
import torch

from siafu.strategy import TimeStrategy
from tests.dynamic.steps import MODELS, PLAIN, Way, distributed_steps, reference_steps
from tests.dynamic.threads import run_threads
from tests.harness import RankPool

EXACT = {"rtol": 1e-9, "atol": 1e-11}
"""float64; only the order of sums may differ."""

EXCHANGES = {
    "tm-gcn": ["all-to-all", "banded"],
    "cd-gcn": ["all-to-all", "wavefront"],
    "wd-gcn": ["all-to-all", "wavefront"],
    "gcrn": ["all-to-all", "wavefront"],
    "evolvegcn-o": ["auto"],
    "evolvegcn-h": ["auto"],
}
CASES = [(model, exchange) for model in MODELS for exchange in EXCHANGES[model]]


def assert_same(got: list[dict], name: str, way: Way = PLAIN, block: int = 0) -> None:
    want = reference_steps(name, way, block)
    for part in got:
        torch.testing.assert_close(part["losses"], want["losses"], **EXACT)
        for group in ("grads", "weights"):
            for key, tensor in part[group].items():
                message = f"{group} {key}: {{}}".format
                torch.testing.assert_close(tensor, want[group][key], **EXACT, msg=message)
    found = torch.full_like(want["rows"], torch.nan)
    for part in got:
        for step, rows in part["rows"].items():
            found[step, part["ids"]] = rows
    torch.testing.assert_close(found, want["rows"], **EXACT)


@pytest.mark.parametrize(("size", "block"), [(1, 4), (2, 0), (3, 4), (4, 0), (4, 4)])
@pytest.mark.parametrize(("model", "exchange"), CASES)
def test_steps_equal_the_reference(ranks: RankPool, model, exchange, block, size) -> None:
    """Blocks of 4, 3 and 3 of 10 snapshots, so that ranks also have none of a block.

    Rows are redistributed and states handed on in three groups of nodes.
    """
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=3)
    assert_same(ranks.run(distributed_steps, size, model, strategy), model)


@pytest.mark.parametrize(
    ("model", "exchange", "size", "block"),
    [(model, exchange, 3, 4) for model, exchange in CASES]
    + [("gcrn", "wavefront", 1, 4), ("gcrn", "wavefront", 4, 3), ("evolvegcn-h", "auto", 2, 4)],
)
def test_a_step_per_block_equals_the_reference(model, exchange, size, block) -> None:
    """States run on from block to block, their gradients do not."""
    strategy, way = TimeStrategy(block=block, exchange=exchange, chunks=3), Way(by_block=True)
    assert_same(run_threads(distributed_steps, size, model, (strategy, way)), model, way, block)


@pytest.mark.parametrize(
    ("model", "size", "block", "history"),
    [
        ("cd-gcn", 2, 4, 3),
        ("gcrn", 1, 0, 3),
        ("gcrn", 4, 4, 5),
        ("gcrn", 3, 3, 1),
        ("evolvegcn-o", 3, 4, 3),
        ("evolvegcn-h", 2, 3, 5),
        ("evolvegcn-h", 4, 4, 2),
    ],
)
def test_recurrences_that_look_back(model, size, block, history) -> None:
    """Longer than a block too, and a single snapshot."""
    way = Way(history=history)
    got = run_threads(distributed_steps, size, model, (TimeStrategy(block=block), way))
    assert_same(got, model, way)


@pytest.mark.parametrize(("size", "groups"), [(3, ()), (4, (0, 0, 1))])
@pytest.mark.parametrize("model", MODELS)
def test_rows_of_nodes_that_are_learnt(ranks: RankPool, model: str, size: int, groups) -> None:
    """Blocks of 4 and 3 on 3 ranks, with a step each; on a grid, one step."""
    strategy, way = TimeStrategy(block=4), Way(learned=True, by_block=not groups)
    got = ranks.run(distributed_steps, size, model, (strategy, way), 1000, (), 4, groups)
    assert_same(got, model, way, 4)


@pytest.mark.parametrize(
    ("model", "size"), [*((model, 2) for model in MODELS), *(("tm-gcn", n) for n in (1, 3, 4))]
)
def test_snapshots_made_from_deltas_change_nothing(ranks: RankPool, model: str, size: int) -> None:
    """Blocks are walked forward for their borders, and back again for gradients."""
    strategy = TimeStrategy(block=3 if size < 4 else 0, chunks=2)
    assert_same(ranks.run(distributed_steps, size, model, strategy, 0), model)


@pytest.mark.parametrize(
    ("size", "exchanges"),
    [(2, ("wavefront", "all-to-all")), (3, ("all-to-all", "wavefront"))],
)
def test_parts_exchanged_in_different_ways(ranks: RankPool, size: int, exchanges) -> None:
    """A gradient handed to the block before is taken after exchanges that its sender is in."""
    strategy = TimeStrategy(block=5, chunks=2)
    got = ranks.run(distributed_steps, size, "cd-gcn", strategy, 1000, exchanges)
    assert got[0]["exchanges"] == list(exchanges)
    assert_same(got, "cd-gcn")
