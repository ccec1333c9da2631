"""Blocked and distributed training equals the sequential reference: losses, gradients, weights."""

import pytest
import torch

from siafu.strategy import TimeStrategy
from tests.dynamic.steps import MODELS, distributed_steps, reference_steps
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


def assert_same(got: list[dict], name: str) -> None:
    want = reference_steps(name)
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
    """Blocks of 4, 3 and 3 of 10 snapshots, so that ranks also have none of a block."""
    strategy = TimeStrategy(block=block, exchange=exchange, chunks=3)
    assert_same(ranks.run(distributed_steps, size, model, strategy), model)


@pytest.mark.parametrize("model", MODELS)
def test_snapshots_made_from_deltas_change_nothing(ranks: RankPool, model: str) -> None:
    """Blocks are walked forward for their borders, and back again for gradients."""
    strategy = TimeStrategy(block=3, chunks=2)
    assert_same(ranks.run(distributed_steps, 2, model, strategy, 0), model)


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
