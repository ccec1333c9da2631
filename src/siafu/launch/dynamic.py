"""Runs on dynamic graphs: preparing their data, and one rank's share of the work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siafu.comm import World
from siafu.config import ResolvedConfig, RunConfig, check_scopes, is_asked
from siafu.engine import (
    LOOKS_AHEAD,
    Trainer,
    begin_dynamic,
    check_grid,
    check_time_settings,
    default_task,
    infer_dynamic,
    make_grid,
    num_embedded,
    refuse_one_snapshot,
)
from siafu.engine.device_memory import OVER_TIME, naming_what_is_held
from siafu.errors import ConfigError
from siafu.graph import DynamicGraph, Graph, folder_kind, load_dynamic_store, save_dynamic
from siafu.ingest import (
    BUILTINS,
    NAMED,
    EventOptions,
    is_dynamic,
    load_dynamic,
    looks_like_events,
)
from siafu.ingest.datasets.named import canonical
from siafu.launch.cut import told_classes
from siafu.launch.device_room import check_room_over_time
from siafu.nn import CARDS, DYNAMIC_CARDS
from siafu.ops import num_threads, set_threads
from siafu.options import names_in
from siafu.partitioning import Cut, assign_nodes, too_few_snapshots
from siafu.record import PhaseProgress, RunFolder, counted

_ELEMENTS_A_THREAD = 4_000_000
_SNAPSHOTS = "snapshots and rows of layers"


def is_dynamic_run(data: Any, config: RunConfig) -> bool:
    """Return whether a run is on a dynamic graph; raise where model and data disagree."""
    dynamic = config.model in DYNAMIC_CARDS or (config.model not in CARDS and is_dynamic(data))
    if not dynamic and is_dynamic(data):
        raise ConfigError(
            "The model is for graphs that do not change, and the data is a dynamic graph.",
            seen=f"--model {config.model} with {_shown(data)}",
            fix=f"use one of: {', '.join(DYNAMIC_CARDS)}",
        )
    if not dynamic and tells_times(data) and config.nodes is None:
        raise ConfigError(
            "The model is for graphs that do not change, and the table is of events without nodes.",
            seen=f"--model {config.model} with {_shown(data)}",
            fix=f"to learn over time, use one of: {', '.join(DYNAMIC_CARDS)}; to leave times out, "
            "name the table of nodes with --nodes",
        )
    if dynamic and _is_static(data):
        raise ConfigError(
            "The model is for dynamic graphs, and the data has no times.",
            seen=f"--model {config.model} with {_shown(data)}",
            fix=f"use timed events, or one of: {', '.join(CARDS)}",
        )
    return dynamic


def tells_times(data: Any) -> bool:
    """Return whether the data is a table of edges with a column of times."""
    return isinstance(data, str | Path) and looks_like_events(Path(data))


def _is_static(data: Any) -> bool:
    if isinstance(data, Graph):
        return True
    if not isinstance(data, str | Path):
        return False
    name = str(data).partition(":")[0]
    return (
        name in BUILTINS
        or canonical(name) in NAMED
        or folder_kind(Path(data)) in ("store", "parts")
    )


def _shown(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else type(data).__name__


def prepare_dynamic(
    data: Any,
    config: RunConfig,
    target: Path,
    *,
    say: Callable[[str], None],
    progress: PhaseProgress,
    trains: bool = True,
) -> Path:
    """Return the store of the dynamic graph: the user's own, or one made at `target`."""
    check_grid(config.ranks, config.node_parts)
    check_time_settings(config)
    stored = isinstance(data, str | Path) and folder_kind(Path(data)) == "dynamic"
    try:
        graph, notes = load_dynamic(
            data,
            window=config.window,
            edge_life=config.edge_life,
            symmetric=config.undirected,
            options=_event_options(config, unlabelled=not trains and config.task == "edge"),
            progress=progress,
        )
    finally:
        progress.close()
    if trains:
        check_scopes(config.kind(over_time=True, task=config.task or default_task(graph)), config)
    _check_lags(config, graph)
    _check_event_features(config, graph)
    for note in [*notes, *_classes_told(config, graph), *_features_told(config, graph)]:
        say(note)
    say(
        f"{counted(graph.num_snapshots, 'snapshot')} of {counted(graph.num_nodes, 'node')}, "
        f"{counted(graph.num_events, 'event')}, {graph.deltas.num_changes:,} changes of edges."
    )
    task = config.task or default_task(graph)
    if task in LOOKS_AHEAD:
        refuse_one_snapshot(graph, task)
    stretches = config.ranks // config.node_parts
    if num_embedded(config, graph) < stretches:
        raise too_few_snapshots(num_embedded(config, graph), stretches)
    cuts = is_asked(config, "partition")
    if config.node_parts > 1 and (cuts or _num_groups(graph) != config.node_parts):
        cut = Cut(num_parts=config.node_parts, method=config.partition, seed=config.seed)
        graph = _grouped(graph, cut, say, progress)
        stored = False
    if stored:
        return Path(data)
    save_dynamic(graph, target)
    return target


def _classes_told(config: RunConfig, graph: DynamicGraph) -> list[str]:
    task = config.task or default_task(graph)
    if task == "edge" and graph.event_label is not None:
        return told_classes([graph.event_label], graph.edge_class_names, "Classes of edges")
    if task == "node" and graph.y is not None:
        return told_classes([np.asarray(graph.y).reshape(-1)], graph.class_names)
    return []


def _features_told(config: RunConfig, graph: DynamicGraph) -> list[str]:
    if graph.event_attr is None:
        return []
    has = f"Events have {counted(graph.num_event_features, 'feature')}"
    read = "read" if config.edge_features else "not read: add --edge-features"
    return [f"{has}, {read}."]


def _check_lags(config: RunConfig, graph: DynamicGraph) -> None:
    """Raise where a signal would be looked back on beyond its start, which makes columns of 0."""
    if graph.signal is not None and config.lags > graph.num_snapshots:
        width = config.lags * graph.signal.shape[-1]
        raise ConfigError(
            "There are more lags than snapshots.",
            seen=f"--lags {config.lags:,} with {graph.num_snapshots:,} snapshots: {width:,} "
            f"features, {4 * graph.num_nodes * width:,} bytes per snapshot",
            fix=f"use --lags {min(4, graph.num_snapshots)}, at most {graph.num_snapshots:,}",
        )


def _check_event_features(config: RunConfig, graph: DynamicGraph) -> None:
    if config.edge_features and graph.event_attr is None:
        raise ConfigError(
            "The events have no features.",
            seen=f"--edge-features with {graph.name}",
            fix="name columns of numbers with --edge-attr, or leave --edge-features out",
        )


_ROLES = ("src", "dst", "time", "weight", "label")


def _event_options(config: RunConfig, *, unlabelled: bool) -> EventOptions:
    """Return how events are read; `unlabelled` where their classes are to be told."""
    named: dict[str, Any] = {}
    for pair in (config.columns or "").split(",") if config.columns else []:
        role, _, column = pair.partition("=")
        if role.strip() not in _ROLES or not column.strip():
            raise ConfigError(
                "The columns of events are not understood.",
                seen=f"--columns {config.columns}",
                fix=f"name them as src=from,time=when; roles are {', '.join(_ROLES)}",
            )
        named[role.strip()] = column.strip()
    attr = names_in(config.edge_attr or "")
    if any(name.startswith("-") for name in attr):
        raise ConfigError(
            "Features of events are named, not left out.",
            seen=f"--edge-attr {config.edge_attr}",
            fix="name the columns that are features: --edge-attr amount,duration",
        )
    named["attr"] = attr
    named |= {"partial_window": config.partial_window, "time_unit": config.time_unit}
    return EventOptions(unlabelled=unlabelled, **named)


def _grouped(
    graph: DynamicGraph, cut: Cut, say: Callable[[str], None], progress: PhaseProgress
) -> DynamicGraph:
    """Return the graph with its nodes cut into groups."""
    try:
        part_of = assign_nodes(graph, cut, progress)
    finally:
        progress.close()
    sizes = ", ".join(f"{size:,}" for size in np.bincount(part_of, minlength=cut.num_parts))
    say(f"Cut the nodes into {cut.num_parts} groups: {sizes}.")
    return replace(graph, part_of=part_of)


def _num_groups(graph: DynamicGraph) -> int:
    return 1 if graph.part_of is None else int(graph.part_of.max()) + 1


def begin_on_dynamic(
    config: ResolvedConfig,
    folder: RunFolder,
    job: Any,
    world: World,
    say: Callable[[str], None],
) -> Trainer:
    """Return the training of a dynamic graph."""
    graph = _open(config, job)
    check_room_over_time(config, graph, world, say)
    resumed = folder.checkpoints if job.resume else None
    with naming_what_is_held(world.device, OVER_TIME, dict, rest=_SNAPSHOTS):
        return begin_dynamic(config, graph, world, resumed, say)


def infer_on_dynamic(config: ResolvedConfig, folder: RunFolder, job: Any, world: World) -> None:
    """Do this rank's share of predicting on a dynamic graph."""
    graph = _open(config, job)
    grid = make_grid(world, graph, config.node_parts)
    target = Path(job.target)
    with naming_what_is_held(world.device, OVER_TIME, dict, rest=_SNAPSHOTS):
        infer_dynamic(config, graph, grid, folder.weights, target, embeddings=job.embeddings)


def _open(config: ResolvedConfig, job: Any) -> DynamicGraph:
    graph = load_dynamic_store(job.parts)
    if not config.threads:
        edges = int(graph.edges_per_snapshot().max(initial=0))
        elements = (graph.num_nodes + edges) * config.hidden // config.node_parts
        set_threads(min(num_threads(), 1 + elements // _ELEMENTS_A_THREAD))
    return graph
