"""Cutting a graph or a store into a parts folder, or the nodes of a dynamic graph into groups."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import (
    Array,
    DynamicGraph,
    Graph,
    Partial,
    file_facts,
    graph_from_edges,
    load_store,
    make_in_steps,
)
from siafu.memory import Budget, available_bytes, held_bytes
from siafu.partitioning.assign import assign_contiguous, assign_hash, check_num_parts
from siafu.partitioning.memory import check_cut_fits, predict_for
from siafu.partitioning.metis import assign_metis
from siafu.partitioning.options import Method
from siafu.partitioning.prepared import ColumnChoices, prepare_in_steps
from siafu.partitioning.quality import Quality
from siafu.partitioning.split import PartRows
from siafu.partitioning.streaming import assign_streaming
from siafu.partitioning.write import check_assignment, write_in_steps
from siafu.record import Progress, Say, say_nothing, silent

METHODS = get_args(Method)
METIS_MOST_NODES = 4_000_000
"""Above this `auto` streams even where METIS would fit: METIS took 33 s at 1 M nodes and
10 M neighbours of a power-law graph, streaming 1.5 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a graph is to be cut."""

    num_parts: int
    method: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise PartitionError(
                "Unknown way to cut a graph.",
                seen=f"method={self.method!r}",
                fix=f"use one of {', '.join(METHODS)}",
            )


def partition_graph(  # noqa: PLR0913 - the settings of one command
    graph: Graph,
    target: Path | str,
    *,
    num_parts: int,
    method: str = "auto",
    seed: int = 0,
    overwrite: bool = False,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Quality:
    """Write the graph as a parts folder and return the quality of the cut.

    Columns of tables are prepared as `ColumnChoices` has it.
    """
    cut = Cut(num_parts=num_parts, method=method, seed=seed)
    with make_in_steps(target, "parts", overwrite=overwrite) as partial:
        graph = prepare_in_steps(partial, graph, ColumnChoices(), say or say_nothing)
        budget = Budget(most=memory_bytes)
        return partition_in_steps(partial, graph, cut, budget=budget, progress=progress, say=say)


def partition_store(  # noqa: PLR0913 - the settings of one command
    store_path: Path | str,
    target: Path | str,
    *,
    num_parts: int,
    method: str = "auto",
    seed: int = 0,
    overwrite: bool = False,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Check a store, write it as a parts folder and return the quality of the cut.

    Killed or out of disk, the same call goes on where it was.
    """
    cut = Cut(num_parts=num_parts, method=method, seed=seed)
    job = {"store": file_facts(Path(store_path)), **asdict(cut)}
    with make_in_steps(target, "parts", job=job, overwrite=overwrite) as partial:
        graph = load_checked_store(partial, Path(store_path))
        graph = prepare_in_steps(partial, graph, ColumnChoices(), say_nothing)
        budget = Budget(most=memory_bytes)
        return partition_in_steps(partial, graph, cut, budget=budget, progress=progress)


def load_checked_store(partial: Partial, path: Path) -> Graph:
    """Return the graph of a store, whose every byte is checked once however often work stops."""
    checked = partial.has("store checked")
    graph = load_store(path, verify=not checked)
    if not checked:
        partial.end("store checked")
    return graph


def partition_in_steps(
    partial: Partial,
    graph: Graph,
    cut: Cut,
    *,
    budget: Budget | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Quality:
    """Cut the graph into the folder that is made in steps and return the quality of the cut.

    Its columns are those that a model is to see (`prepare_in_steps`).
    """
    check_num_parts(cut.num_parts, graph.num_nodes)
    if partial.has("assigned"):
        part_of = np.array(partial.load("assigned", "part_of"))
    else:
        method = _choose_within(partial, graph, cut, budget or Budget(), say or say_nothing)
        part_of = _assign(graph, replace(cut, method=method), partial, progress or silent)
        partial.save("assigned", {"part_of": part_of})
    check_assignment(graph, part_of, cut.num_parts)
    how = {"method": partial.facts("method")["method"], "seed": cut.seed}
    return write_in_steps(partial, graph, PartRows(part_of, cut.num_parts), how, progress)


def _choose_within(partial: Partial, graph: Graph, cut: Cut, budget: Budget, say: Say) -> str:
    """Return the method, whose predicted memory is told and fits."""
    # What `auto` meant at first holds: another process may find other memory free.
    known = partial.facts("method").get("method")
    method = str(known or choose_method(graph, cut, budget.free))
    predicted = predict_for(graph, method, cut.num_parts)
    peak = (predicted + held_bytes()) / 2**20
    say(f"Cutting by {method}: predicted peak memory {peak:,.0f} MiB.")
    check_cut_fits(predicted, budget, method)
    if known is None:
        partial.end("method", method=method)
    return method


def choose_method(graph: Graph, cut: Cut, available: int) -> str:
    """Return the method; what `auto` means: METIS where it fits and is quick, else streaming."""
    if cut.method != "auto":
        return cut.method
    small = graph.num_nodes <= METIS_MOST_NODES
    fits = small and predict_for(graph, "metis", cut.num_parts) <= available
    return "metis" if fits else "streaming"


def assign(graph: Graph, cut: Cut, progress: Progress | None = None) -> Array:
    """Return part_of: the part of each node of a graph in memory."""
    check_num_parts(cut.num_parts, graph.num_nodes)
    method = choose_method(graph, cut, available_bytes())
    return _assign(graph, replace(cut, method=method), None, progress or silent)


def _assign(graph: Graph, cut: Cut, partial: Partial | None, progress: Progress) -> Array:
    if cut.num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    progress("assign", 0, None)
    if cut.method == "metis":
        return assign_metis(graph, cut.num_parts, seed=cut.seed)
    if cut.method == "streaming":
        steps = partial if partial is not None and partial.is_kept else None
        return assign_streaming(
            graph, cut.num_parts, seed=cut.seed, progress=progress, partial=steps
        )
    if cut.method == "hash":
        return assign_hash(graph, cut.num_parts, seed=cut.seed)
    assert cut.method == "contiguous", f"nobody cuts by {cut.method}"
    return assign_contiguous(graph, cut.num_parts)


def assign_nodes(graph: DynamicGraph, cut: Cut, progress: Progress | None = None) -> Array:
    """Return part_of: the group of each node, few of whose edges ever lead to another group."""
    return assign(_met(graph), cut, progress)


def _met(graph: DynamicGraph) -> Graph:
    """Return the static graph of all pairs that ever meet, each once."""
    num_nodes = graph.num_nodes
    keys = np.unique(np.concatenate([graph.base.keys(), graph.deltas.added]))
    dst, src = np.divmod(keys, num_nodes)
    return graph_from_edges(src, dst, num_nodes, name=graph.name)
