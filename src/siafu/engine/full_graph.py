"""Full-graph training: every epoch is one step over all labelled vertices of all ranks."""

import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siafu.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint, restore_optimiser
from siafu.comm import World, reduce_gradients
from siafu.config import RunConfig
from siafu.engine.adam import Adam
from siafu.engine.evaluations import Evaluations, synchronise
from siafu.engine.graph_checks import check_own_settings, check_residual
from siafu.engine.link_test import LinkTest
from siafu.engine.links import num_eval_negatives
from siafu.engine.network import (
    BuiltInNetwork,
    Network,
    OwnNetwork,
    build_network,
    logit_rows,
)
from siafu.engine.pipeline_report import pipeline_report, run_bill
from siafu.engine.pipelined import PipelinedNetwork
from siafu.engine.run_facts import read_run_facts
from siafu.engine.sampled import SampledNetwork
from siafu.engine.score import scores, training_loss, validation_loss
from siafu.engine.stopping import IsTold, save_or_stop
from siafu.engine.widths import gather_widths, histogram, restore_widths
from siafu.errors import PlanError, SiafuError
from siafu.graph import writing
from siafu.minibatch import HeldOut
from siafu.nn import Draws
from siafu.ops import DrawKey
from siafu.record import RunFolder
from siafu.shard import Shard, require

_OF_GRADIENTS = 1 << 60
"""Draws that round gradients of weights, apart from those of layers and exchanges."""
OnEpoch = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Progress:
    """How far a run is, and its best so far; all of it goes into a checkpoint."""

    epochs: int = 0
    best_epoch: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    best_merit: float = -math.inf
    """What the best epoch was chosen by, the higher the better."""
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def is_stale(self, patience: int) -> bool:
        """True when nothing better has been found for `patience` epochs."""
        known = patience > 0 and bool(self.best_scores)
        return known and self.epochs - self.best_epoch >= patience

    def patience_spent(self, config: RunConfig) -> int:
        """Return the epochs without gain that ended a run before its last; 0 where none did."""
        ended = self.epochs < config.epochs and self.is_stale(config.patience)
        return self.epochs - self.best_epoch if ended else 0

    def is_over(self, config: RunConfig) -> bool:
        """True when no epoch is left to train."""
        return self.epochs >= config.epochs or self.is_stale(config.patience)


@dataclass(slots=True)
class Training:
    """One rank's side of a run: the network, its optimiser and the progress made."""

    config: RunConfig
    shard: Shard
    network: Network
    optimiser: torch.optim.Optimizer
    draws: Draws
    progress: Progress
    best: dict[str, Tensor]
    links: LinkTest | None = None
    """Held-out edges, where those are predicted."""
    earlier: dict[str, Any] = field(default_factory=dict)
    """What the pipeline of a run that was resumed had come to."""
    evaluations: Evaluations = field(default_factory=Evaluations)

    @property
    def world(self) -> World:
        """The ranks of the run."""
        return self.shard.world

    def step(self) -> float:
        """Take the steps of one epoch and return the loss over all ranks."""
        if isinstance(self.network, SampledNetwork):
            epoch = self.progress.epochs + 1
            goes_on = epoch < self.config.epochs
            return self.network.run_epoch(self.optimiser, epoch, goes_on=goes_on)
        if isinstance(self.network, PipelinedNetwork):
            self.network.module.train()
            epoch = self.progress.epochs + 1
            return self.network.run_epoch(self.optimiser, epoch, self._horizon(epoch))
        assert isinstance(self.network, BuiltInNetwork | OwnNetwork)
        self.network.module.train()
        self.draws.training, self.draws.epoch = True, self.progress.epochs + 1
        self.optimiser.zero_grad(set_to_none=True)
        loss = training_loss(self.network.training_logits(), self.shard)
        loss.backward()
        reduce_gradients(list(self.network.module.parameters()), self.world, self._rounding())
        self.optimiser.step()
        self.network.book.end_epoch(self.draws.epoch)
        total = self.world.gather_numbers([float(loss.detach())], "metric")
        return math.fsum(row[0] for row in total)

    def _rounding(self) -> DrawKey | None:
        """Return the draws that round the gradients of weights, where rows are rounded too."""
        return None if self.network.strategy.wire == 32 else self.draws.key(_OF_GRADIENTS)

    def _horizon(self, epoch: int) -> int:
        """Return the next epoch after which all must stand still, to be scored or saved."""
        every = [self.config.eval_every if self.config.inference == "full" else None]
        every.append(self.config.checkpoint_every)
        ends = [-(-epoch // count) * count for count in every if count]
        return min([max(epoch, self.config.epochs), *ends])

    def stands_still(self) -> bool:
        """Return whether all is done up to this epoch; intervals of a pipeline may be ahead."""
        epochs = self.progress.epochs
        return not isinstance(self.network, PipelinedNetwork) or self._horizon(epochs) == epochs

    @torch.no_grad()
    def evaluate(self) -> tuple[dict[str, float], float]:
        """Return the scores of the present weights, nothing dropped, and their merit."""
        self.network.module.eval()
        self.draws.training = False
        logits = logit_rows(self.network)
        if self.links is not None:
            found = self.links.scores(logits)
            return found, found["val"]
        found = scores(logits, self.shard, self.config.metric)
        if self.config.keep == "loss":
            return found, -validation_loss(logits, self.shard)
        return found, found["val"]

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
        wanted = self.config.inference == "full"
        assert self.config.eval_every is not None, "settings are resolved"
        if wanted and (last or epoch % self.config.eval_every == 0):
            with self.evaluations.counted(self.world):
                row["accuracy"], merit = self.evaluate()
            self.keep_best(row["accuracy"], merit)
            if isinstance(self.network, PipelinedNetwork):
                self.network.note_score(row["accuracy"]["val"])
        row["bytes_sent"] = dict(self.world.meter.bytes_sent)
        return row

    def keep_best(self, now: dict[str, float], merit: float) -> None:
        """Keep the present weights, whose scores are `now`, if their merit is the highest yet."""
        # Without validation vertices or edges nothing can be chosen by: the last weights count.
        totals = self.shard.mask_totals if self.links is None else self.links.totals
        choose = totals["val"] > 0 and self.progress.best_scores
        if choose and merit <= self.progress.best_merit:
            return
        self.progress.best_epoch, self.progress.best_scores = self.progress.epochs, now
        self.progress.best_merit = merit
        state = self.network.module.state_dict()
        self.best = {name: tensor.detach().clone() for name, tensor in state.items()}

    def abandon(self) -> None:
        """End what works for this rank alone, after a failure: other ranks may not be reached."""
        if isinstance(self.network, SampledNetwork | PipelinedNetwork):
            self.network.abandon()

    def close(self) -> None:
        """Give up what the network shares with other ranks."""
        if isinstance(self.network, SampledNetwork | PipelinedNetwork):
            self.network.close()

    def checkpoint(self) -> Checkpoint:
        """Return the state of the run; every rank calls this together."""
        facts = {
            "epochs": self.progress.epochs,
            "best_epoch": self.progress.best_epoch,
            "best_scores": self.progress.best_scores,
            "best_merit": self.progress.best_merit if self.progress.best_scores else None,
            "losses": self.progress.losses,
            "seconds": self.progress.seconds,
            "fingerprint": self.shard.fingerprint,
            "ranks": self.world.size,
            "pipeline": pipeline_report(self.network, self.world, self.earlier),
        }
        model, optimiser = self.network.module.state_dict(), self.optimiser.state_dict()
        wire = gather_widths(self.network.book, self.world)
        return Checkpoint(model=model, best=self.best, optimiser=optimiser, wire=wire, facts=facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up a run where the checkpoint left it."""
        facts = read_run_facts(checkpoint)
        if facts.fingerprint != self.shard.fingerprint:
            raise PlanError(
                "The checkpoint is of a run on another graph.",
                seen=f"{facts.fingerprint[:12]}, the data is {self.shard.fingerprint[:12]}",
                fix="resume with the data the run was started on",
            )
        self.network.module.load_state_dict(checkpoint.model)
        restore_optimiser(self.optimiser, checkpoint.optimiser)
        self.best = checkpoint.best
        names = ("epochs", "best_epoch", "best_scores", "losses", "seconds")
        self.progress = Progress(**{name: getattr(facts, name) for name in names})
        if facts.best_merit is not None:
            self.progress.best_merit = facts.best_merit
        restore_widths(self.network.book, checkpoint.wire, self.world)
        self.earlier = facts.pipeline
        if isinstance(self.network, PipelinedNetwork) and self.progress.best_scores:
            self.network.note_score(self.progress.best_scores["val"])


def begin(
    config: RunConfig,
    shard: Shard,
    resume_from: Path | None = None,
    held_out: HeldOut | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Training:
    """Return a training ready to run, fresh or from the newest checkpoint of a run folder.

    With `task` link, `held_out` has this rank's share of the edges to evaluate on. `say` is told
    what is planned.
    """
    require(shard, *(("x",) if config.task == "link" else ("x", "y", "train")))
    if resume_from is None:
        check_residual(config, shard)
        check_own_settings(config)
    draws = Draws(seed=config.seed)
    network = build_network(config, shard, draws, say=say)
    assert config.lr is not None
    assert config.weight_decay is not None
    optimiser = Adam(network.module.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    training = Training(config, shard, network, optimiser, draws, Progress(), {})
    if held_out is not None:
        assert isinstance(network, SampledNetwork)
        training.links = LinkTest(held_out, network.feed, num_eval_negatives(config))
    if resume_from is not None:
        # Rank 0's choice: disks of other machines may not show its newest checkpoint yet.
        mine = newest_checkpoint(resume_from).name if shard.world.rank == 0 else ""
        chosen = resume_from / shard.world.share_text(mine)
        training.restore(load_checkpoint(chosen, network.module))
    return training


def train(
    training: Training, folder: RunFolder, on_epoch: OnEpoch, is_told: IsTold = lambda: False
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
        may_stop = training.stands_still() and not progress.is_over(config)
        save_or_stop(training, folder, progress.epochs, may_stop=may_stop, is_told=is_told)
    if config.inference == "full":
        if not progress.best_scores:  # resumed at its last epoch, which was not evaluated before
            with training.evaluations.counted(training.world):
                found = training.evaluate()
            training.keep_best(*found)
        training.network.module.load_state_dict(training.best)
    return summary(training, folder)


def summary(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Return what a run reports: scores, losses, time, traffic and memory. Every rank calls it."""
    world, progress = training.world, training.progress
    purposes = sorted(
        {
            "halo_forward",
            "halo_refetch",
            "halo_backward",
            "gradient",
            "sample",
            "feature",
            "metric",
            "norm",
            "control",
        }
    )
    sent = [float(world.meter.bytes_sent.get(purpose, 0)) for purpose in purposes]
    table = world.gather_numbers([*sent, peak_bytes(world) / 2**20])
    by_purpose = [int(sum(column)) for column in list(zip(*table, strict=True))[:-1]]
    strategy = training.network.strategy
    report = pipeline_report(training.network, world, training.earlier)
    seconds = math.fsum(progress.seconds)
    bill = run_bill(
        training.config, report, ranks=world.size, seconds=seconds, epochs=progress.epochs
    )
    return {
        "accuracy": progress.best_scores,
        "metric": _metric(training),
        "best_epoch": progress.best_epoch,
        "losses": progress.losses,
        "epochs": progress.epochs,
        "stopped_by_patience": progress.patience_spent(training.config),
        "seconds_per_epoch": statistics.median(progress.seconds),
        "bytes_sent": dict(zip(purposes, by_purpose, strict=True)),
        "evaluation": training.evaluations.report(world),
        "peak_mb": [round(row[-1], 1) for row in table],
        "ranks": world.size,
        "strategy": training.config.strategy,
        "choices": strategy.choices(world.size),
        "exactness": "sampled" if strategy.unit == "macrobatch" else strategy.exactness,
        "widths": histogram(training.network.book, world),
        "sampling": _sampling(training),
        "pipeline": report,
        "bill": None if bill is None else {**bill.as_dict(), "rows": bill.rows()},
        "model": training.config.model,
        "data": training.shard.name,
        "run": str(folder.path),
    }


def _metric(training: Training) -> str:
    if training.links is not None:
        return "mrr"
    return "micro-f1" if training.shard.multi_label else training.config.metric


def _sampling(training: Training) -> dict[str, Any]:
    """Return how neighbours were drawn and what the caches did; nothing of full-graph training."""
    if not isinstance(training.network, SampledNetwork):
        return {}
    feed = training.network.feed
    sampling, hot = feed.relay.sampling, feed.sampler.hot
    told = {
        "fanout": list(sampling.fanouts),
        "replace": sampling.replace,
        "weighted": sampling.weighted,
        "batch_size": training.config.batch_size,
        "steps": feed.sampler.schedule.num_steps,
        "on_disk": training.shard.is_mapped,
        "feature_bits": feed.needs.feature_bits,
    }
    if feed.needs.feature_bits != 32:
        told["rounding_error"] = feed.rounding_error
    if hot is not None:
        told["hot_hits"] = hot.hits / max(1, hot.hits + hot.misses)
    return told


def peak_bytes(world: World) -> int:
    """Return this rank's peak memory: the device's where it trains on one, else resident."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device)
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: its maximum is inherited from the process that started this one.
        lines = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(next(lines).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def diverged(epoch: int, loss: float) -> SiafuError:
    """Return the error for a loss that is infinite or not a number."""
    return PlanError(
        "The loss is no longer a number.",
        seen=f"loss {loss} in epoch {epoch}",
        fix="lower --lr, or look for extreme feature values",
    )
