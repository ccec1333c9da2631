"""Runs about the edges of a static graph: whether they are there, or what they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from siafu.config import ResolvedConfig
from siafu.engine.edges import EdgeNetwork, write_edges
from siafu.engine.link_test import LinkTest
from siafu.engine.links import num_eval_negatives
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.static import FullGraph, Minibatches
from siafu.engine.workload import Evaluation
from siafu.minibatch import HeldOut
from siafu.nn import Draws
from siafu.partitioning import Parts
from siafu.shard import Shard


class Links(Minibatches):
    """Minibatches of edges, scored by held-out edges."""

    def __init__(
        self,
        config: ResolvedConfig,
        shard: Shard,
        network: SampledNetwork,
        draws: Draws,
        held_out: HeldOut,
        parts: Callable[[], Parts],
    ) -> None:
        super().__init__(config, shard, network, draws)
        self.links = LinkTest(held_out, network.feed, num_eval_negatives(config))
        self._parts = parts

    @property
    def guessed_loss(self) -> None:
        """None: edges have no classes."""

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return how held-out edges rank among drawn ones."""
        self._rest()
        found = self.links.scores(self.network.logit_rows())
        return Evaluation(
            scores=found, merit=self.merit_of(found), chooses=self.links.totals["val"] > 0
        )

    def _metrics(self) -> tuple[str, ...]:
        return ("mrr",)

    def _quality(self) -> dict[str, Any] | None:
        return None

    def write_predictions(self, target: Path) -> None:
        """Write a row for each held-out edge."""
        self._rest()
        self.links.write(self.network.logit_rows(), self._parts().ids, target)


class Edges(FullGraph):
    """The whole graph, asked about its edges: `shard` has them in the place of nodes."""

    network: EdgeNetwork

    def __init__(
        self,
        config: ResolvedConfig,
        shard: Shard,
        network: EdgeNetwork,
        draws: Draws,
        parts: Callable[[], Parts],
    ) -> None:
        super().__init__(config, shard, network, draws)
        self._parts = parts

    def write_predictions(self, target: Path) -> None:
        """Write a row for each edge."""
        write_edges(self.network, self.shard, self.draws, self._parts(), target)
