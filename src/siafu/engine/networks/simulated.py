"""A run with a simulated pool, on the cluster it stands for: seconds and calls in virtual time.

What a run here takes says nothing of a cluster: workers compute on the cores of the ranks. So the
costs of its tasks are measured, and a cluster in virtual time has the seconds and the bill.
"""

from dataclasses import asdict, replace
from typing import Any

import torch

from siafu.comm import World
from siafu.config import RunConfig
from siafu.elastic.open import read_cloud
from siafu.engine.networks.pipelined import PipelinedNetwork
from siafu.pipeline.cluster import Cluster
from siafu.pipeline.cluster_plan import (
    SERVING_PER_BYTE,
    SERVING_PER_TASK,
    USUAL_CARD_BYTES,
    ClusterPlan,
)
from siafu.plan import read_prices

_EPOCHS, _SKIPPED = 8, 3
_FLOAT_BYTES = 4
_TOLD = (
    "epoch_seconds",
    "first_seconds",
    "requests",
    "billed_seconds",
    "sent_bytes",
    "received_bytes",
    "workers",
    "core_share",
    "card_share",
)


def simulated_cluster(
    network: PipelinedNetwork, world: World, config: RunConfig
) -> dict[str, float]:
    """Return what an epoch takes on a server for each rank; nothing where there is none to tell.

    Every rank calls this together; rank 0 simulates.
    """
    pipeline, runner = network.pipeline, network.runner
    if pipeline is None or runner is None or runner.use.costs is None:
        return {}
    threads = torch.get_num_threads()
    script = pipeline.costs.script(runner.use.costs, world, threads)
    if not script:
        return {}
    told = [0.0] * len(_TOLD)
    if world.rank == 0:
        plan = _plan(network, world, config, threads)
        found = asdict(Cluster(plan, script).run(_EPOCHS, skipped=_SKIPPED))
        told = [float(found[name]) for name in _TOLD]
    return dict(zip(_TOLD, world.gather_numbers(told, "metric")[0], strict=True))


def _plan(network: PipelinedNetwork, world: World, config: RunConfig, threads: int) -> ClusterPlan:
    strategy, pipeline = network.strategy, network.pipeline
    assert pipeline is not None
    step = read_prices(config.prices).lambda_price.step_seconds
    workers = config.pool_workers
    return ClusterPlan(
        servers=world.size,
        intervals=strategy.intervals,
        cores=threads,
        card_bytes=USUAL_CARD_BYTES,
        cloud=replace(read_cloud(config.cloud), billing_seconds=step),
        workers=None if workers in (None, "auto") else int(workers),
        staleness=strategy.staleness,
        latest=strategy.gather == "latest",
        overlap=strategy.overlap,
        weight_bytes=_FLOAT_BYTES * pipeline.num_weights,
        serving_per_byte=SERVING_PER_BYTE,
        serving_per_task=SERVING_PER_TASK,
        seed=config.seed,
    )


def of_cluster(report: dict[str, Any], epochs: int) -> tuple[dict[str, Any], float | None]:
    """Return a report as it would be of the simulated cluster, and the seconds of its epochs."""
    cluster = report.get("cluster")
    if not cluster:
        return report, None
    calls = ("requests", "billed_seconds", "sent_bytes", "received_bytes")
    counted = {name: cluster[name] * epochs for name in calls}
    counted |= {name: round(counted[name]) for name in calls if name != "billed_seconds"}
    return {**report, **counted}, cluster["epoch_seconds"] * epochs
