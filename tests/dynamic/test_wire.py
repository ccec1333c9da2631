"""Rounded steps equal one process that rounds the same, and both passes see the same rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import World, reduce_gradients
from siafu.engine.dynamic.step_shards import make_grid
from siafu.nn import Draws, DynamicGNN, NodeLSTM
from siafu.partitioning import TimeBlock, plan_time
from siafu.strategy import Strategy, TimeStrategy
from siafu.strategy.time.blocks import TimeRunner
from tests.dynamic.graphs import awkward_dynamic
from tests.dynamic.rounding import WIDTH, NoisyAllToAll
from tests.dynamic.steps import TRAIN, loss_of_step, make_model, runner_on
from tests.harness import RankPool


def steps_of(runner: TimeRunner, draws: Draws) -> dict[str, Any]:
    """Return losses, gradients and weights of two steps, and what evaluation gives."""
    model, world = runner.model, runner.world
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)

    def loss_of(block: TimeBlock, rows_tNO: Tensor) -> Tensor:
        pairs = zip(block.owned(world.rank), rows_tNO, strict=True)
        losses = [loss_of_step(step, rows) for step, rows in pairs]
        return torch.stack(losses).sum() if losses else rows_tNO.sum()

    losses, found = [], {}
    for draws.epoch in (1, 2):
        optimiser.zero_grad()
        share = runner.train(loss_of)
        reduce_gradients(list(model.parameters()), world)
        losses.append(sum(row[0] for row in world.gather_numbers([share])))
        for name, p in model.named_parameters():
            found[f"{name} in {draws.epoch}"] = p.grad.clone()
        optimiser.step()
    draws.training = False
    last = {
        step: rows.clone()
        for block, rows_tNO in runner.evaluate()
        for step, rows in zip(block.owned(world.rank), rows_tNO, strict=True)
    }
    return {"losses": losses, "found": found, "last": last}


def wide_runner(
    world: World, name: str, strategy: TimeStrategy, dtype: torch.dtype = torch.float64
) -> tuple[TimeRunner, Draws]:
    """Return a model whose rows are rounded, on this rank's snapshots, and its draws."""
    draws, model = Draws(seed=6), make_model(name, WIDTH).to(dtype)
    runner = runner_on(
        make_grid(world, awkward_dynamic(), 1), model, awkward_dynamic(), strategy, 1000
    )
    return TimeRunner(model, runner.source, runner.plan, world, strategy, draws), draws


def rounded_steps(world: World, name: str, strategy: TimeStrategy) -> dict[str, Any]:
    return steps_of(*wide_runner(world, name, strategy))


@pytest.mark.parametrize(("size", "block"), [(2, 0), (3, 4), (4, 4)])
@pytest.mark.parametrize(("name", "bits"), [("cd-gcn", 4), ("tm-gcn", 2)])
def test_rounded_steps_equal_one_process_that_rounds_the_same(
    ranks: RankPool, name: str, bits: int, size: int, block: int
) -> None:
    """Blocks that are run twice, ranks without snapshots, every gradient."""
    strategy = TimeStrategy(block=block, exchange="all-to-all", rounding=Strategy(wire=bits))
    got = ranks.run(rounded_steps, size, name, strategy)
    alone, draws = wide_runner(World(), name, TimeStrategy(block=block))
    graph = awkward_dynamic()
    costs = [int(e) + graph.num_nodes for e in graph.edges_per_snapshot()]
    plan = plan_time(costs, size, train_steps=TRAIN, block_steps=block)
    for number, carrier in alone._exchanges.items():
        alone._exchanges[number] = NoisyAllToAll(number, carrier.part, plan, bits, draws)
    want = steps_of(alone, draws)
    for part in got:
        torch.testing.assert_close(part["losses"], want["losses"], rtol=1e-9, atol=1e-11)
        for key, tensor in part["found"].items():
            message = f"{key}: {{}}".format
            other = want["found"][key]
            torch.testing.assert_close(tensor, other, rtol=1e-8, atol=1e-10, msg=message)
        # Evaluation rounds nothing, so it is that of the weights alone.
        for step, rows in part["last"].items():
            torch.testing.assert_close(rows, want["last"][step], rtol=1e-8, atol=1e-9)
    assert sum(len(part["last"]) for part in got) == graph.num_snapshots


class Watched(NodeLSTM):
    """An LSTM that remembers what it was given and what it handed on, by border pass or not."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.seen: dict[bool, list[tuple[Tensor, ...]]] = {True: [], False: []}

    def forward(self, rows_TND: Tensor, state: tuple[Tensor, ...]):
        out, end = super().forward(rows_TND, state)
        known = (rows_TND, out, *state, *end)
        self.seen[torch.is_grad_enabled()].append(
            tuple(tensor.detach().clone() for tensor in known)
        )
        return out, end


def both_passes(world: World, wire: Any) -> list[Any]:
    """Return, for each part, what it saw in the first pass and in the second one."""
    model = make_model("cd-gcn", WIDTH)
    parts = [
        Watched(p.in_width, p.out_width) if isinstance(p, NodeLSTM) else p for p in model.parts
    ]
    torch.manual_seed(0)
    for part in parts:
        for p in part.parameters():
            torch.nn.init.normal_(p, std=0.3)
    # Not float32: torch has another kernel for an LSTM in it where no gradient is wanted.
    watched, draws = DynamicGNN(parts, out_width=WIDTH).double(), Draws(seed=1, epoch=1)
    rounding = Strategy(wire=wire, **({} if isinstance(wire, int) else {"wire_period": 3}))
    strategy = TimeStrategy(block=4, exchange="all-to-all", rounding=rounding)
    runner = runner_on(
        make_grid(world, awkward_dynamic(), 1), watched, awkward_dynamic(), strategy, 1000
    )
    runner = TimeRunner(watched, runner.source, runner.plan, world, strategy, draws)
    found = []
    for draws.epoch in range(1, 8 if wire == "adaptive" else 2):
        for part in parts[1::2]:
            part.seen = {True: [], False: []}
        runner.train(lambda block, rows: rows.square().sum())
        found += [(part.seen[False], part.seen[True][::-1]) for part in parts[1::2]]
    return found


@pytest.mark.parametrize("wire", [2, "adaptive"])
def test_a_block_that_is_run_twice_sees_the_same_rows(ranks: RankPool, wire) -> None:
    """Bit for bit, states at the borders too: else gradients were those of another forward."""
    for found in ranks.run(both_passes, 3, wire):
        for first, second in found:
            assert len(first) == 2, "three blocks, the last is run once"
            assert len(second) == 3
            for before, again in zip(first, second[:2], strict=True):
                for a, b in zip(before, again, strict=True):
                    assert torch.equal(a, b)
