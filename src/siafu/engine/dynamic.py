"""Training on a dynamic graph: an epoch is one step over all training snapshots of all ranks."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from siafu.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint, restore_optimiser
from siafu.comm import BACKWARD, FORWARD, World, reduce_gradients
from siafu.config import DYNAMIC_DEFAULTS, RunConfig
from siafu.engine.adam import Adam
from siafu.engine.edge_task import EdgeTask
from siafu.engine.evaluations import Evaluations, synchronise
from siafu.engine.full_graph import OnEpoch, Progress, diverged, peak_bytes
from siafu.engine.graph_checks import check_own_settings
from siafu.engine.grid import Grid, make_grid
from siafu.engine.link_task import LinkTask
from siafu.engine.own_model import own_model
from siafu.engine.run_facts import read_run_facts
from siafu.engine.snapshots import Reading, Snapshots, num_inputs
from siafu.engine.stopping import IsTold, save_or_stop
from siafu.engine.tasks import Tally, Task, TaskInput
from siafu.engine.time_split import SPLITS
from siafu.engine.vertex_tasks import NodeTask, SignalTask
from siafu.engine.widths import gather_widths, histogram, restore_widths
from siafu.errors import ConfigError, PlanError
from siafu.graph import DynamicGraph, fingerprint_dynamic, writing
from siafu.nn import Draws, DynamicGNN, DynamicSpec, build_dynamic
from siafu.partition import TimeBlock, plan_time
from siafu.plan import named_strategy
from siafu.record import RunFolder
from siafu.strategy import TimeRunner, TimeStrategy

TASKS: dict[str, Callable[[TaskInput], Task]] = {
    "edge": EdgeTask,
    "link": LinkTask,
    "node": NodeTask,
    "signal": SignalTask,
}
_HALO = ("halo_forward", "halo_backward")


class DynamicNetwork(nn.Module):
    """A dynamic model and the head that answers from its embeddings."""

    def __init__(self, model: DynamicGNN, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head


@dataclass(slots=True)
class DynamicTraining:
    """One rank's side of a run on a dynamic graph."""

    config: RunConfig
    graph: DynamicGraph
    task: Task
    network: DynamicNetwork
    runner: TimeRunner
    grid: Grid
    optimiser: torch.optim.Optimizer
    draws: Draws
    progress: Progress
    best: dict[str, Tensor]
    best_details: dict[str, dict[str, float]]
    """All scores of the best epoch, by split."""
    _fingerprint: str = ""
    evaluations: Evaluations = field(default_factory=Evaluations)

    @property
    def world(self) -> World:
        """The ranks of the run."""
        return self.grid.world

    def step(self) -> float:
        """Take one step and return the loss over all ranks."""
        self.network.train()
        self.draws.training, self.draws.epoch = True, self.progress.epochs + 1
        self.optimiser.zero_grad(set_to_none=True)
        share = self.runner.train(self._loss_of)
        reduce_gradients(list(self.network.parameters()), self.world)
        self.optimiser.step()
        return math.fsum(row[0] for row in self.world.gather_numbers([share], "metric"))

    def _loss_of(self, block: TimeBlock, rows_tND: Tensor) -> Tensor:
        steps = zip(block.owned(self.grid.times.rank), rows_tND, strict=True)
        found = [self.task.loss(self.network.head, step, rows_ND) for step, rows_ND in steps]
        losses = [loss for loss in found if loss is not None]
        return torch.stack(losses).sum() if losses else rows_tND.new_zeros(())

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Return all scores of the present weights, by split; every rank calls it."""
        self.network.eval()
        self.draws.training = False
        total: Tally = {}
        for block, rows_tND in self.runner.evaluate():
            for step, rows_ND in zip(block.owned(self.grid.times.rank), rows_tND, strict=True):
                for split, numbers in self.task.tally(self.network.head, step, rows_ND).items():
                    known = total.get(split, [0.0] * len(numbers))
                    total[split] = [a + b for a, b in zip(known, numbers, strict=True)]
        return self._added_up(total)

    def _added_up(self, mine: Tally) -> dict[str, dict[str, float]]:
        """Return the scores of what all ranks counted; one without any of a split counts 0."""
        longest = [float(max((len(numbers) for numbers in mine.values()), default=0))]
        width = int(max(row[0] for row in self.world.gather_numbers(longest, "metric")))
        flat = [number for split in SPLITS for number in mine.get(split, [0.0] * width)]
        has = [float(split in mine) for split in SPLITS]
        table = torch.tensor(self.world.gather_numbers([*has, *flat], "metric")).sum(dim=0)
        sums = table[len(SPLITS) :].view(len(SPLITS), width).tolist()
        return {
            split: self.task.score(sums[number])
            for number, split in enumerate(SPLITS)
            if table[number] > 0
        }

    def run_epoch(self) -> dict[str, Any]:
        """Train and, when due, evaluate one epoch; return its row of metrics."""
        epoch = self.progress.epochs + 1
        self.world.step = f"epoch {epoch}"
        started = time.perf_counter()
        loss = self.step()
        synchronise(self.world)
        seconds = time.perf_counter() - started
        if not math.isfinite(loss):
            raise diverged(epoch, loss)
        self.progress.epochs = epoch
        self.progress.losses.append(loss)
        self.progress.seconds.append(seconds)
        row: dict[str, Any] = {"epoch": epoch, "loss": loss, "seconds": seconds}
        last = epoch == self.config.epochs or self.progress.is_stale(self.config.patience)
        assert self.config.eval_every is not None, "settings are resolved"
        if last or epoch % self.config.eval_every == 0:
            with self.evaluations.counted(self.world):
                row["scores"] = self.evaluate()
            self.keep_best(row["scores"])
        row["bytes_sent"] = dict(self.world.meter.bytes_sent)
        return row

    def keep_best(self, details: dict[str, dict[str, float]]) -> None:
        """Keep the present weights if their validation score is the highest yet."""
        now = {split: next(iter(scores.values())) for split, scores in details.items()}
        merit = self._merit(now)
        if self.progress.best_scores and "val" in now and merit <= self.progress.best_merit:
            return
        self.progress.best_epoch, self.progress.best_scores = self.progress.epochs, now
        self.progress.best_merit, self.best_details = merit, details
        state = self.network.state_dict()
        self.best = {name: tensor.detach().clone() for name, tensor in state.items()}

    def _merit(self, scores: dict[str, float]) -> float:
        """Return what epochs are compared by; without validation snapshots the last one counts."""
        if "val" not in scores:
            return math.inf
        return -scores["val"] if self.task.lower_is_better else scores["val"]

    def fingerprint(self) -> str:
        """Return the hash of the graph; all of it is read once."""
        self._fingerprint = self._fingerprint or fingerprint_dynamic(self.graph)
        return self._fingerprint

    def checkpoint(self) -> Checkpoint:
        """Return the state of the run; every rank calls this together."""
        progress = self.progress
        facts = {
            "epochs": progress.epochs,
            "best_epoch": progress.best_epoch,
            "best_scores": progress.best_scores,
            "best_details": self.best_details,
            "losses": progress.losses,
            "seconds": progress.seconds,
            "fingerprint": self.fingerprint(),
            "ranks": self.world.size,
        }
        model, optimiser = self.network.state_dict(), self.optimiser.state_dict()
        wire = gather_widths(self.runner.wire.book, self.world)
        return Checkpoint(model=model, best=self.best, optimiser=optimiser, wire=wire, facts=facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up a run where the checkpoint left it."""
        facts, mine = read_run_facts(checkpoint), self.fingerprint()
        if facts.fingerprint != mine:
            raise PlanError(
                "The checkpoint is of a run on another graph.",
                seen=f"{facts.fingerprint[:12]}, the data is {mine[:12]}",
                fix="resume with the data the run was started on",
            )
        if checkpoint.wire and facts.ranks != self.world.size:
            raise PlanError(
                "The checkpoint has adaptive widths for another number of ranks.",
                seen=f"{facts.ranks} ranks then, {self.world.size} now",
                fix=f"resume on {facts.ranks} ranks",
            )
        self.network.load_state_dict(checkpoint.model)
        restore_optimiser(self.optimiser, checkpoint.optimiser)
        self.best, self.best_details = checkpoint.best, facts.best_details
        names = ("epochs", "best_epoch", "best_scores", "losses", "seconds")
        self.progress = Progress(**{name: getattr(facts, name) for name in names})
        if self.progress.best_scores:
            self.progress.best_merit = self._merit(self.progress.best_scores)
        restore_widths(self.runner.wire.book, checkpoint.wire, self.world)


def default_task(graph: DynamicGraph) -> str:
    """Return what the data asks for: classes of edges or vertices, a signal, else links."""
    if graph.event_label is not None and graph.num_edge_classes > 1:
        return "edge"
    if graph.y is not None:
        return "node"
    return "signal" if graph.signal is not None else "link"


def num_embedded(config: RunConfig, graph: DynamicGraph) -> int:
    """Return how many snapshots a run embeds: about the next one, the last has nothing to ask."""
    looks_ahead = (config.task or default_task(graph)) in ("link", "signal")
    return graph.num_snapshots - int(looks_ahead)


class Made(NamedTuple):
    """What a run is about, and the network that learns it."""

    task: Task
    network: DynamicNetwork
    lags: int
    """Past values of a signal in the network's input."""


def make_network(config: RunConfig, graph: DynamicGraph, grid: Grid, draws: Draws) -> Made:
    """Return the task and the network with weights drawn from the seed."""
    given = TaskInput(graph=graph, config=config, draws=draws, share=grid.share)
    task = TASKS[config.task or default_task(graph)](given)
    lags = config.lags if task.name == "signal" else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = _make_model(config, num_inputs(graph, lags))
        network = DynamicNetwork(model, task.make_head(model.out_width))
    return Made(task, network.to(grid.world.device), lags)


def _make_model(config: RunConfig, in_width: int) -> DynamicGNN:
    assert config.hidden is not None
    if config.model in DYNAMIC_DEFAULTS:
        spec = DynamicSpec(
            name=config.model,
            in_width=in_width,
            hidden=config.hidden,
            layers=config.layers,
            band=config.bandwidth,
            dropout=config.dropout or 0.0,
        )
        return build_dynamic(spec)
    model = own_model(config, in_width, config.hidden)
    if not isinstance(model, DynamicGNN):
        raise ConfigError(
            "The model is not one for dynamic graphs.",
            seen=f"{config.model} is a {type(model).__name__}",
            fix="derive it from siafu.nn.DynamicGNN, or use one of " + ", ".join(DYNAMIC_DEFAULTS),
        )
    return model


def begin_dynamic(
    config: RunConfig,
    graph: DynamicGraph,
    world: World,
    resume_from: Path | None = None,
) -> DynamicTraining:
    """Return a training ready to run, fresh or from the newest checkpoint of a run folder."""
    if resume_from is None:
        check_own_settings(config)
    draws = Draws(seed=config.seed)
    grid = make_grid(world, graph, config.vertex_parts)
    made = make_network(config, graph, grid, draws)
    runner = make_runner(config, graph, grid, made, draws)
    task, network = made.task, made.network
    assert config.lr is not None
    assert config.weight_decay is not None
    optimiser = Adam(network.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    training = DynamicTraining(
        config, graph, task, network, runner, grid, optimiser, draws, Progress(), {}, {}
    )
    if resume_from is not None:
        mine = newest_checkpoint(resume_from).name if world.rank == 0 else ""
        chosen = resume_from / world.share_text(mine)
        training.restore(load_checkpoint(chosen, network))
    return training


def make_runner(
    config: RunConfig,
    graph: DynamicGraph,
    grid: Grid,
    made: Made,
    draws: Draws,
    *,
    to_the_end: bool = False,
) -> TimeRunner:
    """Return the model over this rank's snapshots; one costs its edges, loops included.

    `to_the_end`: the last snapshot too, where nothing is left to be asked of it.
    """
    task, model = made.task, made.network.model
    strategy = TimeStrategy(
        block=config.time_block,
        exchange=config.time_exchange,
        rounding=named_strategy(config),
    )
    costs = [int(edges) + graph.num_nodes for edges in graph.edges_per_snapshot()]
    plan = plan_time(
        costs if to_the_end else costs[: task.num_steps],
        grid.times.size,
        train_steps=task.train_steps,
        block_steps=strategy.block,
    )
    reading = Reading(lags=made.lags, outward=config.aggregate == "out")
    source = Snapshots(graph, plan.owned(grid.times.rank), model, draws, grid.share, reading)
    return TimeRunner(model, source, plan, grid.times, strategy, draws)


def train_dynamic(
    training: DynamicTraining,
    folder: RunFolder,
    on_epoch: OnEpoch,
    is_told: IsTold = lambda: False,
) -> dict[str, Any]:
    """Run the remaining epochs and return the summary; rank 0 writes metrics and checkpoints.

    Raises `Stopped` after the epoch in which a rank was told to end, which is saved.
    """
    config, progress, is_first = training.config, training.progress, training.world.rank == 0
    while not progress.is_over(config):
        row = training.run_epoch()
        if is_first:
            with writing(folder.metrics):
                folder.append_metrics(row)
            on_epoch(row)
        may_stop = not progress.is_over(config)
        save_or_stop(training, folder, progress.epochs, may_stop=may_stop, is_told=is_told)
    if not progress.best_scores:
        with training.evaluations.counted(training.world):
            found = training.evaluate()
        training.keep_best(found)
    training.network.load_state_dict(training.best)
    return summary(training, folder)


def summary(training: DynamicTraining, folder: RunFolder) -> dict[str, Any]:
    """Return what a run reports. Every rank calls it."""
    world, progress, runner = training.world, training.progress, training.runner
    purposes = (FORWARD, BACKWARD, *_HALO, "gradient", "metric", "control")
    sent = [float(world.meter.bytes_sent.get(purpose, 0)) for purpose in purposes]
    table = world.gather_numbers([*sent, peak_bytes(world) / 2**20])
    by_purpose = [int(sum(column)) for column in list(zip(*table, strict=True))[:-1]]
    blocks = runner.plan.blocks[: runner.plan.num_train]
    return {
        "accuracy": progress.best_scores,
        "scores": training.best_details,
        "metric": training.task.metric,
        "task": training.task.name,
        "best_epoch": progress.best_epoch,
        "losses": progress.losses,
        "epochs": progress.epochs,
        "stopped_by_patience": progress.patience_spent(training.config),
        "seconds_per_epoch": statistics.median(progress.seconds),
        "bytes_sent": dict(zip(purposes, by_purpose, strict=True)),
        "evaluation": training.evaluations.report(world),
        "peak_mb": [round(row[-1], 1) for row in table],
        "ranks": world.size,
        "strategy": "snapshot",
        "choices": {
            **runner.strategy.choices(),
            "exchanges": runner.exchanges,
            "rounded": runner.wire.rounded,
            "time_blocks": len(blocks),
            "vertex_parts": training.config.vertex_parts,
            "snapshots": training.graph.num_snapshots,
            "train_snapshots": training.task.train_steps,
        },
        "exactness": "unbiased" if runner.wire.rounded else "exact",
        "widths": histogram(runner.wire.book, world),
        "model": training.config.model,
        "data": training.graph.name,
        "run": str(folder.path),
    }
