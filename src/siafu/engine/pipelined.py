"""A model whose intervals go through epochs in a pipeline; evaluation is over the whole graph."""

import torch
from torch import Tensor

from siafu.config import RunConfig
from siafu.elastic import Deliver
from siafu.elastic.open import open_runner
from siafu.elastic.runner import Runner
from siafu.errors import ConfigError
from siafu.nn import GNN, Draws
from siafu.pipeline import Pipeline
from siafu.plan import read_prices
from siafu.record import Trace
from siafu.shard import HeldRows, Shard, WrittenRows
from siafu.strategy import BlockNeighbours, Strategy


class RowsInMemory:
    """Rows of a network that computes them all at once."""

    def logits(self) -> Tensor:
        """Return one row of scores for each owned node."""
        raise NotImplementedError

    def embeddings(self) -> Tensor:
        """Return the rows before the last layer."""
        raise NotImplementedError

    def logit_rows(self) -> WrittenRows:
        """Return the rows of `logits`."""
        return HeldRows(self.logits())

    def embedding_rows(self) -> WrittenRows:
        """Return the rows of `embeddings`."""
        return HeldRows(self.embeddings())


class PipelinedNetwork(RowsInMemory):
    """One of siafu's own models on the intervals of a shard."""

    def __init__(
        self,
        module: GNN,
        x_ND: Tensor,
        shard: Shard,
        draws: Draws,
        strategy: Strategy,
        config: RunConfig,
    ) -> None:
        self.module, self.strategy = module, strategy
        self._shard, self._draws, self._config, self._x = shard, draws, config, x_ND
        self._whole = BlockNeighbours(shard, draws)
        self.book = self._whole.book
        self.pipeline: Pipeline | None = None
        self.runner: Runner | None = None
        """None before training starts."""
        self.trace = Trace(shard.world.rank) if config.trace else None
        self._is_exact_now = False

    def training_logits(self) -> Tensor:
        """Return rows of training nodes, of one step over the whole graph."""
        return self.logits()[self._shard.train]

    def logits(self) -> Tensor:
        """Return logits_NO."""
        logits_NO: Tensor = self.module(self._x, self._whole, self._draws)
        return logits_NO

    def embeddings(self) -> Tensor:
        """Return hidden_ND."""
        return self.module.embed(self._x, self._whole, self._draws)

    def _open(self) -> Pipeline:
        strategy, config = self.strategy, self._config

        def make(deliver: Deliver) -> Runner:
            step = read_prices(config.prices).lambda_price.step_seconds
            self.runner = open_runner(
                config,
                strategy.pool,
                strategy.intervals,
                self._shard.world,
                deliver,
                step,
                config.seed,
            )
            return self.runner

        note = self._note_span if self.trace is not None else None
        pipeline = Pipeline(self.module, self._x, self._shard, self._draws, strategy, make, note)
        if self._is_exact_now:
            pipeline.stop_lagging()
        return pipeline

    def _note_span(self, name: str, category: str, lane: str, start: float, seconds: float) -> None:
        assert self.trace is not None
        self.trace.add(name, category, lane, start=start, seconds=seconds)

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int, horizon: int) -> float:
        """Return the loss of an epoch; intervals may go on to `horizon` meanwhile."""
        if self.pipeline is None:
            self.pipeline = self._open()
            self.pipeline.begin(epoch - 1)
        return self.pipeline.run_epoch(optimiser, epoch, horizon)

    def note_score(self, score: float) -> None:
        """Stop lagging from now on if the score is as high as the run's settings say."""
        wanted = self._config.exact_from
        if wanted is not None and score >= wanted:
            self._is_exact_now = True
            if self.pipeline is not None:
                self.pipeline.stop_lagging()

    def abandon(self) -> None:
        """End the pool alone, after a failure: other ranks may not answer any more."""
        if self.runner is not None:
            self.runner.close()

    def close(self) -> None:
        """End the pool and the mail between ranks; all ranks call this together."""
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None


def check_pipeline(config: RunConfig) -> None:
    """Raise where a model can't be cut into tasks on intervals, or has nothing to do there."""
    if ":" in config.model:
        raise ConfigError(
            "A model of your own is not cut into tasks on intervals.",
            seen=f"--strategy dorylus with {config.model}",
            fix="use gcn, sage, gin, gat or transformer, or another strategy",
        )
