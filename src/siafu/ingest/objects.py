"""Whatever a Python user hands over as one source that everything else takes."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from siafu.errors import DataError
from siafu.ingest.formats.pyg import as_numpy, graph_from_data
from siafu.ingest.frames import file_of_frame, is_frame, library_of, tables_of_networkx


@dataclass(frozen=True, slots=True)
class Given:
    """A source of a graph, and its node table where that is apart."""

    source: Any
    nodes: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The node table as a setting."""
        return {} if self.nodes is None else {"nodes": self.nodes}


def given_data(
    data: Any = None, *, nodes: Any = None, edges: Any = None, x: Any = None, y: Any = None
) -> Given:
    """Return what a user gave as a name, a path or an object that `load` takes.

    Tables in memory become files of the cache, read as any others. A matrix or an `edge_index` has
    its features `x` and labels `y` beside it.
    """
    if data is not None and edges is not None:
        raise DataError(
            "The edges are given twice.",
            seen=f"{_shown(data)}, and edges={_shown(edges)}",
            fix="leave one of them out",
        )
    data = edges if data is None else data
    if data is None:
        raise DataError(
            "There are no edges.",
            seen="neither data nor edges",
            fix="give a name, a path or an object, or edges= (and nodes=)",
        )
    if isinstance(nodes, Path) or is_frame(nodes):
        nodes = str(file_of_frame(nodes, "nodes") if is_frame(nodes) else nodes)
    if is_frame(data):
        return Given(file_of_frame(data, "edges"), nodes)
    if library_of(data) == "networkx":
        own, between = tables_of_networkx(data)
        return Given(file_of_frame(between, "edges"), str(file_of_frame(own, "nodes")))
    matrix = _as_matrix(data)
    if matrix is not None:
        return Given(_graph_of_matrix(matrix, x, y), nodes)
    if x is not None or y is not None:
        raise DataError(
            "x and y go with a matrix of edges.",
            seen=f"x or y beside {_shown(data)}",
            fix="give a sparse matrix or edge_index [2, E], or leave them out",
        )
    return Given(data, nodes)


def _shown(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else type(data).__name__


def _as_matrix(data: Any) -> SimpleNamespace | None:
    """Return the edges of an adjacency matrix or an edge index; None for anything else."""
    if library_of(data) == "scipy" and hasattr(data, "tocoo"):
        entries = data.tocoo()
        rows, columns = entries.shape
        if rows != columns:
            raise DataError(
                "The matrix of edges is not square.",
                seen=f"shape {entries.shape}",
                fix="give one row and one column per node",
            )
        weight = entries.data if np.any(entries.data != 1) else None
        edges = np.stack([entries.row, entries.col])
        return SimpleNamespace(edge_index=edges, edge_weight=weight, num_nodes=rows)
    if isinstance(data, np.ndarray | torch.Tensor) and len(data) == 2 and data.ndim == 2:
        return SimpleNamespace(edge_index=data, edge_weight=None, num_nodes=None)
    return None


def _graph_of_matrix(matrix: SimpleNamespace, x: Any, y: Any) -> Any:
    if library_of(x) == "scipy":
        entries = x.tocoo()
        places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
        values = torch.from_numpy(entries.data)
        x = torch.sparse_coo_tensor(places, values, entries.shape, check_invariants=True)
    labels = None if y is None else as_numpy(y)
    for name, rows in (("x", x), ("y", labels)):
        if rows is not None and matrix.num_nodes not in (None, len(rows)):
            raise DataError(
                f"{name} does not fit the matrix of edges.",
                seen=f"{len(rows)} rows of {name}, {matrix.num_nodes} nodes",
                fix="give one row per node",
            )
    matrix.x, matrix.y, matrix.name = x, labels, "matrix"
    return graph_from_data(matrix)[0]
