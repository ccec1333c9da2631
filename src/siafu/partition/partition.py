"""Cutting a graph or a store into a parts folder."""

from pathlib import Path

from siafu.errors import PartitionError
from siafu.graph import Array, Graph, load_store
from siafu.partition.assign import assign_contiguous, assign_hash, check_num_parts
from siafu.partition.chunks import Progress, quiet
from siafu.partition.metis import assign_metis
from siafu.partition.quality import Quality
from siafu.partition.write import write_parts

METHODS = ("auto", "metis", "contiguous", "hash")


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
    method = "metis" if method == "auto" else method
    (progress or quiet)("assign", 0, None)
    part_of = _assign(graph, num_parts, method, seed)
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


def _assign(graph: Graph, num_parts: int, method: str, seed: int) -> Array:
    if method == "metis":
        return assign_metis(graph, num_parts, seed=seed)
    if method == "hash":
        return assign_hash(graph, num_parts, seed=seed)
    if method == "contiguous":
        return assign_contiguous(graph, num_parts)
    raise PartitionError(
        "Unknown way to cut a graph.", seen=f"method={method!r}", fix=f"use one of {METHODS}"
    )
