"""Turning what the user named into a parts folder with one part a rank."""

from pathlib import Path
from typing import Any

from siafu.config import RunConfig
from siafu.engine import Counts, check_before_cut, make_spec
from siafu.errors import ConfigError, PlanError
from siafu.graph import Graph, SparseFeatures, folder_kind
from siafu.ingest import load_as_it_is
from siafu.launch.cut import Allowance, Reading, Say, cut_source
from siafu.launch.dynamic import is_dynamic_run, prepare_dynamic
from siafu.minibatch import hold_out_edges
from siafu.partition import Cut, open_parts
from siafu.record import PhaseProgress

_CUT_SETTINGS = ("undirected", "split", "partition")


def prepare_parts(
    data: Any,
    config: RunConfig,
    target: Path,
    *,
    say: Say,
    quiet: bool = False,
    draw_masks: bool = True,
    go_on: str | None = None,
) -> Path:
    """Return a parts folder for the run, the user's own or one made at `target`; or a store of a
    dynamic graph, which needs no parts.

    Tables and stores are never held in memory. `go_on` tells the user how to go on where that was
    stopped; without it nothing half made stays.
    """
    if is_dynamic_run(data, config):
        return prepare_dynamic(data, config, target, say=say, quiet=quiet, trains=draw_masks)
    if _names_parts(data):
        return _with_part_per_rank(Path(data), config.ranks)
    progress = PhaseProgress(quiet=quiet)
    try:
        reading = Reading(
            undirected=config.undirected,
            split=config.split,
            draws_masks=draw_masks,
            through_cache=True,
        )
        if draw_masks and config.task == "link":
            data = _without_held_out(data, config, target, say=say, progress=progress)
            reading = Reading(draws_masks=False)
        quality = cut_source(
            data,
            target,
            Cut(num_parts=config.ranks, method=config.partition, seed=config.seed),
            reading,
            Allowance(
                go_on=go_on,
                tells_memory=False,
                say=say,
                progress=progress,
                check=lambda graph: check_memory(config, graph) if draw_masks else None,
            ),
        )
    finally:
        progress.close()
    if config.ranks > 1:
        facts = open_parts(target).facts
        graph = facts["graph"]
        say(
            f"Partitioned {graph['num_nodes']:,} vertices and {graph['num_edges']:,} edges into "
            f"{config.ranks} parts ({facts['method']}); {quality.cut_edges:,} edges are cut."
        )
    return target


def _with_part_per_rank(path: Path, ranks: int) -> Path:
    """Return the user's own parts, refusing any but one per rank."""
    count = open_parts(path).num_parts
    if count != ranks:
        raise PlanError(
            "The number of ranks differs from the number of parts.",
            seen=f"{ranks} ranks, {count} parts in {path}",
            fix=f"use --ranks {count}, or partition with --parts {ranks}",
        )
    return path


def check_memory(config: RunConfig, graph: Graph) -> None:
    """Raise where the run's memory is too small for the graph, before hours of cutting it."""
    config = config.resolved()
    if config.memory is None or ":" in config.model or graph.x is None:
        return
    attr = graph.edge_attr if config.edge_features else None
    spec = make_spec(
        config,
        in_width=graph.num_features,
        out_width=graph.num_classes,
        edge_width=0 if attr is None else attr.shape[1],
        num_types=graph.num_edge_types,
    )
    columns = (graph.src, graph.edge_weight, graph.edge_attr, graph.edge_type)
    if isinstance(graph.x, SparseFeatures):
        row_bytes = 8 + 8 * len(graph.x.index) // max(1, graph.num_nodes)
    else:
        row_bytes = graph.x[:1].nbytes
    counts = Counts(
        rows=graph.num_nodes // config.ranks,
        edges=graph.num_edges // config.ranks,
        row_bytes=row_bytes,
        edge_bytes=sum(column[:1].nbytes for column in columns if column is not None),
        ranks=config.ranks,
    )
    check_before_cut(config, spec, counts)


def _without_held_out(
    data: Any, config: RunConfig, target: Path, *, say: Say, progress: PhaseProgress
) -> Graph:
    """Return the graph to cut; the edges it is tested on go beside `target`."""
    graph, notes = load_as_it_is(data, undirected=config.undirected, progress=progress)
    graph, held = hold_out_edges(graph, config.split, config.seed)
    held.save(target)
    counts = f"{len(held.val):,} edges for validation and {len(held.test):,} for test"
    for note in [*notes, f"Held out {counts}; {graph.num_edges:,} are left."]:
        say(note)
    return graph


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
