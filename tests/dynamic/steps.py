"""Training steps of dynamic models on a rank of the pool, and the same by the reference."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.comm import World, reduce_gradients
from siafu.engine.dynamic.edge_sums import Fit, SumScale
from siafu.engine.dynamic.event_features import EventScale
from siafu.engine.dynamic.node_features import NodeFeatures
from siafu.engine.dynamic.snapshots import Reading, Snapshots
from siafu.engine.dynamic.step_shards import Grid, make_grid
from siafu.graph import DynamicGraph
from siafu.nn import DYNAMIC_CARDS, Draws, DynamicGNN, DynamicSpec, build_dynamic, look_back
from siafu.partitioning import TimeBlock, plan_time
from siafu.strategy import TimeRunner, TimeStrategy
from siafu.strategy.time.strategy import TimeExchange
from tests.dynamic.graphs import (
    EVENT_WIDTH,
    NUM_NODES,
    NUM_STEPS,
    awkward_dynamic,
    featured_dynamic,
)
from tests.dynamic.reference import Walk, embed

STEPS = 3
TRAIN = 10
"""Snapshots that are trained on; the others are only embedded."""
MODELS = list(DYNAMIC_CARDS)
OUTWARD = ("tm-gcn", "gcrn")
"""Models whose nodes sum over those that their edges lead to."""
_SEEDING = threading.Lock()


@dataclass(frozen=True)
class Way:
    """How a model is trained beside what a strategy says."""

    history: int = 0
    by_block: bool = False
    """A step after each block, whose gradients end at its start."""
    learned: bool = False
    """A row for each node is learnt in the place of features."""
    edges: bool = False
    """Features of events are read, by the input and by every spatial layer."""
    symmetric: bool = False
    """Each snapshot equals its transpose."""

    def graph(self) -> DynamicGraph:
        """Return what is trained on."""
        return featured_dynamic(self.symmetric) if self.edges else awkward_dynamic()


PLAIN = Way()


def make_model(name: str, hidden: int = 4, way: Way = PLAIN) -> DynamicGNN:
    """Return the model, always with the same weights; rows of nodes that are learnt are a part."""
    width = EVENT_WIDTH if way.edges else 0
    in_width = 3 + 2 * width
    spec = DynamicSpec(
        name=name, in_width=in_width, hidden=hidden, layers=2, band=4, edge_width=width
    )
    with _SEEDING:  # ranks may be threads, and the seed is everyone's
        torch.manual_seed(5)
        model = build_dynamic(spec).double()
        for part in model.parts:  # 0 at the start would hide what features of edges add
            if getattr(part, "edges", None) is not None:
                torch.nn.init.xavier_uniform_(part.edges.weight)
        rows = torch.randn(NUM_NODES, 3, dtype=torch.float64)
    if way.history:
        look_back(model, way.history)
    model.register_parameter("table", torch.nn.Parameter(rows) if way.learned else None)
    return model


def target(step: int, num_nodes: int, width: int) -> Tensor:
    """Return what the embeddings of a step are pulled to; nothing for one of the steps."""
    draw = torch.Generator().manual_seed(step)
    return torch.randn(num_nodes, width, dtype=torch.float64, generator=draw)


def loss_of_step(step: int, rows_nO: Tensor, ids_n: Tensor | None = None) -> Tensor:
    """Return a loss that treats every entry differently; step 3 has none.

    Of some nodes alone, it is their share of that of all.
    """
    if step == 3:
        return rows_nO.new_zeros(())
    wanted_NO = target(step, NUM_NODES, rows_nO.size(1))
    wanted_nO = wanted_NO if ids_n is None else wanted_NO[ids_n.cpu()]
    return (rows_nO - wanted_nO.to(rows_nO.device)).square().sum() / (wanted_NO.numel() * TRAIN)


def scale_of(graph: DynamicGraph) -> EventScale:
    """Return the scale of the events' features; that of their sums is found by a runner."""
    return EventScale(graph, TRAIN, SumScale(EVENT_WIDTH)).double()


def runner_on(
    grid: Grid,
    model: DynamicGNN,
    graph: DynamicGraph,
    strategy: TimeStrategy,
    most_edges: int,
    outward: bool = False,
    events: EventScale | None = None,
) -> TimeRunner:
    """Return the model on this rank's snapshots."""
    costs = [int(e) + graph.num_nodes for e in graph.edges_per_snapshot()]
    times = grid.times
    plan = plan_time(costs, times.size, train_steps=TRAIN, block_steps=strategy.block)
    # Where snapshots are made anew, their inputs are brought anew too.
    room = None if most_edges else 0.0
    steps, table = plan.owned(times.rank), getattr(model, "table", None)
    reading = Reading(
        features=None if table is None else NodeFeatures("learned", table.size(1)),
        outward=outward,
        most_edges_kept=most_edges,
        most_input_bytes=room,
        events=events,
        fit=Fit(grid.world, TRAIN),
    )
    source = Snapshots(graph, steps, model, Draws(), grid.share, reading, table)
    return TimeRunner(model, source, plan, times, strategy)


def distributed_steps(
    world: World,
    name: str,
    strategy: TimeStrategy | tuple[TimeStrategy, Way],
    most_edges: int = 1000,
    exchanges: Sequence[TimeExchange] = (),
    hidden: int = 4,
    groups: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return what one rank sees of the steps: losses, gradients, weights, embeddings, bytes.

    `exchanges` gives each temporal part its own, as `auto` may; `groups` are dealt out to the
    nodes, one after another.
    """
    strategy, way = strategy if isinstance(strategy, tuple) else (strategy, PLAIN)
    model, graph = make_model(name, hidden, way).to(world.device), way.graph()
    events = scale_of(graph).to(world.device) if way.edges else None
    if groups:
        graph = replace(graph, part_of=np.resize(np.array(groups, np.int32), graph.num_nodes))
    grid = make_grid(world, graph, max(groups, default=0) + 1)
    runner = runner_on(grid, model, graph, strategy, most_edges, name in OUTWARD, events)
    for (number, carrier), exchange in zip(runner._exchanges.items(), exchanges, strict=False):
        runner.strategy = replace(strategy, exchange=exchange)
        runner._exchanges[number] = runner._make_exchange(number, carrier.part)

    def loss_of(block: TimeBlock, rows_tNO: Tensor) -> Tensor:
        steps = zip(block.owned(grid.times.rank), rows_tNO, strict=True)
        losses = [loss_of_step(step, rows, grid.share.ids_n) for step, rows in steps]
        return torch.stack(losses).sum() if losses else rows_tNO.sum()

    parameters = list(model.parameters())
    optimiser = torch.optim.Adam(parameters, lr=0.05, eps=1e-3)
    losses, grads, sent = [], {}, {}

    def change_weights() -> None:
        reduce_gradients(parameters, world)
        if not grads:
            found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            grads.update({name: grad.cpu().clone() for name, grad in found.items()})
        optimiser.step()
        optimiser.zero_grad()

    train = runner.train
    if way.by_block:
        train = partial(runner.train_in_order, after_block=change_weights)
    for step in range(STEPS):
        share = train(loss_of)
        if step == 0:
            sent = dict(world.meter.bytes_sent)
        if not way.by_block:
            change_weights()
        losses.append(sum(row[0] for row in world.gather_numbers([share])))
    pieces = {
        step: rows.cpu()
        for block, rows_tNO in runner.evaluate()
        for step, rows in zip(block.owned(grid.times.rank), rows_tNO, strict=True)
    }
    weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    return {
        "losses": losses,
        "grads": grads,
        "weights": weights,
        "rows": pieces,
        "sent": sent,
        "ids": grid.share.ids_n.cpu(),
        "exchanges": runner.exchanges,
    }


@cache
def reference_steps(name: str, way: Way = PLAIN, block: int = 0) -> dict[str, Any]:
    """Return the truth, from dense matrices and one snapshot after another."""
    model, graph = make_model(name, way=way), way.graph()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)
    losses, grads = [], {}
    walk = Walk(outward=name in OUTWARD, history=way.history, inputs=model.table)
    walk.train = TRAIN if way.edges else 0
    blocks = plan_time([1] * NUM_STEPS, 1, train_steps=TRAIN, block_steps=block).blocks
    spans = [range(b.start, b.stop) for b in blocks if b.stop <= TRAIN]
    for _ in range(STEPS):
        walk.states, total = {}, 0.0
        for span in spans if way.by_block else [range(TRAIN)]:
            optimiser.zero_grad()
            walk.span = span
            rows_TNO = embed(name, model, graph, walk)
            pairs = zip(span, rows_TNO, strict=True)
            loss = torch.stack([loss_of_step(t, rows) for t, rows in pairs]).sum()
            loss.backward()
            if not grads:
                found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
                grads.update({key: grad.clone() for key, grad in found.items()})
            optimiser.step()
            total += float(loss.detach())
        losses.append(total)
    with torch.no_grad():
        rows_TNO = embed(name, model, graph, replace(walk, span=None, states={}))
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return {"losses": losses, "grads": grads, "weights": weights, "rows": rows_TNO}
