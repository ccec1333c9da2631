"""Training on a static graph: whole, or as a pipeline of intervals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import World, reduce_gradients
from siafu.config import ResolvedConfig
from siafu.engine.infer import write_predictions
from siafu.engine.metrics import (
    Answers,
    best_threshold,
    metrics_of,
    node_answers,
    scores_of,
)
from siafu.engine.networks.network import Network
from siafu.engine.networks.pipelined import PipelinedNetwork, pipeline_report, run_bill
from siafu.engine.networks.recorded import Recording, can_record, recording_of
from siafu.engine.networks.simulated import of_cluster, simulated_cluster
from siafu.engine.quality import quality_of
from siafu.engine.run_facts import RunFacts
from siafu.engine.scores import training_loss, validation_loss
from siafu.engine.weights import save_network
from siafu.engine.workload import Evaluation, OnStep, no_step
from siafu.nn import GNN, Draws
from siafu.ops import CSR, DrawKey
from siafu.plan import Bill
from siafu.record import LOWER_IS_BETTER, shown_score
from siafu.shard import RowReader, Shard
from siafu.strategy import WidthBook

_MOST_NUMBERS = 1 << 26
"""In the rows of one layer, for a step to be recorded."""
_OF_GRADIENTS = 1 << 60
"""Draws that round gradients of weights, apart from those of layers and exchanges."""


class FullGraph:
    """Every epoch is one step over all labelled nodes of all ranks; base of the others."""

    task: str | None = None
    on_step: OnStep = staticmethod(no_step)
    told = ""
    """What was chosen for the run and why, in words."""
    purposes: tuple[str, ...] = (
        "column_backward",
        "column_forward",
        "control",
        "feature",
        "gradient",
        "halo_backward",
        "halo_forward",
        "halo_refetch",
        "host",
        "metric",
        "norm",
        "sample",
    )

    def __init__(
        self, config: ResolvedConfig, shard: Shard, network: Network, draws: Draws
    ) -> None:
        self.config, self.shard, self.network, self.draws = config, shard, network, draws
        self.metrics = self._metrics()
        self._recording: Recording | None = None
        self._epochs_here = 0
        self._most_ranks = shard.world.size

    def _metrics(self) -> tuple[str, ...]:
        """Return the scores that are told, that which counts first."""
        shard = self.shard
        return metrics_of(self.config.metric, shard.objective, several=shard.multi_label)

    @property
    def world(self) -> World:
        """The ranks of the run."""
        return self.shard.world

    @property
    def module(self) -> nn.Module:
        """The model itself, with the user's parameter names."""
        return self.network.module

    @property
    def book(self) -> WidthBook:
        """The widths at which rows travel while training."""
        return self.network.book

    @property
    def guessed_loss(self) -> float | None:
        """That of equal shares for all classes, where a node has one."""
        classes = self.shard.num_classes
        return math.log(classes) if classes > 1 and not self.shard.multi_label else None

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Take one step and return the loss over all ranks."""
        network = self.network
        network.module.train()
        self.draws.training, self.draws.epoch = True, epoch
        loss = self._replayed()
        if loss is None:
            optimiser.zero_grad(set_to_none=True)
            loss = training_loss(network.training_logits(), self.shard)
            loss.backward()
        weights, bits = list(network.module.parameters()), network.strategy.gradient_bits
        reduce_gradients(weights, self.world, self._rounding(), bits)
        optimiser.step()
        network.book.end_epoch(epoch)
        self.world.bad_rows.check()
        total = self.world.gather_numbers([float(loss.detach())], "metric")
        return math.fsum(row[0] for row in total)

    def _replayed(self) -> Tensor | None:
        """Set gradients from a recording and return the loss; None where there is none.

        It is made in the second epoch here. Where a step is large, the device takes longer than
        the host, and memory is short.
        """
        network, shard = self.network, self.shard
        module, strategy = network.module, network.strategy
        plain = strategy.unit == "graph" and not strategy.codes_rows and not strategy.offload
        plain &= self.world.size == 1  # nobody is waited for inside a recording
        # Sparse rows are picked in every step where some are pruned, which the host looks at.
        plain &= not (strategy.prune and isinstance(shard.x, CSR))
        if self.config.memory or not (plain and can_record(module, shard)):
            return None
        assert isinstance(module, GNN), "others are not recorded"
        self._epochs_here += 1
        spec = module.spec
        width = max(spec.hidden, spec.out_width, 0 if isinstance(shard.x, CSR) else spec.in_width)
        if self._epochs_here == 2 and shard.num_owned * width <= _MOST_NUMBERS:
            self._recording = recording_of(
                lambda: Recording(
                    module,
                    self.draws,
                    shard.world.device,
                    lambda: training_loss(network.training_logits(), shard),
                )
            )
        return None if self._recording is None else self._recording.replay()

    def _rounding(self) -> DrawKey | None:
        """Return the draws that round the gradients of weights, where rows are rounded too."""
        return None if self.network.strategy.wire == 32 else self.draws.key(_OF_GRADIENTS)

    def stands_still(self, epochs: int) -> bool:
        """Return True: an epoch ends with a step of all ranks."""
        return True

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the scores of the present weights, nothing dropped."""
        self._rest()
        logits = self.network.logit_rows()
        return self._scored(self._answers(logits), logits, self.shard)

    def _scored(self, answers: Answers, logits: RowReader, shard: Shard) -> Evaluation:
        """Return the scores of answers about the nodes in a shard's splits."""
        details = scores_of(answers, self.metrics)
        found = {split: scores[self.metrics[0]] for split, scores in details.items()}
        merit = self.merit_of(found)
        if self.config.keep == "loss":
            merit = -validation_loss(logits, shard)
        return Evaluation(
            scores=found,
            merit=merit,
            chooses=shard.mask_totals["val"] > 0,
            details=details if len(self.metrics) > 1 else {},
        )

    def evaluate_all(self) -> Evaluation | None:
        """Return None: epochs are scored by all nodes."""
        return None

    def _answers(self, logits: RowReader, shard: Shard | None = None) -> Answers:
        """Return what the model says, with the decision that is the best on validation if asked."""
        answers = node_answers(logits, shard or self.shard)
        if self.config.threshold != "f1":
            return answers
        chosen = replace(self.shard.objective, threshold=best_threshold(answers))
        return replace(answers, objective=chosen)

    @torch.no_grad()
    def _quality(self) -> dict[str, Any] | None:
        """Return tables of the answers, and decide from now on as they do."""
        if self.config.inference == "none":
            return None
        self._rest()
        answers = self._answers(self.network.logit_rows())
        self.shard = replace(self.shard, objective=answers.objective)
        return quality_of(answers)

    def _rest(self) -> None:
        self.network.module.eval()
        self.draws.training = False

    def merit_of(self, scores: dict[str, float]) -> float:
        """Return the validation score; a loss can't be told from scores."""
        if self.config.keep == "loss" or "val" not in scores:
            return -math.inf
        return -scores["val"] if self.metrics[0] in LOWER_IS_BETTER else scores["val"]

    def row_of(self, found: Evaluation) -> dict[str, Any]:
        """Return the scores by split."""
        row: dict[str, Any] = {"score": found.scores, "metric": self.metrics[0]}
        row |= {"error": found.errors} if found.errors else {}
        return row | ({"scores": found.details} if found.details else {})

    def note_of(self, row: dict[str, Any]) -> str:
        """Return the validation score in words."""
        if "score" not in row:
            return ""
        split = "val" if "val" in row["score"] else "train"
        told = f"{split} {shown_score(self.metrics[0], row['score'][split])}"
        error = row.get("error", {}).get(split)
        return told if error is None else f"{told} ± {shown_score(self.metrics[0], error)}"

    def fingerprint(self) -> str:
        """Return the hash of the graph."""
        return self.shard.fingerprint

    def state(self) -> dict[str, Any]:
        """Return on how many ranks rows may have been rounded or late; weights have the rest."""
        return {"most_ranks": self._most_ranks}

    def check_facts(self, facts: RunFacts) -> None:
        """Take all."""

    def restore(self, facts: RunFacts) -> None:
        """Remember the ranks that there were."""
        self._most_ranks = max(self._most_ranks, facts.most_ranks, facts.ranks)

    def dollars(self, seconds: float, epochs: int) -> float:
        """Return the total of the bill so far; 0 where there is none."""
        bill = self._bill(self._pipeline_report(), seconds, epochs)
        return 0.0 if bill is None else bill.dollars

    def calls(self) -> int:
        """Return how often the pool of all ranks was called so far."""
        return int(self._pipeline_report().get("requests", 0))

    def _bill(self, pipeline: dict[str, Any], seconds: float, epochs: int) -> Bill | None:
        """Return the bill: of the simulated cluster, where that is what is paid for."""
        told, simulated = of_cluster(pipeline, epochs)
        seconds = seconds if simulated is None else simulated
        ranks = self.world.size
        return run_bill(self.config, told, ranks=ranks, seconds=seconds, epochs=epochs)

    def report(self, seconds: float, epochs: int) -> dict[str, Any]:
        """Return the strategy as it was run, and its bill where prices were asked for."""
        strategy, ranks = self.network.strategy, self.world.size
        pipeline = self._pipeline_report()
        bill = self._bill(pipeline, seconds, epochs)
        rows = {} if bill is None else bill.rows()
        if cluster := pipeline.get("cluster"):
            rows["  time"] = f"of a simulated cluster: {cluster['epoch_seconds']:.4g} s per epoch"
        return {
            "metric": self.metrics[0],
            "quality": self._quality(),
            "choices": strategy.choices(ranks),
            "exactness": strategy.exactness_on(self._most_ranks),
            "sampling": {},
            "pipeline": pipeline,
            "bill": None if bill is None else {**bill.as_dict(), "rows": rows},
            "data": self.shard.name,
        }

    def _pipeline_report(self) -> dict[str, Any]:
        return {}

    def save_weights(self, path: Path) -> None:
        """Write the weights and what inference needs to know; rank 0 calls this alone."""
        save_network(self.network, self.shard, path)

    def write_predictions(self, target: Path) -> None:
        """Write a row for each owned node."""
        write_predictions(self.network, self.shard, self.draws, target)

    def abandon(self) -> None:
        """End nothing: this rank has no thread or process of its own."""

    def close(self) -> None:
        """Give up nothing."""


class IntervalPipeline(FullGraph):
    """Intervals go through epochs in a pipeline; their tensor work is done by a pool."""

    network: PipelinedNetwork

    def __init__(
        self, config: ResolvedConfig, shard: Shard, network: PipelinedNetwork, draws: Draws
    ) -> None:
        super().__init__(config, shard, network, draws)
        self._earlier: dict[str, Any] = {}
        """What the pipeline of a run that was resumed had come to."""

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Return the loss of an epoch, while intervals may be ahead of it."""
        self.network.module.train()
        return self.network.run_epoch(optimiser, epoch, self.horizon(epoch))

    def horizon(self, epoch: int) -> int:
        """Return the next epoch after which all must stand still, to be scored or saved."""
        every = [self.config.eval_every if self.config.inference == "full" else None]
        every.append(self.config.checkpoint_every)
        ends = [-(-epoch // count) * count for count in every if count]
        return min([max(epoch, self.config.epochs), *ends])

    def stands_still(self, epochs: int) -> bool:
        """Return whether no interval is ahead."""
        return self.horizon(epochs) == epochs

    def evaluate(self) -> Evaluation:
        """Return the scores; where they are as good as asked, nothing lags from now on."""
        found = super().evaluate()
        self._note_scores(found.scores)
        return found

    def _note_scores(self, scores: dict[str, float]) -> None:
        wanted, lower = self.config.exact_from, self.metrics[0] in LOWER_IS_BETTER
        if wanted is not None and (scores["val"] <= wanted if lower else scores["val"] >= wanted):
            self.network.stop_lagging()

    def state(self) -> dict[str, Any]:
        """Return what the pipeline has come to."""
        return {"pipeline": pipeline_report(self.network, self.world, self._earlier)}

    def restore(self, facts: RunFacts) -> None:
        """Go on counting, and lag no more where that had been reached."""
        self._earlier = facts.pipeline
        if facts.best_scores:
            self._note_scores(facts.best_scores)

    def _pipeline_report(self) -> dict[str, Any]:
        told = pipeline_report(self.network, self.world, self._earlier)
        cluster = simulated_cluster(self.network, self.world, self.config)
        return told | ({"cluster": cluster} if cluster else {})

    def abandon(self) -> None:
        """End the pool."""
        self.network.abandon()

    def close(self) -> None:
        """End the pool and the mail between ranks."""
        self.network.close()
