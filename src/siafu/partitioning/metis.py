"""METIS, run in a child process so that its crash becomes an error with a name.

It cuts the undirected graph behind a directed one, without loops or repeated edges.
"""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from siafu.errors import PartitionError
from siafu.graph import Array, Graph, index_dtype, scratch_folder
from siafu.ops.numba_jit import strict_kernel
from siafu.partitioning.assign import assign_contiguous, check_num_parts
from siafu.partitioning.chunks import EDGES_AT_ONCE, edge_pieces, ranges

_CHILD = Path(__file__).with_name("metis_child.py")


def assign_metis(graph: Graph, num_parts: int, *, seed: int = 0) -> Array:
    """Return part_of with few edges cut; nodes, in-edges and training nodes balanced."""
    check_num_parts(num_parts, graph.num_nodes)
    with scratch_folder() as folder:
        if num_parts == 1 or not _write_inputs(graph, folder):
            return assign_contiguous(graph, num_parts)
        _run_child(_child_command(folder, num_parts, seed))
        return np.load(folder / "part_of.npy")


def cut_weighted(
    graph: tuple[Array, Array, Array], weights: Array, num_parts: int, seed: int
) -> Array:
    """Return part_of of a graph in memory: offsets, neighbours, weights of edges.

    Each edge is there both ways; a column of the nodes' weights that is all zeros is left out.
    """
    index = _pymetis().zero_copy_dtype()
    with scratch_folder() as folder:
        arrays = dict(zip(("offsets", "neighbours", "edge_weights"), graph, strict=True))
        arrays["weights"] = weights[:, weights.any(axis=0)]
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", np.ascontiguousarray(array, index))
        _run_child(_child_command(folder, num_parts, seed))
        return np.load(folder / "part_of.npy")


def has_metis() -> bool:
    """Return whether pymetis is there to be used."""
    try:
        _pymetis()
    except PartitionError:
        return False
    return True


def _pymetis() -> Any:
    """Return the module, which nothing but METIS needs."""
    try:
        return importlib.import_module("pymetis")
    except ImportError as error:
        raise PartitionError(
            "METIS is not installed.",
            seen=str(error),
            fix="pip install pymetis, or cut by another method: streaming",
        ) from error


def _write_inputs(graph: Graph, folder: Path) -> bool:
    """Write what METIS reads; return False for a graph without edges, which it can't cut."""
    index = _pymetis().zero_copy_dtype()
    offsets, neighbours = symmetric_adjacency(graph)
    if not len(neighbours):
        return False
    _check_fits(len(neighbours), index)
    np.save(folder / "offsets.npy", offsets.astype(index))
    wide = open_memmap(folder / "neighbours.npy", "w+", index, neighbours.shape)
    for low, high in ranges(len(neighbours), EDGES_AT_ONCE):
        wide[low:high] = neighbours[low:high]
    wide.flush()
    columns = [np.ones(graph.num_nodes, np.int64), np.diff(graph.indptr)]
    if graph.train is not None:
        columns.append(np.asarray(graph.train, np.int64))
    # METIS divides by each constraint's total.
    used = [column for column in columns if column.any()]
    np.save(folder / "weights.npy", np.stack(used, axis=1).astype(index))
    return True


def _check_fits(num_neighbours: int, index: np.dtype[np.integer]) -> None:
    if num_neighbours > np.iinfo(index).max:
        raise PartitionError(
            "This METIS counts edges in too few bits.",
            seen=f"{num_neighbours} neighbours, {index} in pymetis",
            fix="use `--method streaming` (`--partition` in training), or a 64-bit pymetis",
        )


def _child_command(folder: Path, num_parts: int, seed: int) -> list[str]:
    # -P: this folder must not become the first place where the child looks for modules.
    arguments = (folder, num_parts, seed, os.getpid())
    return [sys.executable, "-P", str(_CHILD), *map(str, arguments)]


def _run_child(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode == 0:
        return
    said = (outcome.stdout + outcome.stderr).strip().splitlines()
    fix = "use `--method streaming` (`--partition` in training), which runs no native partitioner"
    if outcome.returncode < 0:
        name = signal.Signals(-outcome.returncode).name
        if name == "SIGKILL":
            fix = f"it most likely ran out of memory: {fix}"
        seen = f"METIS was ended by {name}"
    else:
        seen = f"METIS ended with code {outcome.returncode}"
    raise PartitionError(
        "METIS could not cut the graph.", seen="; ".join([seen, *said[-3:]]), fix=fix
    )


def symmetric_adjacency(graph: Graph) -> tuple[Array, Array]:
    """Return (offsets, neighbours), each edge in both directions once.

    The neighbours are in the narrowest index type, so this holds 8 bytes per edge below 2**31
    nodes.
    """
    offsets = np.zeros(graph.num_nodes + 1, np.int64)
    for window, src in edge_pieces(graph):
        _count(window.rows, src, offsets)
    np.cumsum(offsets, out=offsets)
    fill = offsets[:-1].copy()
    neighbours = np.empty(offsets[-1], index_dtype(graph.num_nodes))
    for window, src in edge_pieces(graph):
        _fill(window.rows, src, fill, neighbours)
    return offsets, neighbours[: _drop_repeats(offsets, neighbours)]


@strict_kernel
def _count(rows: tuple[Array, int, int], src: Array, offsets: Array) -> None:
    starts, first, low = rows
    at = 0
    for position in range(len(src)):
        while starts[at + 1] <= low + position:
            at += 1
        if src[position] != first + at:
            offsets[first + at + 1] += 1
            offsets[src[position] + 1] += 1


@strict_kernel
def _fill(rows: tuple[Array, int, int], src: Array, fill: Array, neighbours: Array) -> None:
    starts, first, low = rows
    at = 0
    for position in range(len(src)):
        while starts[at + 1] <= low + position:
            at += 1
        row, node = first + at, src[position]
        if node != row:
            neighbours[fill[row]] = node
            neighbours[fill[node]] = row
            fill[row] += 1
            fill[node] += 1


@strict_kernel
def _drop_repeats(offsets: Array, neighbours: Array) -> int:
    """Sort each row, keep each neighbour once, close the gaps; return how many remain."""
    kept = 0
    low = 0
    for row in range(len(offsets) - 1):
        high = offsets[row + 1]
        neighbours[low:high].sort()
        for position in range(low, high):
            if position == low or neighbours[position] != neighbours[position - 1]:
                neighbours[kept] = neighbours[position]
                kept += 1
        low = high
        offsets[row + 1] = kept
    return kept
