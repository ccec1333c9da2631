"""The parts folder: each part's edges in local columns, its halo, and its vertices' data.

Memory is O(N) and a piece: edges and features only pass through.
"""

from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import PartitionError
from siafu.graph import (
    MASKS,
    Array,
    FolderWriter,
    Graph,
    IntegerIds,
    SparseFeatures,
    fingerprint_graph,
    graph_facts,
    write_folder,
)
from siafu.partition.assign import check_num_parts
from siafu.partition.chunks import Progress, forget, quiet
from siafu.partition.halo import write_edges, write_sends
from siafu.partition.quality import Quality, score
from siafu.partition.split import PartRows, split_entries, split_offsets, split_rows


def write_parts(  # noqa: PLR0913 - every argument is a fact the folder records
    graph: Graph,
    part_of: Array,
    target: Path | str,
    *,
    num_parts: int,
    method: str,
    seed: int,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Quality:
    """Write the graph cut by `part_of` as a parts folder and return the cut's quality."""
    progress = progress or quiet
    _check_assignment(graph, part_of, num_parts)
    with write_folder(target, "parts", overwrite=overwrite) as writer:
        writers = [writer.child(f"part{part}", "part") for part in range(num_parts)]
        quality = score(graph, part_of, num_parts, progress=progress)
        progress("fingerprint", 0, None)
        facts = graph_facts(graph)
        fingerprint = fingerprint_graph(graph)
        _forget_all(graph)
        rows = PartRows(part_of, num_parts)
        for part, child in enumerate(writers):
            child.facts |= facts | {
                "part": part,
                "num_parts": num_parts,
                "num_owned": len(rows.owned(part)),
                "graph_fingerprint": fingerprint,
            }
            child.save("rows", rows.owned(part))
        write_edges(graph, rows, writers, writer.path / "scratch", progress)
        write_sends(rows, writers)
        _write_vertices(graph, rows, writers, progress)
        writer.save("part_of", rows.part_of)
        graph.ids.save(writer)
        writer.facts |= {
            "num_parts": num_parts,
            "method": method,
            "seed": seed,
            "graph": facts | {"fingerprint": fingerprint},
            "quality": quality.to_facts(),
        }
    return quality


def _check_assignment(graph: Graph, part_of: Array, num_parts: int) -> None:
    check_num_parts(num_parts, graph.num_nodes)
    low, high = int(np.min(part_of)), int(np.max(part_of))
    if len(part_of) != graph.num_nodes or low < 0 or high >= num_parts:
        raise PartitionError(
            "The assignment does not fit the graph.",
            seen=f"{len(part_of)} rows with parts {low} to {high}, for {graph.num_nodes} vertices "
            f"and {num_parts} parts",
            fix=f"give each vertex a part from 0 to {num_parts - 1}",
        )


def _write_vertices(
    graph: Graph, rows: PartRows, writers: list[FolderWriter], progress: Progress
) -> None:
    columns: dict[str, Any] = {name: getattr(graph, name) for name in ("y", *MASKS)}
    if isinstance(graph.ids, IntegerIds):
        columns["ids"] = graph.ids.values
    else:
        split_offsets(rows, writers, "ids_offsets", graph.ids.offsets)
        split_entries(rows, writers, "ids_utf8", graph.ids.offsets, graph.ids.utf8)
    if isinstance(graph.x, SparseFeatures):
        split_offsets(rows, writers, "x_indptr", graph.x.indptr)
        split_entries(rows, writers, "x_index", graph.x.indptr, graph.x.index)
        split_entries(rows, writers, "x_value", graph.x.indptr, graph.x.value)
    else:
        columns["x"] = graph.x
    present = {name: column for name, column in columns.items() if column is not None}
    for done, (name, column) in enumerate(present.items()):
        progress("vertices", done, len(present))
        split_rows(rows, writers, name, column)
    progress("vertices", len(present), len(present))


def _forget_all(graph: Graph) -> None:
    arrays = [array for _, array in graph.edge_arrays()]
    arrays += [getattr(graph.ids, name) for name in graph.ids.__slots__]
    if isinstance(graph.x, SparseFeatures):
        arrays += [graph.x.index, graph.x.value]
    elif graph.x is not None:
        arrays.append(graph.x)
    for array in arrays:
        forget(array)
