"""Turning what the user named into a parts folder with one part a rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from siafu.config import RunConfig
from siafu.errors import ConfigError, PlanError
from siafu.graph import Graph, folder_kind
from siafu.ingest import load_as_it_is, load_with_notes
from siafu.launch.dynamic import is_dynamic_run, prepare_dynamic
from siafu.minibatch import hold_out_edges
from siafu.partition import open_parts, partition_graph
from siafu.record import PhaseProgress

Say = Callable[[str], None]
_CUT_SETTINGS = ("undirected", "split", "partition")


def prepare_parts(
    data: Any,
    config: RunConfig,
    target: Path,
    *,
    say: Say,
    quiet: bool = False,
    draw_masks: bool = True,
) -> Path:
    """Return a parts folder for the run, the user's own or one made at `target`; or a store of a
    dynamic graph, which needs no parts.
    """
    if is_dynamic_run(data, config):
        return prepare_dynamic(data, config, target, say=say, quiet=quiet)
    if _names_parts(data):
        parts = open_parts(data)
        if parts.num_parts != config.ranks:
            raise PlanError(
                "The number of ranks differs from the number of parts.",
                seen=f"{config.ranks} ranks, {parts.num_parts} parts in {data}",
                fix=f"use --ranks {parts.num_parts}, or partition with --parts {config.ranks}",
            )
        return Path(data)
    progress = PhaseProgress(quiet=quiet)
    try:
        graph, notes = _load(data, config, target, progress, draw_masks=draw_masks)
        for note in notes:
            say(note)
        quality = partition_graph(
            graph,
            target,
            num_parts=config.ranks,
            method=config.partition,
            seed=config.seed,
            progress=progress,
        )
    finally:
        progress.close()
    if config.ranks > 1:
        say(
            f"Partitioned {graph.num_nodes:,} vertices and {graph.num_edges:,} edges into "
            f"{config.ranks} parts ({open_parts(target).facts['method']}); "
            f"{quality.cut_edges:,} edges are cut."
        )
    return target


def _load(
    data: Any, config: RunConfig, target: Path, progress: PhaseProgress, *, draw_masks: bool
) -> tuple[Graph, list[str]]:
    """Return the graph to cut and what there is to say of it; held-out edges go beside `target`."""
    if draw_masks and config.task != "link":
        return load_with_notes(
            data,
            undirected=config.undirected,
            split=config.split,
            seed=config.seed,
            progress=progress,
        )
    graph, notes = load_as_it_is(data, undirected=config.undirected, progress=progress)
    if not draw_masks:
        return graph, notes
    graph, held = hold_out_edges(graph, config.split, config.seed)
    held.save(target)
    counts = f"{len(held.val):,} edges for validation and {len(held.test):,} for test"
    return graph, [*notes, f"Held out {counts}; {graph.num_edges:,} are left."]


def check_parts_settings(data: Any, config: RunConfig) -> None:
    """Raise where a setting asks to change a graph that is cut already."""
    if not _names_parts(data):
        return
    # Edges are split when a rank has opened its part.
    names = ("undirected", "partition") if config.task == "link" else _CUT_SETTINGS
    fields = RunConfig.model_fields
    # By value, not by model_fields_set: the config.yaml of a run holds every default too.
    asked = [name for name in names if getattr(config, name) != fields[name].default]
    if asked:
        flags = ", ".join(f"--{name}" for name in asked)
        raise ConfigError(
            "A parts folder is used as it was cut.",
            seen=f"{flags} with the parts in {data}",
            fix=f"run `siafu partition` again with {flags.replace('--partition', '--method')}",
        )


def _names_parts(data: Any) -> bool:
    return isinstance(data, str | Path) and folder_kind(Path(data)) == "parts"


def with_ranks_of_parts(data: Any, config: RunConfig) -> RunConfig:
    """Return the settings with one rank a part, where the user named parts but no ranks."""
    if "ranks" in config.model_fields_set or not _names_parts(data):
        return config
    return config.model_copy(update={"ranks": open_parts(data).num_parts})
