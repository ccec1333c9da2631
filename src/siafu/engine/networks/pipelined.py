"""A model whose intervals go through epochs in a pipeline, and what such a run reports."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from siafu.comm import World
from siafu.config import RunConfig
from siafu.elastic import Deliver
from siafu.elastic.open import open_runner
from siafu.elastic.runner import Runner
from siafu.errors import ConfigError
from siafu.nn import GNN, Draws
from siafu.nn.precision import computing
from siafu.ops import sum_type
from siafu.pipeline import Pipeline, most_age
from siafu.plan import Bill, PoolUsage, Servers, make_bill, read_prices
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
        self._is_exact_now = False

    def training_logits(self) -> Tensor:
        """Return rows of training nodes, of one step over the whole graph."""
        return self.logits()[self._shard.train]

    def logits(self) -> Tensor:
        """Return logits_NO."""
        with self._computing():
            logits_NO: Tensor = self.module(self._x, self._whole, self._draws)
        return logits_NO.to(sum_type(logits_NO.dtype))

    def _computing(self) -> AbstractContextManager[object]:
        return computing(self.strategy.precision, self._shard.world.device)

    def embeddings(self) -> Tensor:
        """Return hidden_ND."""
        with self._computing():
            hidden_ND = self.module.embed(self._x, self._whole, self._draws)
        return hidden_ND.to(sum_type(hidden_ND.dtype))

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

        note = self._note_span if self._shard.world.trace is not None else None
        pipeline = Pipeline(self.module, self._x, self._shard, self._draws, strategy, make, note)
        if self._is_exact_now:
            pipeline.stop_lagging()
        return pipeline

    def _note_span(self, name: str, category: str, lane: str, start: float, seconds: float) -> None:
        trace = self._shard.world.trace
        assert trace is not None
        trace.add(name, category, lane, start=start, seconds=seconds)

    def run_epoch(self, optimiser: torch.optim.Optimizer, epoch: int, horizon: int) -> float:
        """Return the loss of an epoch; intervals may go on to `horizon` meanwhile."""
        if self.pipeline is None:
            self.pipeline = self._open()
            self.pipeline.begin(epoch - 1)
        return self.pipeline.run_epoch(optimiser, epoch, horizon)

    def stop_lagging(self) -> None:
        """Wait for rows of the same epoch from now on."""
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


DEFAULT_INSTANCE = "c5.xlarge"
_BILLED_POOLS = ("aws-lambda", "simulated")
"""Pools whose workers are paid by the request; others run on machines that are paid for anyway."""
_MB_PER_GB = 1024


def pipeline_report(
    network: PipelinedNetwork, world: World, earlier: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of all ranks together; all call this.

    `earlier` are those of the run before it was resumed, which are added.
    """
    if network.pipeline is None:
        return earlier
    pipeline, runner = network.pipeline, network.runner
    assert runner is not None
    requests, billed = runner.use.totals()
    counts = runner.dispatcher.counters
    told = {
        "relaunched": counts.relaunched,
        "duplicates": counts.duplicates,
        "failures": counts.failures,
        "rescued": counts.rescued,
        "degraded": int(runner.dispatcher.degraded),
        "requests": requests,
        "billed_seconds": billed,
        "sent_bytes": runner.use.sent_bytes,
        "received_bytes": runner.use.received_bytes,
        "idle_seconds": pipeline.idle_seconds,
    }
    ages = [pipeline.ages.get(age, 0) for age in range(most_age(network.strategy) + 1)]
    now = [float(runner.dispatcher.workers), runner.use.memory_gb or 0.0]
    table = world.gather_numbers([*now, *map(float, [*told.values(), *ages])], "metric")
    columns = list(zip(*table, strict=True))
    sums = dict(zip(told, map(sum, columns[2:]), strict=False))
    before = earlier.get("rows_read_by_age", [0] * len(ages))
    by_age = [sum(column) for column in columns[2 + len(told) :]]
    return {
        **{name: _as_told(name, sums[name] + earlier.get(name, 0)) for name in told},
        "workers": int(sum(columns[0])),
        "memory_gb": max(columns[1]) or None,
        "rows_read_by_age": [int(a + b) for a, b in zip(by_age, before, strict=True)],
    }


def _as_told(name: str, value: float) -> float:
    return value if name.endswith("seconds") else int(value)


def run_bill(
    config: RunConfig, report: dict[str, Any], *, ranks: int, seconds: float, epochs: int
) -> Bill | None:
    """Return the bill of a run, each rank on a machine of its own; None where nobody asked."""
    strategy = config.chosen
    asked = (config.prices, config.instance, config.max_dollars)
    if strategy.unit != "interval" and all(one is None for one in asked):
        return None
    prices = read_prices(config.prices)
    usage = PoolUsage()
    if strategy.pool in _BILLED_POOLS and report:
        memory = report["memory_gb"] or prices.lambda_price.memory_mb / _MB_PER_GB
        usage = PoolUsage(
            requests=report["requests"],
            gb_seconds=report["billed_seconds"] * memory,
            billed_seconds=report["billed_seconds"],
            sent_bytes=report["sent_bytes"],
            received_bytes=report["received_bytes"],
        )
    servers = Servers(instance=config.instance or DEFAULT_INSTANCE, ranks=ranks)
    return make_bill(prices, servers, seconds=seconds, epochs=epochs, usage=usage)
