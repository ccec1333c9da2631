"""Rounded rows along time: right on average, by the formula's variance, for all exchanges.

Shapes: T snapshots of a block, t of them mine, N nodes, n of them mine, D columns.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Redistribution, World, even_counts, to_nodes, to_steps
from siafu.errors import DataError
from siafu.nn import BandedMean, Draws, banded_mean
from siafu.partitioning import TimePlan, plan_time
from siafu.strategy.time.banded import BandedHalo, halo_steps, pieces_of, used_by
from siafu.strategy.time.rounding import piece_squares
from tests.dynamic.rounding import FIRST, NODES, STEPS, WIDTH, numbers, rounded, wire_of
from tests.harness import RankPool


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
    deal = Redistribution(block.steps, even_counts(NODES, world.size))
    own, lo = block.owned(world.rank), sum(deal.nodes[: world.rank])
    mine = slice(own.start, own.stop), slice(lo, lo + deal.nodes[world.rank])
    x, grad = numbers(1)[mine[0]].requires_grad_(), numbers(2)[:, mine[1]]
    rows, grads = [], []
    for draws.epoch in range(times):
        wire.begin(torch.float64, training=True)
        x.grad = None
        got = to_nodes(x, deal, world, out(block))
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
        steps, nodes = got["mine"]
        foreign = torch.ones(STEPS, NODES, dtype=torch.bool)
        foreign[steps.start : steps.stop, nodes] = False
        for name, all_TND, mine in (
            ("rows", numbers(1), (slice(None), nodes)),
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
    out = torch.zeros_like(x)
    for block in plan.blocks:
        for rank in range(plan.num_ranks):
            own, reach = block.owned(rank), halo_steps(block, rank, BAND)
            purpose = FIRST + 1 + block.number * plan.num_ranks + rank
            mine = x[own.start : own.stop].clone().requires_grad_()
            window = {
                t: list(mine[max(0, t - BAND + 1 - own.start) : t + 1 - own.start]) for t in own
            }
            read = []
            for owner in range(plan.num_ranks):
                steps = [s for s in reach if plan.owner(s) == owner]
                pieces = pieces_of(steps, own, BAND)
                for piece in pieces:
                    inside = [s for s in steps if s in piece]
                    row = x[inside].sum(0, keepdim=True)
                    if owner != rank:
                        row = rounded(row, bits, draws, FIRST, piece.start)
                    read.append((owner, piece, inside, row[0].requires_grad_()))
                for t in own:
                    used = used_by(t, pieces, BAND)
                    first = len(read) - len(pieces)
                    window[t] += [read[first + number][3] for number in used]
            for t in own:
                mean = sum(window[t]) / min(BAND, t + 1)
                mean.backward(numbers(2)[t], retain_graph=True)
                out[t] = mean.detach()
            if len(own):
                grad[own.start : own.stop] += mine.grad
            for owner, piece, inside, row in read:
                came = row.grad[None]
                grad[inside] += (
                    came if owner == rank else rounded(came, bits, draws, purpose, piece.start)
                )
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
    alone = [range(step, step + 1) for step in range(6)]
    for start, stop in ((6, 12), (6, 7), (8, 9)):
        want = matrix[start:stop, :6].square().sum(0).tolist()
        assert piece_squares(alone, range(start, stop), BAND) == pytest.approx(want)
    # Two sums, each read once: those of snapshots 4 and 5, and of 5 alone.
    sums = pieces_of([3, 4, 5], range(7, 9), BAND)
    assert sums == [range(4, 7), range(5, 7)]
    assert piece_squares(sums, range(7, 9), BAND) == [BAND**-2] * 2


def errors_and_bytes(world: World, bits: Any) -> tuple[list[float], list[int]]:
    """Return squared errors of rows dealt out and back, epoch by epoch, and the bytes sent."""
    steps, nodes, draws = 18, 192, Draws(seed=4)
    plan = plan_time([1] * steps, world.size, train_steps=steps)
    (block,), wire = plan.blocks, wire_of(world, plan, bits, draws, nodes)
    out, back = wire.dealt(0, BandedMean(32, 3))
    deal = Redistribution(block.steps, even_counts(nodes, world.size))
    own, draw = block.owned(world.rank), torch.Generator().manual_seed(9)
    # Nodes that belong together have numbers near each other.
    scale = torch.randn(steps, nodes // 16, 1, generator=draw).mul(2).exp()
    x = scale.repeat_interleave(16, dim=1) * torch.randn(steps, nodes, 32, generator=draw)
    x = x[own.start : own.stop].requires_grad_()
    errors, sent = [], []
    for draws.epoch in range(1, 21):
        wire.begin(torch.float32, training=True)
        world.meter.bytes_sent.clear()
        got = to_steps(to_nodes(x, deal, world, out(block)), deal, world, back(block))
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
    deal, own = Redistribution(block.steps, even_counts(NODES, world.size)), block.owned(0)
    x = numbers(1)
    x[2, 20, 3] = float("nan")
    x = x[own.start : own.stop] if world.rank == 0 else x[own.stop :]
    wire.begin(torch.float64, training=True)
    try:
        to_nodes(x, deal, world, out(block))
    except DataError as error:
        return str(error)
    return ""


def test_a_row_that_is_not_finite_is_named(ranks: RankPool) -> None:
    told = ranks.run(with_nan, 2)
    assert "row of node 20 (its number in the store), snapshot 2" in told[0]
    assert told[1] == ""
