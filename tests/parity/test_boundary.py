"""Rows drawn by lot: right on average, and the same as in one process that draws the same rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.errors import ConfigError
from siafu.nn import Draws, Dropout
from siafu.ops import Gat
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool
from tests.parity.steps import assert_same, distributed_steps
from tests.parity.test_wire import EXACT, noisy_steps, parts, spec_of

__all__ = ["parts"]
SHARE = 0.3


@pytest.mark.parametrize(
    ("model", "wire", "stages", "kind", "size"),
    [
        ("gcn", 32, 1, "hash", 2),
        ("sage", 32, 4, "hash", 3),
        ("gin", 4, 1, "gap", 4),
        ("rgcn", 32, 4, "typed", 3),
    ],
)
def test_steps_equal_one_process_that_draws_the_same_rows(
    ranks: RankPool, parts, model: str, wire: Any, stages: int, kind: str, size: int
) -> None:
    chosen = {"wire": wire, "boundary": SHARE}
    whole = parts["typed" if kind == "typed" else "hash", 1]
    want = noisy_steps(whole, kind, size, spec_of(model), Strategy(**chosen))
    strategy = Strategy(**chosen, stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts[kind, size], spec_of(model), strategy)
    assert_same(got, want, **EXACT)


TRIES = 600


def sums_over_seeds(world: World, folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """Return means and variances of what this rank aggregates, the truth, and rows sent."""
    shard, draws = open_shard(folder, world), Draws(seed=0)
    x = torch.randn(shard.num_owned, 3, generator=torch.Generator().manual_seed(world.rank))
    x = x.double()
    found = []
    exact = BlockNeighbours(shard, draws, Strategy())
    drawn = BlockNeighbours(shard, draws, Strategy(boundary=SHARE))
    for number in range(TRIES):
        draws.seed = draws.epoch = number
        leaf = x.clone().requires_grad_()
        out = drawn.sum(leaf)
        out.sum().backward()
        assert leaf.grad is not None
        found.append(torch.cat([out.detach(), leaf.grad]))
    sent = world.meter.bytes_sent["halo_forward"]
    leaf = x.clone().requires_grad_()
    truth = exact.sum(leaf)
    truth.sum().backward()
    assert leaf.grad is not None
    every = torch.stack(found)
    whole = torch.cat([truth.detach(), leaf.grad])
    return every.mean(0), every.var(0), whole, x, sent, len(shard.plan.send_rows)


def test_the_mean_over_seeds_is_the_exact_sum(ranks: RankPool, parts) -> None:
    for mean, variance, truth, x, sent, rows in ranks.run(sums_over_seeds, 3, parts["hash", 3]):
        assert not torch.allclose(mean, truth, atol=1e-6), "something is drawn"
        away = (mean - truth).abs() / (variance / TRIES).sqrt().clamp(min=1e-9)
        assert away.max() < 5
        assert sent / (TRIES * rows * 8 * x.size(1)) == pytest.approx(SHARE, rel=0.1)


def attention(world: World, folder: Path) -> str:
    shard = open_shard(folder, world)
    neighbours = BlockNeighbours(shard, Draws(seed=0), Strategy(boundary=SHARE))
    z = torch.randn(shard.num_owned, 2, 4)
    with pytest.raises(ConfigError) as raised:
        neighbours.attend(Gat(slope=0.2), (z, z.sum(-1)), (z.sum(-1),), dropout=Dropout(0.0, 0))
    with pytest.raises(ConfigError):
        neighbours.max(z.flatten(1))
    return str(raised.value)


def test_what_is_no_sum_is_refused(ranks: RankPool, parts) -> None:
    assert all("--boundary 0.3" in told for told in ranks.run(attention, 2, parts["hash", 2]))


@pytest.mark.parametrize(
    "beside",
    [
        {"wire": "adaptive"},
        {"wire": "fp8"},
        {"wire": 4, "changes": True},
        {"staleness": 1},
        {"by_columns": True},
        {"precision": "bf16"},
        {"unit": "interval"},
    ],
)
def test_what_makes_no_sense_beside_it_is_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="lot"):
        Strategy(boundary=0.5, **beside)
    assert Strategy(boundary=0.5).exactness == "unbiased"
