"""Training on a dynamic graph: an epoch is one step over all training snapshots of all ranks."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import BACKWARD, FORWARD, World, reduce_gradients
from siafu.config import ResolvedConfig
from siafu.engine.checks import check_own_settings
from siafu.engine.dynamic.infer import save_dynamic_network, write_dynamic_predictions
from siafu.engine.dynamic.network import Made, make_network, make_runner
from siafu.engine.dynamic.step_shards import Grid, make_grid
from siafu.engine.run_facts import RunFacts
from siafu.engine.tasks.task import SPLITS, Tally
from siafu.engine.trainer import Trainer
from siafu.engine.workload import Evaluation, OnStep, no_step
from siafu.graph import DynamicGraph, fingerprint_dynamic
from siafu.nn import Draws
from siafu.partitioning import TimeBlock
from siafu.record import shown_score
from siafu.strategy import TimeRunner, WidthBook
from siafu.strategy.time.blocks import LossOf

_HALO = ("halo_forward", "halo_backward")


class DynamicWorkload:
    """One rank's share of a dynamic graph: a step over all training snapshots is an epoch."""

    task: str | None
    on_step: OnStep = staticmethod(no_step)
    purposes: tuple[str, ...] = (FORWARD, BACKWARD, *_HALO, "gradient", "metric", "control")

    def __init__(
        self,
        config: ResolvedConfig,
        graph: DynamicGraph,
        grid: Grid,
        made: Made,
        runner: TimeRunner,
        draws: Draws,
    ) -> None:
        self.config, self.graph, self.grid, self.draws = config, graph, grid, draws
        self.made, self.learnt, self.network = made, made.task, made.network
        self.runner, self.task = runner, self.learnt.name
        self.metrics: tuple[str, ...] = (self.learnt.metric,)
        self._fingerprint = ""

    @property
    def world(self) -> World:
        """The ranks of the run."""
        return self.grid.world

    @property
    def module(self) -> nn.Module:
        """The model and its head."""
        return self.network

    @property
    def book(self) -> WidthBook:
        """The widths at which rows travel while training."""
        return self.runner.wire.book

    @property
    def guessed_loss(self) -> None:
        """None: what is learnt differs by snapshot."""

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Take one step, or one for each time block, and return the loss over all ranks."""
        self.network.train()
        self.draws.training, self.draws.epoch = True, epoch
        optimiser.zero_grad(set_to_none=True)

        def step() -> None:
            reduce_gradients(list(self.network.parameters()), self.world)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        if self.config.step_every == "block":
            # A block's loss is its share of an epoch's: as large, on average, as that of all.
            blocks = self.runner.plan.num_train
            share = self.runner.train_in_order(self._loss_times(blocks), step) / blocks
        else:
            share = self.runner.train(self._loss_of)
            step()
        self.world.bad_rows.check()
        return math.fsum(row[0] for row in self.world.gather_numbers([share], "metric"))

    def _loss_times(self, factor: int) -> LossOf:
        return lambda block, rows_tND: factor * self._loss_of(block, rows_tND)

    def stands_still(self, epochs: int) -> bool:
        """Return True: an epoch ends with a step of all ranks."""
        return True

    def _loss_of(self, block: TimeBlock, rows_tND: Tensor) -> Tensor:
        steps = zip(block.owned(self.grid.times.rank), rows_tND, strict=True)
        found = [self.learnt.loss(self.network.head, step, rows_ND) for step, rows_ND in steps]
        losses = [loss for loss in found if loss is not None]
        return torch.stack(losses).sum() if losses else rows_tND.new_zeros(())

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return all scores of the present weights."""
        self.network.eval()
        self.draws.training = False
        total: Tally = {}
        for block, rows_tND in self.runner.evaluate():
            for step, rows_ND in zip(block.owned(self.grid.times.rank), rows_tND, strict=True):
                for split, numbers in self.learnt.tally(self.network.head, step, rows_ND).items():
                    known = total.get(split, [0.0] * len(numbers))
                    total[split] = [a + b for a, b in zip(known, numbers, strict=True)]
        details = self._added_up(total)
        scores = {split: next(iter(found.values())) for split, found in details.items()}
        merit, chooses = self.merit_of(scores), "val" in scores
        return Evaluation(scores=scores, merit=merit, chooses=chooses, details=details)

    def _added_up(self, mine: Tally) -> dict[str, dict[str, float]]:
        """Return the scores of what all ranks counted; one without any of a split counts 0."""
        longest = [float(max((len(numbers) for numbers in mine.values()), default=0))]
        width = int(max(row[0] for row in self.world.gather_numbers(longest, "metric")))
        flat = [number for split in SPLITS for number in mine.get(split, [0.0] * width)]
        has = [float(split in mine) for split in SPLITS]
        table = torch.tensor(self.world.gather_numbers([*has, *flat], "metric")).sum(dim=0)
        sums = table[len(SPLITS) :].view(len(SPLITS), width).tolist()
        return {
            split: self.learnt.score(sums[number])
            for number, split in enumerate(SPLITS)
            if table[number] > 0
        }

    def evaluate_all(self) -> Evaluation | None:
        """Return None: every evaluation is of all snapshots."""
        return None

    def merit_of(self, scores: dict[str, float]) -> float:
        """Return what epochs are compared by; without validation snapshots the last one counts."""
        if "val" not in scores:
            return math.inf
        return -scores["val"] if self.learnt.lower_is_better else scores["val"]

    def fingerprint(self) -> str:
        """Return the hash of the graph; all of it is read once."""
        self._fingerprint = self._fingerprint or fingerprint_dynamic(self.graph)
        return self._fingerprint

    def row_of(self, found: Evaluation) -> dict[str, Any]:
        """Return all scores by split."""
        return {"scores": found.details}

    def note_of(self, row: dict[str, Any]) -> str:
        """Return the validation score in words."""
        for name, value in row.get("scores", {}).get("val", {}).items():
            return f"val {name} {shown_score(name, value)}"
        return ""

    def state(self) -> dict[str, Any]:
        """Return how other ranks' snapshots are reached, which may have been measured."""
        return {"exchanges": self.runner.exchanges}

    def check_facts(self, facts: RunFacts) -> None:
        """Take all."""

    def restore(self, facts: RunFacts) -> None:
        """Go on as the run was begun, on as many ranks."""
        if facts.ranks == self.world.size:
            self.runner.take_up(facts.exchanges)

    def dollars(self, seconds: float, epochs: int) -> float:
        """Return nothing: runs over time have no bill."""
        return 0.0

    def calls(self) -> int:
        """Return nothing: runs over time have no pool."""
        return 0

    def report(self, seconds: float, epochs: int) -> dict[str, Any]:
        """Return how time was cut and what travelled along it."""
        runner = self.runner
        blocks = runner.plan.blocks[: runner.plan.num_train]
        return {
            "metric": self.learnt.metric,
            "strategy": "snapshot",
            "choices": {
                **runner.strategy.choices(),
                "exchanges": runner.exchanges,
                "rounded": runner.wire.rounded,
                "time_blocks": len(blocks),
                "node_parts": self.config.node_parts,
                "snapshots": self.graph.num_snapshots,
                "train_snapshots": self.learnt.train_steps,
            },
            "exactness": runner.wire.exactness or self.config.chosen.exactness_on(1),
            "data": self.graph.name,
        }

    def save_weights(self, path: Path) -> None:
        """Write the weights and what inference needs to know; rank 0 calls this alone."""
        save_dynamic_network(self.made, self.graph, path)

    def write_predictions(self, target: Path) -> None:
        """Write what was asked about each of this rank's snapshots."""
        write_dynamic_predictions(self.network, self.learnt, self.runner, target, self.world.rank)

    def abandon(self) -> None:
        """End nothing: this rank has no thread or process of its own."""

    def close(self) -> None:
        """Give up nothing."""


def begin_dynamic(
    config: ResolvedConfig,
    graph: DynamicGraph,
    world: World,
    resume_from: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Trainer:
    """Return a training ready to run, fresh or from the newest checkpoint of a run folder.

    `say` is told of checkpoints that are passed over.
    """
    if resume_from is None:
        check_own_settings(config)
    draws = Draws(seed=config.seed)
    grid = make_grid(world, graph, config.node_parts)
    made = make_network(config, graph, grid, draws)
    runner = make_runner(config, graph, grid, made, draws)
    trainer = Trainer(config, DynamicWorkload(config, graph, grid, made, runner, draws))
    if resume_from is not None:
        trainer.resume(resume_from, say)
    return trainer
