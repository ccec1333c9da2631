"""The training of a static graph: what is worked on together, and what is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from siafu.config import ResolvedConfig
from siafu.engine.checks import check_own_settings, check_residual
from siafu.engine.edge_workloads import Edges, Links
from siafu.engine.edges import edge_network, edge_view
from siafu.engine.minibatches import Minibatches
from siafu.engine.networks.network import build_network
from siafu.engine.objective import with_objective
from siafu.engine.static import FullGraph, IntervalPipeline
from siafu.engine.trainer import Trainer
from siafu.minibatch import HeldOut
from siafu.nn import Draws
from siafu.partitioning import Parts
from siafu.shard import Shard, require

WORKLOADS: dict[str, type[FullGraph]] = {
    "graph": FullGraph,
    "macrobatch": Minibatches,
    "interval": IntervalPipeline,
}
"""By what is worked on together."""


def begin(
    config: ResolvedConfig,
    shard: Shard,
    resume_from: Path | None = None,
    held_out: HeldOut | None = None,
    say: Callable[[str], None] = lambda line: None,
    parts: Callable[[], Parts] | None = None,
) -> Trainer:
    """Return a training ready to run, fresh or from the newest checkpoint of a run folder.

    With `task` link, `held_out` has this rank's share of the edges to evaluate on; with that and
    with `task` edge, `parts` gives the ids of all nodes. `say` is told what is planned.
    """
    require(shard, *(("x",) if config.task in ("link", "edge") else ("x", "y", "train")))
    if resume_from is None:
        check_residual(config, shard)
        check_own_settings(config)
    nodes = shard
    if config.task == "edge":
        shard = edge_view(config, shard)
    if config.task != "link":
        shard = with_objective(config, shard)
    draws = Draws(seed=config.seed)
    network = build_network(config, nodes if config.task == "edge" else shard, draws, say=say)
    bound: Any = network  # the strategy's unit decides on its class as on the workload's
    if held_out is not None:
        assert parts is not None, "edges are told by the ids of their ends"
        workload: FullGraph = Links(config, shard, bound, draws, held_out, parts)
    elif config.task == "edge":
        assert parts is not None, "edges are told by the ids of their ends"
        asked = edge_network(config, network, nodes, shard)
        workload = Edges(config, shard, asked, draws, parts)
    else:
        workload = WORKLOADS[network.strategy.unit](config, shard, bound, draws)
    if workload.told:
        say(workload.told)
    trainer = Trainer(workload.config, workload)
    if resume_from is not None:
        trainer.resume(resume_from, say)
    return trainer
