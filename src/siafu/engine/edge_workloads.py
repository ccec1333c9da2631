"""Runs about the edges of a static graph: whether they are there, or what they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siafu.config import ResolvedConfig
from siafu.engine.edges import EdgeNetwork, write_edges
from siafu.engine.link_test import LinkTest
from siafu.engine.links import num_eval_negatives
from siafu.engine.minibatches import Minibatches
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.static import FullGraph
from siafu.engine.workload import Evaluation
from siafu.minibatch import HeldOut
from siafu.nn import Draws
from siafu.partitioning import Parts
from siafu.shard import RowReader, Shard


class Links(Minibatches):
    """Minibatches of edges, scored by held-out edges."""

    _sample: LinkTest | None
    """Some of the held-out edges, where those are scored."""

    def __init__(
        self,
        config: ResolvedConfig,
        shard: Shard,
        network: SampledNetwork,
        draws: Draws,
        held_out: HeldOut,
        parts: Callable[[], Parts],
    ) -> None:
        self.links = LinkTest(held_out, network.feed, num_eval_negatives(config))
        self._parts, self._sample = parts, None
        super().__init__(config, shard, network, draws)

    def _asked(self, drawn: bool) -> Tensor:
        """Return the nodes that held-out edges, or a sample of them, are ranked by."""
        return (self._drawn_links() if drawn else self.links).addresses()

    def _drawn_links(self) -> LinkTest:
        self._sample = self._sample or self.links.sampled()
        return self._sample

    @property
    def guessed_loss(self) -> None:
        """None: edges have no classes."""

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return how held-out edges, or a sample of them, rank among drawn ones."""
        flow, is_sample = self.scoring.flow, self.scoring.kind == "sampled"
        if flow is None:
            return self._evaluate_exactly()
        self._rest()
        test = self._drawn_links() if is_sample else self.links
        return self._ranked(test, self.network.flow_rows(flow), with_errors=is_sample)

    def _evaluate_exactly(self) -> Evaluation:
        self._rest()
        return self._ranked(self.links, self.network.logit_rows())

    def _ranked(self, test: LinkTest, rows: RowReader, *, with_errors: bool = False) -> Evaluation:
        found, errors = test.scores(rows)
        return Evaluation(
            scores=found,
            merit=self.merit_of(found),
            chooses=self.links.totals["val"] > 0,
            errors=errors if with_errors else {},
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
