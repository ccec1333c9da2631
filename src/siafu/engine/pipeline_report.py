"""What a pipelined run reports: how old rows were, what became of tasks, and what it cost."""

from pathlib import Path
from typing import Any

from siafu.comm import World
from siafu.config import RunConfig
from siafu.engine.pipelined import PipelinedNetwork
from siafu.pipeline import most_age
from siafu.plan import Bill, PoolUsage, Servers, make_bill, read_prices
from siafu.record import join_traces

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
    if strategy.unit != "interval" and config.prices is None and config.instance is None:
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


def write_trace(network: PipelinedNetwork, world: World, folder: Path) -> None:
    """Write trace.json of all ranks into a run's folder; all ranks call this together."""
    if network.trace is None:
        return
    paths = [folder / f"trace-{rank}.json" for rank in range(world.size)]
    network.trace.write(paths[world.rank])
    world.gather_numbers([1.0])
    if world.rank == 0:
        join_traces(paths, folder / "trace.json")
        for path in paths:
            path.unlink()
