"""Cutting a graph or a store into a parts folder."""

from pathlib import Path

import numpy as np

from siafu.errors import PartitionError, StoreError
from siafu.graph import Array, Graph, load_store
from siafu.partition.assign import assign_contiguous, assign_hash, check_num_parts
from siafu.partition.chunks import Progress, quiet
from siafu.partition.memory import available_bytes, check_memory, predict_for
from siafu.partition.metis import assign_metis
from siafu.partition.quality import Quality
from siafu.partition.streaming import assign_streaming
from siafu.partition.write import write_parts

METHODS = ("auto", "metis", "streaming", "contiguous", "hash")
METIS_MOST_VERTICES = 4_000_000
"""Above this `auto` streams even where METIS would fit: METIS took 33 s at 1 M vertices and
10 M neighbours of a power-law graph, streaming 1.5 s."""


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
) -> Quality:
    """Write the graph as a parts folder and return the quality of the cut."""
    check_num_parts(num_parts, graph.num_nodes)
    _check_target(Path(target), overwrite)
    available = available_bytes(memory_bytes)
    method = choose_method(graph, num_parts, available) if method == "auto" else method
    _check_method(method)
    check_memory(predict_for(graph, method, num_parts), available, method)
    part_of = _assign(graph, num_parts, method, seed, progress or quiet)
    return write_parts(
        graph,
        part_of,
        target,
        num_parts=num_parts,
        method=method,
        seed=seed,
        overwrite=overwrite,
        progress=progress,
    )


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
    """Check a store, write it as a parts folder and return the quality of the cut."""
    return partition_graph(
        load_store(store_path),
        target,
        num_parts=num_parts,
        method=method,
        seed=seed,
        overwrite=overwrite,
        memory_bytes=memory_bytes,
        progress=progress,
    )


def choose_method(graph: Graph, num_parts: int, available: int) -> str:
    """Return what `auto` means: METIS where it fits and is quick, else streaming."""
    small = graph.num_nodes <= METIS_MOST_VERTICES
    fits = small and predict_for(graph, "metis", num_parts) <= available
    return "metis" if fits else "streaming"


def _check_target(target: Path, overwrite: bool) -> None:
    # write_folder says the same, but only after the assignment has been computed.
    if target.exists() and not overwrite:
        raise StoreError(
            "The target exists already.",
            seen=str(target),
            fix="name another folder, remove it, or pass --overwrite",
        )


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise PartitionError(
            "Unknown way to cut a graph.",
            seen=f"method={method!r}",
            fix=f"use one of {', '.join(METHODS)}",
        )


def _assign(graph: Graph, num_parts: int, method: str, seed: int, progress: Progress) -> Array:
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    progress("assign", 0, None)
    if method == "metis":
        return assign_metis(graph, num_parts, seed=seed)
    if method == "streaming":
        return assign_streaming(graph, num_parts, progress=progress)
    if method == "hash":
        return assign_hash(graph, num_parts, seed=seed)
    return assign_contiguous(graph, num_parts)
