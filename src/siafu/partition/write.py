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
    Partial,
    SparseFeatures,
    fingerprint_graph,
    graph_facts,
    make_in_steps,
)
from siafu.graph.columns import as_stored
from siafu.partition.assign import check_num_parts
from siafu.partition.chunks import Progress, quiet
from siafu.partition.halo import write_edges, write_sends
from siafu.partition.quality import Quality, count_training
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
    check_assignment(graph, part_of, num_parts)
    with make_in_steps(target, "parts", overwrite=overwrite) as partial:
        rows = PartRows(part_of, num_parts)
        return write_in_steps(partial, graph, rows, {"method": method, "seed": seed}, progress)


def write_in_steps(
    partial: Partial,
    graph: Graph,
    rows: PartRows,
    how: dict[str, Any],
    progress: Progress | None = None,
) -> Quality:
    """Write the parts, step by step; `how` they came about is kept as facts."""
    progress, writer = progress or quiet, partial.writer
    writers = [writer.child(f"part{part}", "part") for part in range(rows.num_parts)]
    facts = graph_facts(graph)
    fingerprint = _fingerprint(partial, graph, progress)
    for part, child in enumerate(writers):
        child.facts |= facts | {
            "part": part,
            "num_parts": rows.num_parts,
            "num_owned": len(rows.owned(part)),
            "graph_fingerprint": fingerprint,
        }
    write_edges(graph, rows, writers, partial, progress)
    if not partial.has("sends"):
        write_sends(rows, writers)
        for part, child in enumerate(writers):
            child.save("rows", rows.owned(part), dtype=np.int64)
        partial.end("sends")
    _write_vertices(graph, rows, writers, partial, progress)
    if not partial.has("whole"):
        writer.save("part_of", rows.part_of)
        graph.ids.save(writer)
        partial.end("whole")
    quality = _quality(partial, graph, rows, writers)
    writer.facts |= how | {
        "num_parts": rows.num_parts,
        "graph": facts | {"fingerprint": fingerprint},
        "quality": quality.to_facts(),
    }
    return quality


def _fingerprint(partial: Partial, graph: Graph, progress: Progress) -> str:
    if not partial.has("fingerprint"):
        progress("fingerprint", 0, None)
        partial.end("fingerprint", fingerprint=fingerprint_graph(graph))
    return str(partial.facts("fingerprint")["fingerprint"])


def _quality(
    partial: Partial, graph: Graph, rows: PartRows, writers: list[FolderWriter]
) -> Quality:
    """Return the quality of the cut, counted while its parts were written."""
    cut = [partial.facts(f"part {part}")["cut_edges"] for part in range(rows.num_parts)]
    return Quality(
        cut_edges=sum(cut),
        vertices=tuple(rows.counts()),
        edges=tuple(writer.facts["num_local_edges"] for writer in writers),
        training=count_training(graph, rows.part_of, rows.num_parts),
        halo_rows=tuple(writer.facts["num_halo"] for writer in writers),
    )


def check_assignment(graph: Graph, part_of: Array, num_parts: int) -> None:
    """Raise unless every vertex has a part."""
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
    graph: Graph,
    rows: PartRows,
    writers: list[FolderWriter],
    partial: Partial,
    progress: Progress,
) -> None:
    """Write what has one row a vertex; each array is a step."""
    columns = _vertex_columns(graph)
    for done, (name, split, *arrays) in enumerate(columns):
        progress("vertices", done, len(columns))
        if not partial.has(f"vertices {name}"):
            split(rows, writers, name, *arrays)
            partial.end(f"vertices {name}")
    progress("vertices", len(columns), len(columns))


def _vertex_columns(graph: Graph) -> list[tuple[Any, ...]]:
    """Return the name of each array, how it is split, and what it is split from."""
    plain: dict[str, Any] = {name: getattr(graph, name) for name in ("y", *MASKS)}
    columns: list[tuple[Any, ...]] = []
    if isinstance(graph.ids, IntegerIds):
        plain["ids"] = graph.ids.values
    else:
        offsets = graph.ids.offsets
        columns.append(("ids_offsets", split_offsets, offsets))
        columns.append(("ids_utf8", split_entries, offsets, graph.ids.utf8))
    if isinstance(graph.x, SparseFeatures):
        indptr = graph.x.indptr
        columns.append(("x_indptr", split_offsets, indptr))
        columns.append(("x_index", split_entries, indptr, graph.x.index))
        columns.append(("x_value", split_entries, indptr, graph.x.value))
    else:
        plain["x"] = graph.x
    columns += [
        (name, split_rows, as_stored(name, array))
        for name, array in plain.items()
        if array is not None
    ]
    return columns
