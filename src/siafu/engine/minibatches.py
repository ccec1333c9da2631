"""Training on a static graph in sampled minibatches."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu.config import ResolvedConfig
from siafu.engine.metrics import ROWS_AT_ONCE, node_answers, scores_of
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.networks.step_state import StepsTaken
from siafu.engine.run_facts import RunFacts
from siafu.engine.scoring import (
    Met,
    addresses_of,
    error_bars,
    rows_asked,
    scored_shard,
    settle_scoring,
)
from siafu.engine.static import FullGraph
from siafu.engine.workload import Evaluation
from siafu.errors import PlanError
from siafu.nn import Draws
from siafu.shard import HeldRows, Shard


class Minibatches(FullGraph):
    """An epoch is a step for each minibatch, of which every rank has one."""

    network: SampledNetwork

    def __init__(
        self, config: ResolvedConfig, shard: Shard, network: SampledNetwork, draws: Draws
    ) -> None:
        super().__init__(config, shard, network, draws)
        self._drawn: Shard | None = None
        self.scoring = settle_scoring(config, network, shard, self._asked)
        self.told = self.scoring.told
        self.config = config.model_copy(update={"eval_every": self.scoring.every})
        self._met: Met | None = None
        if self.scoring.kind == "train":
            self._met = Met(max(1, ROWS_AT_ONCE // network.feed.sampler.schedule.num_steps), [], [])
            network.on_answers = self._met.note

    def _asked(self, drawn: bool) -> Tensor:
        """Return the addresses of the nodes to be scored, or of a sample of them."""
        return addresses_of(self._drawn_shard() if drawn else self.shard)

    def _drawn_shard(self) -> Shard:
        """Return the shard with fewer nodes in its splits, by which a sample is scored."""
        self._drawn = self._drawn or scored_shard(self.shard, self.config.seed)
        return self._drawn

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the scores of the present weights, in the way that was settled."""
        kind = self.scoring.kind
        if kind == "exact":
            return self._evaluate_exactly()
        if self._met is not None:
            return self._evaluate_met(self._met)
        self._rest()
        shard = self.shard if kind == "split" else self._drawn_shard()
        logits = rows_asked(self.network, self.scoring, shard, self.config)
        answers = self._answers(logits, shard)
        found = self._scored(answers, logits, shard)
        if kind == "split":
            return found
        errors = error_bars(answers, shard, self.config.seed, self.metrics[0])
        return replace(found, errors=errors)

    def _evaluate_exactly(self) -> Evaluation:
        return super().evaluate()

    def _evaluate_met(self, met: Met) -> Evaluation:
        """Return the scores of training nodes as minibatches met them; they choose nothing."""
        answers = met.answers(node_answers(HeldRows(torch.empty(0)), self.shard))
        details = scores_of(answers, self.metrics)
        found = {split: scores[self.metrics[0]] for split, scores in details.items()}
        more = details if len(self.metrics) > 1 else {}
        return Evaluation(scores=found, merit=-math.inf, chooses=False, details=more)

    @torch.no_grad()
    def evaluate_all(self) -> Evaluation | None:
        """Return scores by the pass that predicts all nodes, where epochs were scored otherwise."""
        if self.scoring.kind == "exact" or self.config.inference == "none":
            return None
        return self._evaluate_exactly()

    @property
    def may_be_left(self) -> bool:
        """Whether an epoch can be gone on with: not where its answers so far are its score."""
        return self._met is None

    def state(self) -> dict[str, Any]:
        """Return what the steps of an epoch have come to that is not done."""
        taken = self.network.taken
        told = self._dealt() | {"losses": taken.told(), "seeds": taken.seeds}
        return {"steps": told} if len(taken) else {}

    def _dealt(self) -> dict[str, Any]:
        return {"dealt": self.network.feed.sampler.schedule.dealing(self.config.partition)}

    def check_facts(self, facts: RunFacts) -> None:
        """Raise where steps were taken of an epoch that is dealt otherwise here."""
        steps, schedule = facts.steps, self.network.feed.sampler.schedule
        if steps is None:
            return
        mine = self._dealt()["dealt"]
        if steps.dealt != mine or len(steps.losses) >= schedule.num_steps:
            raise PlanError(
                "It is of the middle of an epoch that is dealt otherwise here.",
                seen=f"step {len(steps.losses)} of {steps.dealt}; here {mine}",
                fix="resume on as many ranks as before, or remove it (in checkpoints/ of the run)",
            )

    def restore(self, facts: RunFacts) -> None:
        """Go on in the middle of an epoch, where it was left there."""
        if facts.steps is not None:
            self.network.taken = StepsTaken(facts.steps.losses, facts.steps.seeds)

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Take a step per minibatch and return the mean loss."""
        goes_on = epoch < self.config.epochs
        return self.network.run_epoch(optimiser, epoch, goes_on=goes_on, on_step=self.on_step)

    def report(self, seconds: float, epochs: int) -> dict[str, Any]:
        """Return how neighbours were drawn and what the caches did too."""
        feed = self.network.feed
        sampling, hot = feed.relay.sampling, feed.sampler.hot
        told = {
            "fanout": list(sampling.fanouts),
            "replace": sampling.replace,
            "weighted": sampling.weighted,
            "batch_size": self.config.batch_size,
            "steps": feed.sampler.schedule.num_steps,
            "on_disk": self.shard.is_mapped,
            "feature_bits": feed.needs.feature_bits,
        }
        if feed.needs.feature_bits != 32:
            told["rounding_error"] = feed.rounding_error
        told["rows_on"] = feed.place.rows
        if hot is not None:
            told["hot_hits"] = hot.hits / max(1, hot.hits + hot.misses)
        if (hits := feed.device_hits) is not None:
            told["device_hits"] = hits
        scored = {"kind": self.scoring.kind, "every": self.scoring.every}
        more = {"exactness": "sampled", "sampling": told, "evaluation": scored}
        return super().report(seconds, epochs) | more

    def abandon(self) -> None:
        """End the thread that fetches ahead."""
        self.network.abandon()

    def close(self) -> None:
        """Give up the second connection to the other ranks."""
        self.network.close()
