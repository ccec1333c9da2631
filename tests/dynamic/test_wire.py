"""Rounded rows along time: unbiased, the same in both passes, and what one process would round.

Shapes: T snapshots of a block, t of them mine, N vertices, n of them mine, D columns.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Redistribution, World, even_counts, reduce_gradients, to_steps, to_vertices
from siafu.errors import DataError
from siafu.nn import BandedMean, Draws, DynamicGNN, VertexLSTM, banded_mean
from siafu.ops import WireLayout, decode, encode
from siafu.partition import TimeBlock, TimePlan, plan_time
from siafu.strategy import Strategy, TimeStrategy
from siafu.strategy.banded import BandedHalo, halo_steps
from siafu.strategy.carriers import AllToAll
from siafu.strategy.time_blocks import TimeRunner
from siafu.strategy.time_legs import RowIds
from siafu.strategy.time_wire import TimeWire, band_squares
from tests.dynamic.graphs import NUM_NODES, awkward_dynamic
from tests.dynamic.steps import TRAIN, loss_of_step, make_model, runner_on
from tests.harness import RankPool

WIDTH, STEPS, VERTICES = 20, 9, 25
FIRST, DIRECTIONS = 1 << 60, 1 << 40
CPU = torch.device("cpu")


def wire_of(
    world: World, plan: TimePlan, bits: Any, draws: Draws, vertices: int = VERTICES
) -> TimeWire:
    """Return what rounds rows of so many vertices."""
    rounding = Strategy(wire=bits, **({} if isinstance(bits, int) else {"wire_period": 3}))
    strategy = TimeStrategy(rounding=rounding)
    return TimeWire(strategy, plan, world, draws, RowIds.all_of(vertices, CPU))


def numbers(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return rows of all snapshots and vertices, of scales far apart."""
    draw = torch.Generator().manual_seed(seed)
    scale = torch.randn(STEPS, VERTICES, 1, generator=draw, dtype=dtype).mul(2).exp()
    return scale * torch.randn(STEPS, VERTICES, WIDTH, generator=draw, dtype=dtype)


def rounded(x_TND: Tensor, bits: int, draws: Draws, purpose: int, first: int = 0) -> Tensor:
    """Return snapshots from `first` on as a receiver reads them; a row's id is step N + vertex."""
    flat, count = x_TND.detach().flatten(0, 1).contiguous(), x_TND.size(1)
    layout = WireLayout.build(torch.full((len(flat),), bits).byte(), flat.size(1), flat.dtype)
    ids = torch.arange(first * count, first * count + len(flat))
    return decode(encode(flat, None, layout, draws.key(purpose), ids).payload, layout).view_as(
        x_TND
    )


def spread_of(row_D: Tensor, bits: int) -> Tensor:
    """Return the variance of each rounded entry: S^2 f (1 - f), f how far between two levels."""
    low, high = row_D.min(-1, keepdim=True).values, row_D.max(-1, keepdim=True).values
    step = (high - low) / (2**bits - 1)
    part = ((row_D - low) / step).frac()
    return step.square() * part * (1 - part)


def dealt_often(world: World, bits: int, times: int) -> dict[str, Any]:
    """Return mean and variance, over epochs, of rows dealt out and of the gradients that return."""
    plan, draws = plan_time([1] * STEPS, world.size, train_steps=STEPS), Draws(seed=4)
    (block,), wire = plan.blocks, wire_of(world, plan, bits, draws)
    out, _ = wire.dealt(0, BandedMean(WIDTH, 3))
    deal = Redistribution(block.steps, even_counts(VERTICES, world.size))
    own, lo = block.owned(world.rank), sum(deal.vertices[: world.rank])
    mine = slice(own.start, own.stop), slice(lo, lo + deal.vertices[world.rank])
    x, grad = numbers(1)[mine[0]].requires_grad_(), numbers(2)[:, mine[1]]
    rows, grads = [], []
    for draws.epoch in range(times):
        wire.begin(torch.float64, training=True)
        x.grad = None
        got = to_vertices(x, deal, world, out(block))
        got.backward(grad)
        rows.append(got.detach())
        grads.append(x.grad)
        wire.end()
    found = {name: torch.stack(part) for name, part in (("rows", rows), ("grads", grads))}
    told = {name: (part.mean(0), part.var(0)) for name, part in found.items()}
    return told | {"mine": (own, mine[1])}


@pytest.mark.parametrize(("size", "bits"), [(3, 2), (2, 4)])
def test_rows_and_gradients_are_right_on_average(ranks: RankPool, size: int, bits: int) -> None:
    times = 150
    for got in ranks.run(dealt_often, size, bits, times):
        steps, vertices = got["mine"]
        foreign = torch.ones(STEPS, VERTICES, dtype=torch.bool)
        foreign[steps.start : steps.stop, vertices] = False
        for name, all_TND, mine in (
            ("rows", numbers(1), (slice(None), vertices)),
            ("grads", numbers(2), (slice(steps.start, steps.stop), slice(None))),
        ):
            (mean, variance), want = got[name], all_TND[mine]
            travelled = foreign[mine]
            assert not variance[~travelled].gt(1e-20).any(), "own rows stay as they are"
            torch.testing.assert_close(mean[~travelled], want[~travelled])
            true = spread_of(want, bits)[travelled]
            error = (mean - want)[travelled] / (true / times).sqrt().clamp(min=1e-9)
            moved = true > 1e-9
            assert error[moved].abs().max() < 5.5
            assert abs(float(error[moved].mean())) < 5 / moved.sum().sqrt()
            assert float(error[moved].square().mean()) == pytest.approx(1, abs=0.15)
            ratio = (variance[travelled][moved] / true[moved]).mean()
            assert float(ratio) == pytest.approx(1, abs=0.05)


class NoisyDeal(torch.autograd.Function):
    """All rows as their readers have them: those that change ranks rounded, gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, moves_TN: Tensor, sender_TN: Tensor, how: tuple) -> Tensor:
        ctx.save_for_backward(moves_TN, sender_TN)
        ctx.how = how
        bits, draws, number, _, first, _ = how
        found = rounded(x_TND, bits, draws, FIRST + number * DIRECTIONS, first)
        return torch.where(moves_TN[..., None], found, x_TND)

    @staticmethod
    def backward(ctx: Any, grad_TND: Tensor) -> tuple[Any, ...]:
        (moves_TN, sender_TN), grad = ctx.saved_tensors, grad_TND.clone()
        bits, draws, number, block, first, size = ctx.how
        for rank in range(size):
            purpose = FIRST + number * DIRECTIONS + 1 + block * size + rank
            mine = (moves_TN & (sender_TN == rank))[..., None]
            grad = torch.where(mine, rounded(grad_TND, bits, draws, purpose, first), grad)
        return grad, None, None, None


class NoisyAllToAll(AllToAll):
    """One process that rounds what would change ranks."""

    def __init__(self, number: int, part: Any, plan: TimePlan, bits: int, draws: Draws) -> None:
        super().__init__(part, NUM_NODES, World())
        self.number, self.plan, self.bits, self.draws = number, plan, bits, draws

    def forward(self, rows_tND: Tensor, block: TimeBlock, *, returns: bool) -> Tensor:
        size, steps = self.plan.num_ranks, range(block.start, block.stop)
        step_T = torch.tensor([self.plan.owner(step) for step in steps])[:, None]
        counts = torch.tensor(even_counts(NUM_NODES, size))
        vertex_N = torch.arange(size).repeat_interleave(counts)[None]
        step_TN, vertex_TN = torch.broadcast_tensors(step_T, vertex_N)

        def moved(x: Tensor, which: int, sender_TN: Tensor) -> Tensor:
            if block.number >= self.plan.num_train or not self.draws.training:
                return x
            number = 2 * self.number + which
            how = (self.bits, self.draws, number, block.number, block.start, size)
            return NoisyDeal.apply(x, step_TN != vertex_TN, sender_TN, how)

        inputs = moved(rows_tND, 0, vertex_TN)
        out = super().forward(inputs, block, returns=returns)
        return moved(out, 1, step_TN) if returns else out


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
    last = [rows.detach().clone() for _, rows in runner.evaluate()]
    return {"losses": losses, "found": found, "last": last}


def wide_runner(
    world: World, name: str, strategy: TimeStrategy, dtype: torch.dtype = torch.float64
) -> tuple[TimeRunner, Draws]:
    """Return a model whose rows are rounded, on this rank's snapshots, and its draws."""
    draws, model = Draws(seed=6), make_model(name, WIDTH).to(dtype)
    runner = runner_on(world, model, awkward_dynamic(), strategy, 1000)
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
    for number, carrier in alone._carriers.items():
        alone._carriers[number] = NoisyAllToAll(number, carrier.part, plan, bits, draws)
    want = steps_of(alone, draws)
    for part in got:
        torch.testing.assert_close(part["losses"], want["losses"], rtol=1e-9, atol=1e-11)
        for key, tensor in part["found"].items():
            message = f"{key}: {{}}".format
            other = want["found"][key]
            torch.testing.assert_close(tensor, other, rtol=1e-8, atol=1e-10, msg=message)
    # Evaluation rounds nothing, so it is that of the weights alone.
    assert sum(len(rows) for part in got for rows in part["last"]) == graph.num_snapshots


class Watched(VertexLSTM):
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
        Watched(p.in_width, p.out_width) if isinstance(p, VertexLSTM) else p for p in model.parts
    ]
    torch.manual_seed(0)
    for part in parts:
        for p in part.parameters():
            torch.nn.init.normal_(p, std=0.3)
    watched, draws = DynamicGNN(parts, out_width=WIDTH).float(), Draws(seed=1, epoch=1)
    rounding = Strategy(wire=wire, **({} if isinstance(wire, int) else {"wire_period": 3}))
    strategy = TimeStrategy(block=4, exchange="all-to-all", rounding=rounding)
    runner = runner_on(world, watched, awkward_dynamic(), strategy, 1000)
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


BAND = 4


def banded_often(world: World, bits: int, times: int) -> dict[str, Any]:
    """Return the halo's means and the gradients that came home, in one epoch and on average."""
    plan, draws = plan_time([1] * STEPS, world.size, train_steps=STEPS, block_steps=5), Draws(3)
    part, wire = BandedMean(WIDTH, BAND), wire_of(world, plan, bits, draws)
    carrier = BandedHalo(part, world, wire.fetched(0, part))
    sums: dict[int, list[Tensor]] = {}
    first = {}
    for draws.epoch in range(times):
        wire.begin(torch.float64, training=True)
        carrier.reset(plan.blocks, keep=True)
        inputs = {
            b.number: numbers(1)[b.bounds[world.rank] : b.bounds[world.rank + 1]].requires_grad_()
            for b in plan.blocks
        }
        with torch.no_grad():
            carrier.forward(inputs[0], plan.blocks[0], returns=True)
        for block in reversed(plan.blocks):
            own = block.owned(world.rank)
            out = carrier.forward(inputs[block.number], block, returns=True)
            roots = [(out, numbers(2)[own.start : own.stop]), *carrier.roots()]
            torch.autograd.backward(*zip(*roots, strict=True))
            carrier.settle()
            for step, row, grad in zip(own, out, inputs[block.number].grad, strict=True):
                pair = torch.stack([row.detach(), grad])
                sums[step] = [pair] if step not in sums else [sums[step][0] + pair]
                first.setdefault(step, pair.clone())
        wire.end()
    return {"first": first, "mean": {step: total[0] / times for step, total in sums.items()}}


def noisy_means(plan: TimePlan, bits: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """Return the means and gradients of one process that rounds what other ranks would read."""
    x, grad = numbers(1), torch.zeros_like(numbers(1))
    seen, out = rounded(x, bits, draws, FIRST), torch.zeros_like(x)
    for block in plan.blocks:
        for rank in range(plan.num_ranks):
            own, reach = block.owned(rank), halo_steps(block, rank, BAND)
            halo = [(x if plan.owner(s) == rank else seen)[s] for s in reach]
            known = torch.stack([*halo, *x[own.start : own.stop]]) if len(own) else x[:0]
            if not len(own):
                continue
            known.requires_grad_()
            means = banded_mean(known, len(reach), BAND)
            means.backward(numbers(2)[own.start : own.stop])
            out[own.start : own.stop] = means.detach()
            purpose = FIRST + 1 + block.number * plan.num_ranks + rank
            came = torch.zeros_like(x)
            came[reach.start : own.stop] = known.grad
            home = rounded(came, bits, draws, purpose)
            for s in range(reach.start, own.stop):
                grad[s] += came[s] if plan.owner(s) == rank else home[s]
    return out, grad


@pytest.mark.parametrize("size", [2, 4])
def test_bands_are_rounded_on_their_way_and_right_on_average(ranks: RankPool, size: int) -> None:
    bits, times = 2, 60
    plan = plan_time([1] * STEPS, size, train_steps=STEPS, block_steps=5)
    want = torch.stack(noisy_means(plan, bits, Draws(3, epoch=0)))
    exact = banded_mean(numbers(1).requires_grad_(), 0, BAND)
    found = ranks.run(banded_often, size, bits, times)
    first = torch.stack([p for r in found for _, p in sorted(r["first"].items())])
    steps = [s for r in found for s in sorted(r["first"])]
    torch.testing.assert_close(first, want[:, steps].transpose(0, 1), rtol=1e-10, atol=1e-10)
    mean = {s: pair[0] for r in found for s, pair in r["mean"].items()}
    once = (want[0] - exact).detach().square().mean()
    late = torch.stack([mean[s] for s in range(STEPS)]) - exact.detach()
    assert float(late.square().mean()) < 2 / times * float(once)
    assert float(once) > 0


def test_a_snapshot_counts_by_the_means_that_read_it() -> None:
    matrix = torch.zeros(12, 12, dtype=torch.float64)
    for t in range(12):
        matrix[t, max(0, t - BAND + 1) : t + 1] = 1 / min(BAND, t + 1)
    for step in range(12):
        for start, stop in ((0, 12), (2, 5), (6, 12)):
            want = float(matrix[max(start, step) : max(stop, step), step].square().sum())
            assert band_squares(step, range(start, stop), BAND) == pytest.approx(want)


def errors_and_bytes(world: World, bits: Any) -> tuple[list[float], list[int]]:
    """Return squared errors of rows dealt out and back, epoch by epoch, and the bytes sent."""
    steps, vertices, draws = 18, 192, Draws(seed=4)
    plan = plan_time([1] * steps, world.size, train_steps=steps)
    (block,), wire = plan.blocks, wire_of(world, plan, bits, draws, vertices)
    out, back = wire.dealt(0, BandedMean(32, 3))
    deal = Redistribution(block.steps, even_counts(vertices, world.size))
    own, draw = block.owned(world.rank), torch.Generator().manual_seed(9)
    # Vertices that belong together have numbers near each other.
    scale = torch.randn(steps, vertices // 16, 1, generator=draw).mul(2).exp()
    x = scale.repeat_interleave(16, dim=1) * torch.randn(steps, vertices, 32, generator=draw)
    x = x[own.start : own.stop].requires_grad_()
    errors, sent = [], []
    for draws.epoch in range(1, 21):
        wire.begin(torch.float32, training=True)
        world.meter.bytes_sent.clear()
        got = to_steps(to_vertices(x, deal, world, out(block)), deal, world, back(block))
        got.square().sum().backward()
        errors.append(float((got - x).detach().square().sum()))
        sent.append(sum(world.meter.bytes_sent[k] for k in ("time_forward", "time_backward")))
        wire.end()
    return errors, sent


def test_adaptive_widths_have_less_variance_in_no_more_bytes(ranks: RankPool) -> None:
    found = {bits: ranks.run(errors_and_bytes, 3, bits) for bits in (4, "adaptive", "random")}
    late = slice(5, None)  # a period of 3, two epochs until widths apply
    error = {bits: sum(sum(e[late]) for e, _ in parts) for bits, parts in found.items()}
    sent = {bits: sum(sum(b[late]) for _, b in parts) for bits, parts in found.items()}
    assert 0.99 * sent[4] < sent["adaptive"] <= sent[4]
    assert sent["random"] <= sent[4]
    assert error["adaptive"] < 0.5 * error[4]
    assert error[4] < error["random"], "scores that do not follow their rows are worse than none"


def with_nan(world: World) -> str:
    """Return what a rank says of a row with NaN."""
    plan, draws = plan_time([1] * STEPS, world.size, train_steps=STEPS), Draws(seed=4)
    (block,), wire = plan.blocks, wire_of(world, plan, 8, draws)
    out, _ = wire.dealt(0, BandedMean(WIDTH, 3))
    deal, own = Redistribution(block.steps, even_counts(VERTICES, world.size)), block.owned(0)
    x = numbers(1)
    x[2, 20, 3] = float("nan")
    x = x[own.start : own.stop] if world.rank == 0 else x[own.stop :]
    wire.begin(torch.float64, training=True)
    try:
        to_vertices(x, deal, world, out(block))
    except DataError as error:
        return str(error)
    return ""


def test_a_row_that_is_not_finite_is_named(ranks: RankPool) -> None:
    told = ranks.run(with_nan, 2)
    assert "row of vertex 20 (its number in the store), snapshot 2" in told[0]
    assert told[1] == ""
