"""A graph of any size, made piece by piece: power-law degrees, communities, labels, features.

Row v is in community v mod C, so that communities are not ranges of rows. Most edges come from the
own community, the others from hubs anywhere. N nodes, E edges, F features.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from siafu.graph import Array, index_dtype, write_folder
from siafu.ops.numba_jit import strict_kernel

CLASSES = 16
_COMMUNITY_ROWS = 500
_OWN_SHARE = 0.7
_HUB_POWER = 2.5
_PIECE_EDGES = 1 << 23
_PIECE_ROWS = 1 << 16
_TRAIN, _VAL, _TEST = 0.01, 0.001, 0.001


def offsets(nodes: int, edges: int) -> Array:
    """Return indptr of in-degrees that follow a power law, at least E / 2N a node."""
    draws = np.random.default_rng(1).random(nodes, np.float32)
    weights = np.cumsum(0.5 + 0.25 / np.sqrt(draws + 1e-6), dtype=np.float64)
    indptr = np.zeros(nodes + 1, np.int64)
    indptr[1:] = weights * (edges / weights[-1])
    indptr[-1] = edges
    return indptr


@strict_kernel
def _mix(value: Any) -> Any:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@strict_kernel
def _draw_sources(first: int, offsets: Array, low: int, nodes: int, src: Array) -> None:
    """Set src[i] to the source of edge low + i; row first + k ends at offsets[k + 1]."""
    communities = max(1, nodes // _COMMUNITY_ROWS)
    at = 0
    for position in range(len(src)):
        while offsets[at + 1] <= low + position:
            at += 1
        bits = _mix(np.uint64(low + position))
        one = np.float64(bits >> np.uint64(40)) / 2.0**24
        other = np.float64(bits & np.uint64(0xFFFFFFFF)) / 2.0**32
        community = (first + at) % communities
        if one < _OWN_SHARE:
            members = (nodes - community + communities - 1) // communities
            src[position] = community + communities * int(other * members)
        else:
            hub = int(other**_HUB_POWER * nodes)
            src[position] = int(_mix(np.uint64(hub)) % np.uint64(nodes))


def sources(indptr: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield (first row, offsets of the rows, sources) over all edges, whole rows at a time."""
    nodes, row = len(indptr) - 1, 0
    while row < nodes:
        beyond = int(np.searchsorted(indptr, indptr[row] + _PIECE_EDGES, side="right")) - 1
        beyond = max(row + 1, beyond)
        window = indptr[row : beyond + 1]
        src = np.empty(int(window[-1] - window[0]), index_dtype(nodes))
        _draw_sources(row, window, int(window[0]), nodes, src)
        yield row, window, src
        row = beyond


def node_pieces(nodes: int, features: int) -> Iterator[dict[str, Array]]:
    """Yield x, y and masks of the nodes in order; a label is half seen in the features."""
    communities = max(1, nodes // _COMMUNITY_ROWS)
    for low in range(0, nodes, _PIECE_ROWS):
        generator = np.random.default_rng([2, low])
        rows = np.arange(low, min(low + _PIECE_ROWS, nodes))
        y = rows % communities % CLASSES
        x = generator.standard_normal((len(rows), features), np.float32)
        x[np.arange(len(rows)), y % features] += 1
        draw = generator.random(len(rows))
        bounds = np.cumsum([_TRAIN, _VAL, _TEST])
        masks = [draw < bounds[0]]
        masks += [(draw >= bounds[k]) & (draw < bounds[k + 1]) for k in (0, 1)]
        yield {"x": x, "y": y, **dict(zip(("train", "val", "test"), masks, strict=True))}


def write_store(target: Path, *, nodes: int, edges: int, features: int) -> None:
    """Write the graph as a store."""
    indptr = offsets(nodes, edges)
    with write_folder(target, "store") as writer:
        writer.save("indptr", indptr)
        stream = writer.stream("src", (edges,), index_dtype(nodes))
        for _, _, src in sources(indptr):
            stream.append(src)
        writer.close("src")
        del indptr
        writer.save("ids", np.arange(nodes, dtype=np.int64))
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "x": ((nodes, features), np.float32),
            "y": ((nodes,), np.int64),
        }
        shapes |= {name: ((nodes,), bool) for name in ("train", "val", "test")}
        streams = {name: writer.stream(name, *shape) for name, shape in shapes.items()}
        for piece in node_pieces(nodes, features):
            for name, rows in piece.items():
                streams[name].append(rows)
        writer.facts |= {
            "name": target.stem,
            "num_nodes": nodes,
            "num_edges": edges,
            "num_features": features,
            "num_classes": CLASSES,
            "multi_label": False,
            "class_names": [],
        }


def write_tables(folder: Path, *, nodes: int, edges: int, features: int) -> None:
    """Write the graph as Parquet tables: several files of edges, one of nodes."""
    (folder / "edges").mkdir(parents=True)
    for number, (row, window, src) in enumerate(sources(offsets(nodes, edges))):
        dst = np.repeat(np.arange(row, row + len(window) - 1), np.diff(window))
        # Shuffled, as tables of the world are: the order of the store is not theirs.
        order = np.random.default_rng([3, number]).permutation(len(src))
        table = pa.table({"src": src[order], "dst": dst[order]})
        pq.write_table(table, folder / "edges" / f"{number:05d}.parquet", compression="zstd")
    ids, writer = 0, None
    for piece in node_pieces(nodes, features):
        split = np.select(
            [piece["train"], piece["val"], piece["test"]], ["train", "val", "test"], ""
        )
        x = pa.FixedSizeListArray.from_arrays(pa.array(piece["x"].reshape(-1)), features)
        numbers = np.arange(ids, ids + len(split))
        table = pa.table({"id": numbers, "label": piece["y"], "split": split, "x": x})
        writer = writer or pq.ParquetWriter(folder / "nodes.parquet", table.schema)
        writer.write_table(table)
        ids += len(split)
    assert writer is not None
    writer.close()
