"""The model of a run on a dynamic graph, what it learns, and its runner over snapshots."""

import datetime
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from siafu.comm import World
from siafu.config import ResolvedConfig, RunConfig
from siafu.engine.dynamic.edge_sums import Fit, SumScale
from siafu.engine.dynamic.event_features import EventScale
from siafu.engine.dynamic.node_features import (
    NodeFeatures,
    named_features,
    num_inputs,
    read_node_features,
)
from siafu.engine.dynamic.snapshots import Reading, Snapshots
from siafu.engine.dynamic.step_shards import Grid
from siafu.engine.networks.own_model import EdgeFacts, own_model
from siafu.engine.tasks.edges import EdgeTask
from siafu.engine.tasks.links import LinkTask, check_link_texts
from siafu.engine.tasks.nodes import NodeTask, SignalTask
from siafu.engine.tasks.task import DynamicTask, TaskInput
from siafu.errors import ConfigError
from siafu.graph import DynamicGraph
from siafu.nn import DYNAMIC_CARDS, Draws, DynamicGNN, DynamicSpec, build_dynamic, look_back
from siafu.nn.precision import check_precision, weight_type
from siafu.partitioning import plan_time
from siafu.plan import kept_machine, measured_link
from siafu.strategy import TimeRunner, TimeStrategy
from siafu.strategy.time.cost import TYPICAL, Costs

TASKS: dict[str, Callable[[TaskInput], DynamicTask]] = {
    "edge": EdgeTask,
    "link": LinkTask,
    "node": NodeTask,
    "signal": SignalTask,
}


LOOKS_AHEAD = ("link", "signal")
"""Tasks that ask a snapshot about the next one."""


def check_time_settings(config: RunConfig) -> None:
    """Raise where settings can't be understood, before any data is read."""
    check_link_texts(config.negatives, config.eval_negatives)
    if config.node_features is not None:
        named_features(config.node_features)


class DynamicNetwork(nn.Module):
    """A dynamic model, the head that answers from its embeddings, and rows of nodes if learnt."""

    table: nn.Parameter | None

    def __init__(
        self,
        model: DynamicGNN,
        head: nn.Module,
        table: Tensor | None = None,
        events: EventScale | None = None,
    ) -> None:
        """`events`: the scale of their features, where those are read."""
        super().__init__()
        self.events = events
        self.model, self.head = model, head
        self.table = None if table is None else nn.Parameter(table)


def default_task(graph: DynamicGraph) -> str:
    """Return what the data asks for: classes of edges or nodes, a signal, else links."""
    if graph.event_label is not None and graph.num_edge_classes > 1:
        return "edge"
    if graph.y is not None:
        return "node"
    return "signal" if graph.signal is not None else "link"


def num_embedded(config: RunConfig, graph: DynamicGraph) -> int:
    """Return how many snapshots a run embeds: about the next one, the last has nothing to ask."""
    looks_ahead = (config.task or default_task(graph)) in LOOKS_AHEAD
    return graph.num_snapshots - int(looks_ahead)


class Made(NamedTuple):
    """What a run is about, and the network that learns it."""

    task: DynamicTask
    network: DynamicNetwork
    features: NodeFeatures
    lags: int
    """Past values of a signal in the network's input."""

    def num_inputs(self, graph: DynamicGraph) -> int:
        """Return the width of the network's input."""
        events = 0 if self.network.events is None else 2 * graph.num_event_features
        return num_inputs(graph, self.features, self.lags) + events


def make_network(
    config: ResolvedConfig,
    graph: DynamicGraph,
    grid: Grid,
    draws: Draws,
    *,
    edges_in_layers: bool = True,
    scaled_sums: bool = True,
) -> Made:
    """Return the task and the network with weights drawn from the seed.

    In runs of before, built-in layers read no features of edges (`edges_in_layers` is false), or
    sums of them that had no scale of their own (`scaled_sums`).
    """
    check_precision(config.precision, grid.world.device)
    given = TaskInput(graph=graph, config=config, draws=draws, share=grid.share)
    task = TASKS[config.task or default_task(graph)](given)
    lags = config.lags if task.name == "signal" else 0
    features = read_node_features(config.node_features, graph, seed=config.seed, lags=lags)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        width = num_inputs(graph, features, lags)
        events = _event_scale(config, graph, task.train_steps, scaled_sums)
        width += 0 if events is None else 2 * graph.num_event_features
        if isinstance(task, EdgeTask | LinkTask):
            task.event_scale = events
        edge_width = graph.num_event_features if config.edge_features and edges_in_layers else 0
        model = _make_model(config, width, edge_width)
        head, table = task.make_head(model.out_width), None
        if features.is_learned:
            table = torch.randn(graph.num_nodes, features.width) / features.width**0.5
        network = DynamicNetwork(model, head, table, events)
    if config.history:
        look_back(model, config.history)
    network = network.to(grid.world.device, weight_type(config.precision))
    return Made(task, network, features, lags)


def _event_scale(
    config: ResolvedConfig, graph: DynamicGraph, train_steps: int, scaled_sums: bool
) -> EventScale | None:
    if not config.edge_features:
        return None
    sums = SumScale(graph.num_event_features) if scaled_sums else None
    return EventScale(graph, train_steps, sums)


def _make_model(config: ResolvedConfig, in_width: int, edge_width: int) -> DynamicGNN:
    if config.model in DYNAMIC_CARDS:
        spec = DynamicSpec(
            name=config.model,
            in_width=in_width,
            hidden=config.hidden,
            layers=config.layers,
            band=config.bandwidth,
            dropout=config.dropout or 0.0,
            edge_width=edge_width,
        )
        return build_dynamic(spec)
    model = own_model(config, in_width, config.hidden, EdgeFacts(width=edge_width))
    if not isinstance(model, DynamicGNN):
        raise ConfigError(
            "The model is not one for dynamic graphs.",
            seen=f"{config.model} is a {type(model).__name__}",
            fix="derive it from siafu.nn.DynamicGNN, or use one of " + ", ".join(DYNAMIC_CARDS),
        )
    if not config.edge_features and any(getattr(p, "reads_edges", False) for p in model.parts):
        raise ConfigError(
            "The model reads features of edges that it is not given.",
            seen=f"a part of {config.model} has reads_edges, --edge-features was not asked for",
            fix="add --edge-features",
        )
    return model


def make_runner(
    config: RunConfig,
    graph: DynamicGraph,
    grid: Grid,
    made: Made,
    draws: Draws,
    *,
    to_the_end: bool = False,
    trains: bool = True,
) -> TimeRunner:
    """Return the model over this rank's snapshots; one costs its edges, loops included.

    `to_the_end`: the last snapshot too, where nothing is left to be asked of it. Unless it `trains`
    scales are known.
    """
    task, model = made.task, made.network.model
    strategy = TimeStrategy(
        block=config.time_block,
        exchange=config.time_exchange,
        rounding=config.chosen,
    )
    costs = [int(edges) + graph.num_nodes for edges in graph.edges_per_snapshot()]
    plan = plan_time(
        costs if to_the_end else costs[: task.num_steps],
        grid.times.size,
        train_steps=task.train_steps,
        block_steps=strategy.block,
    )
    outward = config.aggregate == "out"
    table, scale = made.network.table, made.network.events
    fit = Fit(grid.world, task.train_steps) if trains else None
    reading = Reading(
        features=made.features, events=scale, fit=fit, lags=made.lags, outward=outward
    )
    steps = plan.owned(grid.times.rank)
    source = Snapshots(graph, steps, model, draws, grid.share, reading, table)
    is_asked = strategy.exchange == "auto" and grid.times.size > 1
    prices = exchange_costs(grid.world, model.out_width) if is_asked else TYPICAL
    return TimeRunner(model, source, plan, grid.times, strategy, draws, prices)


def exchange_costs(world: World, width: int) -> Costs:
    """Return what exchanges along time cost the slowest rank; every rank calls this.

    The link is measured where ranks are on several hosts. The rest is what was measured once on
    this machine (`siafu plan --calibrate`), or usual there.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    machine, link = kept_machine(world.device.type, today), measured_link(world)
    byte, message, product = TYPICAL.byte, TYPICAL.message, TYPICAL.product
    if machine is not None:
        product, link = machine.shared(world.ranks_here).product(width), link or machine.link
    if link is not None:
        byte, message = 1 / link.bytes_per_second, link.latency_seconds
    table = world.gather_numbers([byte, message, product])
    return Costs(*(max(column) for column in zip(*table, strict=True)))
