"""What a run is refused for before its data is read: settings that can't work, or not together."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from siafu.config import RunConfig, check_scopes, read_class_weights, read_metrics, read_threshold
from siafu.engine import (
    check_edge_settings,
    check_link_settings,
    check_model_class,
    check_model_file,
    check_network_settings,
    check_sampled_settings,
)
from siafu.errors import ConfigError
from siafu.graph import folder_kind
from siafu.launch.automatic import steered
from siafu.launch.columns import check_targets, table_options
from siafu.launch.dynamic import is_dynamic_run
from siafu.launch.host_room import check_budget_of_process
from siafu.launch.prepare import check_parts_settings
from siafu.launch.sinks import check_sinks
from siafu.memory import free_bytes
from siafu.strategy import AUTO


def with_task(data: Any, config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """Return the settings with the task of edges where only of them a column is to be predicted."""
    if config.edge_label is None or config.task or is_dynamic_run(data, config):
        return config
    if config.label is not None:
        raise ConfigError(
            "A run learns of nodes or of edges, not of both.",
            seen=f"--label {config.label} and --edge-label {config.edge_label}",
            fix="say which: --task node or --task edge",
        )
    say(f"What is learnt is {config.edge_label} of the edges: --task edge.")
    return config.model_copy(update={"task": "edge"})


def with_strategy(data: Any, config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """Return the settings with the one strategy that they are for, unless one was named."""
    if config.strategy != AUTO or is_dynamic_run(data, config):
        return config
    if config.task != "link":
        return steered(config, config.task or "node", say)
    say("Links are learnt on minibatches of edges: --strategy batchgnn.")
    return config.model_copy(update={"strategy": "batchgnn"})


def check_run(data: Any, config: RunConfig) -> None:
    """Raise where the settings tell that the run would fail once its ranks have started."""
    strategy = config.chosen
    _check_model_size(config.resolved())
    check_model_file(config)
    read_metrics(config.metric)
    read_threshold(config.threshold)
    read_class_weights(config.class_weights)
    over_time = is_dynamic_run(data, config)
    if not over_time:
        check_link_settings(config)
        if config.task == "edge":
            check_edge_settings(config)
    elif config.task in ("classification", "regression"):
        raise ConfigError(
            "The task is one of graphs that stand still.",
            seen=f"--task {config.task} with --model {config.model}",
            fix="use --task node, edge, link or signal",
        )
    task = config.task or (None if over_time else "node")
    check_scopes(config.kind(over_time=over_time, task=task), config)
    if not over_time:
        if strategy.unit == "macrobatch":
            check_sampled_settings(config.resolved())
        check_network_settings(config.resolved())
    check_budget_of_process(config)
    check_parts_settings(data, config)
    check_restarts(config)
    if config.min_ranks is not None and _is_parts(data):
        raise ConfigError(
            "Parts of your own are not cut anew for fewer ranks.",
            seen=f"--min-ranks {config.min_ranks} with {data}",
            fix="train on the graph itself, or leave --min-ranks out",
        )
    check_sinks(config)
    table_options(data, config)
    if not over_time:
        check_targets(data, config)
    check_model_class(config)


def _is_parts(data: Any) -> bool:
    return isinstance(data, str | Path) and folder_kind(Path(data)) == "parts"


def check_restarts(config: RunConfig) -> None:
    """Raise where the fewest ranks to go on with mean nothing; torchrun has counts of its own."""
    least = config.min_ranks
    if least is None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return
    if not config.max_restarts:
        raise ConfigError(
            "A training goes on with fewer ranks where it may start again.",
            seen=f"--min-ranks {least} without --max-restarts",
            fix="add --max-restarts 3",
        )
    check_enough(config, config.ranks)


def check_enough(config: RunConfig, ranks: int) -> None:
    """Raise where fewer ranks are there than the fewest that a run may go on with."""
    if config.min_ranks is not None and ranks < config.min_ranks:
        raise ConfigError(
            "There are too few ranks.",
            seen=f"{ranks}, with --min-ranks {config.min_ranks}",
            fix="start more, or lower --min-ranks",
        )


def _check_model_size(config: RunConfig) -> None:
    """Raise where the weights between hidden layers alone would not fit in memory."""
    width, free = config.hidden or 1, free_bytes()
    # Weights, their gradients and the two moments of Adam.
    need = 4 * 4 * width * width * (config.layers - 1)
    if need > free and ":" not in config.model:
        raise ConfigError(
            "The model would not fit in memory.",
            seen=f"--hidden {width:,} with --layers {config.layers}: some {need:,} bytes for its "
            f"weights, {free:,} are available",
            fix="use a narrower model, such as --hidden 256",
        )
