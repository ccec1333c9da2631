"""One trainer for every kind of run: epochs, scores, the best weights, checkpoints, the result.

What is trained is a `Workload`: the whole graph, minibatches, a pipeline, a dynamic graph. It knows
how an epoch is run and what it is scored by; nothing else differs between runs.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from siafu.checkpoint import (
    Checkpoint,
    Share,
    check_optimiser,
    load_checkpoint,
    newest_checkpoint,
    restore_optimiser,
    save_checkpoint,
)
from siafu.config import ResolvedConfig
from siafu.engine.device_memory import OVER_TIME, held_by, naming_what_is_held
from siafu.engine.optimiser import at_rate_of, make_optimiser
from siafu.engine.progress import (
    PhaseSeconds,
    Progress,
    RunResult,
    ScoringCost,
    over_budget,
    reserved_mb,
    traffic_and_peaks,
    traffic_matrix,
)
from siafu.engine.run_facts import RunFacts, read_run_facts
from siafu.engine.widths import kept_counts, read_share, save_widths, shares_of, width_counts
from siafu.engine.workload import Details, Evaluation, Workload
from siafu.errors import PlanError, SiafuError, Stopped
from siafu.graph import writing
from siafu.record import RunFolder, Watch

OnEpoch = Callable[[dict[str, Any]], bool | None]
"""Called on rank 0 with the row of an epoch; True ends the training when it can."""
IsTold = Callable[[], bool]
"""Whether this rank was told to end."""


_MOST_AHEAD = 1000
"""Epochs within which a pipeline stands still."""


class Trainer:
    """One rank's side of a run: the workload, its optimiser and the progress made."""

    def __init__(self, config: ResolvedConfig, workload: Workload) -> None:
        self.config, self.workload, self.world = config, workload, workload.world
        self.optimiser = make_optimiser(config, workload.module.parameters())
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self.best_details: Details = {}
        self.scoring = ScoringCost()
        self.phases = PhaseSeconds()
        self._spent, self._ahead = {"max_dollars": 0.0, "max_calls": 0.0}, 0
        """Dollars at the last stop, and epochs from there to the next."""
        self.has_begun = False
        """Whether this process has run an epoch."""
        self.rank_seconds: list[float] = []
        """That each rank worked in the last epoch, without its waits for others."""
        self._worked = 0.0
        self.clock = time.monotonic
        self._saved_at = self._began_at = self.clock()
        self._steps_seconds = 0.0
        """Of the next epoch, before it was left."""
        self._save_amid: Callable[[], None] = lambda: None
        """Saves in the middle of an epoch, if that is due."""
        self.watch = Watch()
        """Follows what is done now, and how long that takes."""

    def step(self) -> float:
        """Run the next epoch without counting it, and return its loss over all ranks."""
        self.workload.on_step = self._end_step
        epoch = self.progress.epochs + 1
        with at_rate_of(self.optimiser, self.config, epoch), self.naming_what_is_held():
            return self.workload.run_epoch(self.optimiser, epoch)

    def _end_step(self, done: int, total: int) -> None:
        """Follow a step of the epoch. Rank 0 saves alone: all ranks have the same weights."""
        self.watch.step(done, total)
        if done < total and self.world.rank == 0 and getattr(self.workload, "may_be_left", False):
            self._save_amid()

    def naming_what_is_held(self) -> AbstractContextManager[None]:
        """Have an error of a device without memory, inside, name what lies there by kind."""
        unit = OVER_TIME if hasattr(self.workload, "runner") else self.config.chosen.unit
        held = partial(held_by, self.workload, self.optimiser)
        return naming_what_is_held(self.world.device, unit, held)

    def run_epoch(self) -> dict[str, Any]:
        """Train and, when due, evaluate one epoch; return its row of metrics."""
        config, progress, epoch = self.config, self.progress, self.progress.epochs + 1
        self.world.step = f"epoch {epoch}"
        started, waited = time.perf_counter(), self.world.meter.seconds_waited
        self._began_at = self.clock()
        phases = ("computing", "waiting") if self.has_begun else ("first epoch", "first epoch")
        with self.watch.training(epoch), self.phases.counted(self.world, *phases):
            loss = self.step()
        seconds, self.has_begun = time.perf_counter() - started + self._steps_seconds, True
        self._steps_seconds = 0.0
        if not math.isfinite(loss):
            raise _diverged(epoch, loss, config.lr)
        progress.epochs = epoch
        progress.losses.append(loss)
        progress.seconds.append(seconds)
        row: dict[str, Any] = {"epoch": epoch, "loss": loss, "seconds": seconds}
        row["waiting"] = self.world.meter.seconds_waited - waited
        self._worked = max(0.0, time.perf_counter() - started - row["waiting"])
        is_last = epoch == config.epochs or progress.is_stale(config.patience)
        if config.is_scored and (is_last or epoch % config.eval_every == 0):
            row |= self.workload.row_of(self.score())
        row["bytes_sent"] = dict(self.world.meter.bytes_sent)
        return row

    def score(self) -> Evaluation:
        """Evaluate the present weights, and keep them if they are the best yet."""
        with self.watch.evaluating(), self._scoring():
            found = self.workload.evaluate()
        progress = self.progress
        # Not a number is worse than any: its epoch never stays the best.
        is_better = found.merit > progress.best_merit or math.isnan(progress.best_merit)
        if is_better or not (found.chooses and progress.best_scores):
            progress.best_epoch, progress.best_scores = progress.epochs, found.scores
            progress.best_merit, self.best_details = found.merit, found.details
            state = self.workload.module.state_dict()
            self.best = {name: tensor.detach().clone() for name, tensor in state.items()}
        return found

    @contextmanager
    def _scoring(self, passes: int = 1) -> Iterator[None]:
        """Count what happens inside as scoring."""
        counted = self.phases.counted(self.world, "scoring", "waiting while scoring")
        with self.scoring.counted(self.world, passes), counted, self.naming_what_is_held():
            yield

    def train(
        self, folder: RunFolder, on_epoch: OnEpoch, is_told: IsTold = lambda: False
    ) -> RunResult:
        """Run the remaining epochs and return the result; rank 0 writes metrics and checkpoints.

        Raises `Stopped` after the epoch in which a rank was told to end, which is saved.
        """
        enough, orders = False, [is_told]

        def save_amid() -> None:
            ends = bool(orders) and orders[0]()
            if self.config.checkpoint_every and (ends or self._is_late()):
                self._save(folder)
                orders[:] = [] if ends else orders  # once: the epoch may still end in time

        self._save_amid = save_amid
        if self.progress.epochs:
            self._check_budget()
        while not self.progress.is_over(self.config):
            row = self.run_epoch()
            if self.world.rank == 0:
                with writing(folder.metrics):
                    folder.append_metrics(row)
                enough = bool(on_epoch(row)) or enough
            self._save_or_stop(folder, is_told, enough)
        if self.config.is_scored:
            if not self.progress.best_scores:  # resumed at its last epoch, not evaluated before
                self.score()
            self.workload.module.load_state_dict(self.best)
            self._score_kept()
        return self.result(folder)

    def _score_kept(self) -> None:
        """Have the scores of the kept weights be those of the pass that predicts."""
        with self.watch.evaluating(), self._scoring(passes=0):
            found = self.workload.evaluate_all()
        if found is not None:
            self.scoring.passes += 1
            self.progress.best_scores, self.best_details = found.scores, found.details

    def _save_or_stop(self, folder: RunFolder, is_told: IsTold, enough: bool) -> None:
        """Save a checkpoint if one is due, or if a rank was told to end; then raise `Stopped`."""
        epochs, every, world = self.progress.epochs, self.config.checkpoint_every, self.world
        may_stop = self.workload.stands_still(epochs) and not self.progress.is_over(self.config)
        mine = [float(is_told()), float(enough), float(self._is_late()), self._worked]
        asked = world.gather_numbers(mine) if may_stop else []
        self.rank_seconds = [row[3] for row in asked]
        ends, is_late = any(row[0] for row in asked), any(row[2] for row in asked[:1])
        self.progress.is_enough = any(row[1] for row in asked)
        if may_stop:
            self._check_budget()
        # With one at its end a run can be given more epochs, and none is lost.
        is_over = self.progress.is_over(self.config) and self.workload.stands_still(epochs)
        ends_early = ends or is_late or bool(self.progress.budget_spent)
        if every and (ends_early or is_over or epochs % every == 0):
            self._save(folder)
        if ends:
            world.gather_numbers([0.0])  # a rank that ended before rank 0 has saved would end it
            raise Stopped(epochs)

    def _save(self, folder: RunFolder) -> None:
        """Save a checkpoint: at the end of an epoch all ranks call this, in its middle rank 0."""
        with self.watch.saving():
            save_widths(self.workload.book, self.world, folder.checkpoints, self.progress.epochs)
            saved = self.checkpoint()
            if self.world.rank == 0:
                save_checkpoint(saved, folder.checkpoints, self.config.keep_checkpoints)
        self._saved_at = self.clock()

    def _check_budget(self) -> None:
        """Note where the epochs until the next stop would take more than the run may."""
        limits = {name: getattr(self.config, name) for name in self._spent}
        if all(most is None for most in limits.values()):
            return
        progress, workload = self.progress, self.workload
        stops = (n for n in range(1, _MOST_AHEAD) if workload.stands_still(progress.epochs + n))
        ahead = min(next(stops, _MOST_AHEAD), self.config.epochs - progress.epochs)
        now = {
            "max_dollars": workload.dollars(math.fsum(progress.seconds), progress.epochs),
            "max_calls": float(workload.calls()),
        }
        # Rank 0's clock decides, since ranks' seconds differ.
        now = dict(zip(now, self.world.gather_numbers(list(now.values()))[0], strict=True))
        for name, most in limits.items():
            newest = (now[name] - self._spent[name]) / self._ahead if self._ahead else 0.0
            then = now[name] + ahead * max(now[name] / progress.epochs, newest)
            if most is not None and then > most:
                progress.budget_spent = over_budget(name, ahead, now[name], then, most)
        self._spent, self._ahead = now, ahead

    def _is_late(self) -> bool:
        """Return whether it is time to save; rank 0's clock counts."""
        minutes = self.config.checkpoint_minutes
        return minutes > 0 and self.clock() - self._saved_at >= 60 * minutes

    def result(self, folder: RunFolder) -> RunResult:
        """Return what the run came to; every rank calls this together."""
        world, progress, config = self.world, self.progress, self.config
        self.workload.book.rest()
        with self._scoring(passes=0):
            told = self.workload.report(math.fsum(progress.seconds), progress.epochs)
        evaluation = told.pop("evaluation", {})
        told = {"strategy": config.strategy, **told, "scores": self.best_details or None}
        bytes_sent, peaks = traffic_and_peaks(world, self.workload.purposes)
        return RunResult(
            score=progress.best_scores,
            task=self.workload.task,
            best_epoch=progress.best_epoch,
            losses=progress.losses,
            epochs=progress.epochs,
            stopped_by_patience=progress.patience_spent(config),
            ended=progress.reason(config),
            seconds_per_epoch=statistics.median(progress.seconds),
            bytes_sent=bytes_sent,
            evaluation=self.scoring.report(world) | evaluation,
            peak_mb=peaks,
            reserved_mb=reserved_mb(world),
            ranks=world.size,
            backend=world.backend,
            rank_seconds=self.phases.of_ranks(world),
            traffic=traffic_matrix(world),
            widths=width_counts(self.workload.book, world),
            kept=kept_counts(self.workload.book, world),
            model=config.model,
            run=str(folder.path),
            **told,
        )

    def checkpoint(self) -> Checkpoint:
        """Return the state of the run; every rank calls this together."""
        progress, workload = self.progress, self.workload
        merit = progress.best_merit
        facts = {
            "epochs": progress.epochs,
            "best_epoch": progress.best_epoch,
            "best_scores": progress.best_scores,
            "best_merit": merit if math.isfinite(merit) else None,
            "losses": progress.losses,
            "seconds": progress.seconds,
            "fingerprint": workload.fingerprint(),
            "ranks": self.world.size,
            "partition": self.config.partition,
            **({"best_details": self.best_details} if self.best_details else {}),
            **workload.state(),
        }
        if "steps" in facts:
            spent = self.clock() - self._began_at + self._steps_seconds
            facts["steps"] = {**facts["steps"], "seconds": spent}
        optimiser = self.optimiser.state_dict()
        groups = [{**group, "lr": self.config.lr} for group in optimiser["param_groups"]]
        return Checkpoint(
            model=workload.module.state_dict(),
            best=self.best,
            optimiser={**optimiser, "param_groups": groups},
            shares=shares_of(workload.book, self.world),
            facts=facts,
        )

    def resume(self, checkpoints: Path, say: Callable[[str], None] = lambda line: None) -> None:
        """Take up a run where its newest checkpoint left it; `say` is told which do not fit."""
        passed: dict[str, str] = {}
        while True:
            # Rank 0's choice: disks of other machines may not show its newest checkpoint yet.
            mine = ""
            if self.world.rank == 0:
                mine = newest_checkpoint(checkpoints, say, self._check_fits, passed).name
            chosen = checkpoints / self.world.share_text(mine)
            checkpoint = load_checkpoint(chosen, self.workload.module)
            share, fault = self._share_of(checkpoint, chosen)
            if not fault:
                self.restore(checkpoint, share)
                return
            passed[chosen.name] = fault
            say(f"Passed over a damaged checkpoint, {chosen.name}: {fault}")

    def _share_of(self, checkpoint: Checkpoint, path: Path) -> tuple[Share, str]:
        """Return what this rank added to a checkpoint, and what is wrong with any rank's.

        On another cut other rows travel: widths are found anew, and nothing is kept yet.
        """
        if not checkpoint.shares or not self._is_cut_alike(read_run_facts(checkpoint)):
            return {}, ""
        share, fault = read_share(path, self.world.rank)
        return share, next(filter(None, self.world.gather_texts(fault)), "")

    def _check_fits(self, path: Path) -> None:
        """Raise unless a checkpoint is of this run."""
        checkpoint = load_checkpoint(path, self.workload.module)
        facts = read_run_facts(checkpoint)
        _check_same_run(facts, self.workload)
        check_optimiser(self.optimiser, checkpoint.optimiser)
        self.workload.check_facts(facts)

    def restore(self, checkpoint: Checkpoint, share: Share) -> None:
        """Take up a run where the checkpoint, and what this rank added to it, left it."""
        facts, workload = read_run_facts(checkpoint), self.workload
        _check_same_run(facts, workload)
        workload.module.load_state_dict(checkpoint.model)
        restore_optimiser(self.optimiser, checkpoint.optimiser)
        self.best, self.best_details = checkpoint.best, facts.best_details
        names = ("epochs", "best_epoch", "best_scores", "losses", "seconds")
        self.progress = Progress(**{name: getattr(facts, name) for name in names})
        if facts.best_merit is not None:
            self.progress.best_merit = facts.best_merit
        elif facts.best_scores:
            self.progress.best_merit = workload.merit_of(facts.best_scores)
        if share:
            workload.book.restore(share)
        self._steps_seconds = 0.0 if facts.steps is None else facts.steps.seconds
        workload.restore(facts)

    def _is_cut_alike(self, facts: RunFacts) -> bool:
        """Return whether ranks have the rows that they had when the checkpoint was written."""
        now = self.world.size, self.config.partition
        return (facts.ranks, facts.partition or now[1]) == now

    def abandon(self) -> None:
        """End what works for this rank alone, after a failure."""
        self.workload.abandon()

    def close(self) -> None:
        """Give up what is shared with other ranks."""
        self.workload.close()


def _check_same_run(facts: RunFacts, workload: Workload) -> None:
    mine = workload.fingerprint()
    if facts.fingerprint != mine:
        raise PlanError(
            "The checkpoint is of a run on another graph.",
            seen=f"{facts.fingerprint[:12]}, the data is {mine[:12]}",
            fix="resume with the data the run was started on",
        )


def _diverged(epoch: int, loss: float, lr: float | None) -> SiafuError:
    rate = "" if lr is None else f" (now {lr:g})"
    return PlanError(
        "The loss is not finite: the training can't go on.",
        seen=f"loss {loss} in epoch {epoch}",
        fix=f"lower --lr{rate}, add --clip-norm 1 or --warmup 10, or look for extreme values and "
        "unscaled columns among the features",
    )
