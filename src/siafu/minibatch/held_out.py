"""Edges kept from a graph to test link prediction on: nothing is learnt from them or over them.

The side an edge falls on is drawn by the numbers of its two ends, whichever way it points, so an
edge and its reverse are never on two sides, and each rank finds the sides of its edges by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.comm import World, exchange_halo
from siafu.errors import ConfigError, DataError
from siafu.graph import (
    Array,
    Column,
    Graph,
    check_columns,
    folder_kind,
    forget,
    open_folder,
    parse_split,
    verify_columns,
    write_folder,
)
from siafu.graph.columns import OFFSETS
from siafu.graph.manifest import MOST_ROWS
from siafu.minibatch.layerwise import row_spans
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import CSR, DrawKey, uniform_pairs
from siafu.shard import ScratchRows, Shard, new_rows

DEFAULT_SPLIT = "0.8,0.1"
_PURPOSE = ORDER_PURPOSE - 2
_EDGES_AT_ONCE = 1 << 18
_TRAIN, _VAL, _TEST = 0, 1, 2
_EDGE_ARRAYS = ("src", "edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Pairs of source and destination by number in the whole graph, int64 [H, 2], each once."""

    val: Array
    test: Array

    def save(self, parts: Path) -> None:
        """Write them beside a parts folder, in place of those of a process that was killed."""
        with write_folder(_beside(parts), "links", overwrite=True) as writer:
            writer.save("val", self.val)
            writer.save("test", self.test)

    @classmethod
    def load(cls, parts: Path | str) -> "HeldOut":
        """Return what lies beside a parts folder."""
        folder = open_folder(_beside(Path(parts)), "links")
        pairs = Column((None, 2), OFFSETS, span=(0, MOST_ROWS), is_needed=True)
        columns = {"val": pairs, "test": pairs}
        check_columns(folder, columns)
        verify_columns(folder, columns)
        return cls(folder.load("val"), folder.load("test"))

    def share(self, shard: Shard) -> "HeldOut":
        """Return those whose source this rank owns."""
        last = max(int(pairs.max(initial=0)) for pairs in (self.val, self.test))
        if last >= shard.num_nodes:
            raise DataError(
                "A held-out edge names a node that does not exist.",
                seen=f"row {last} of {shard.num_nodes}",
                fix="start the run again: the held-out edges are of another graph",
            )
        mine = (shard.part_of[pairs[:, 0]] == shard.world.rank for pairs in (self.val, self.test))
        return HeldOut(*(p[chosen] for p, chosen in zip((self.val, self.test), mine, strict=True)))


def has_held_out(parts: Path | str) -> bool:
    """True when a parts folder was cut without edges that lie beside it."""
    return folder_kind(_beside(Path(parts))) == "links"


def _beside(parts: Path) -> Path:
    return parts.with_suffix(".links")


def hold_out_edges(graph: Graph, split: str | None, seed: int) -> tuple[Graph, HeldOut]:
    """Return the graph without validation and test edges, and those; loops all stay.

    `split` has the shares for training and validation, as `0.8,0.1`.
    """
    shares = _shares(split)
    side_E, num_training = np.zeros(graph.num_edges, np.uint8), 0
    for edges, src, dst in _edges(graph):
        side_E[edges] = _sides(src, dst, shares, seed)
        num_training += int(np.count_nonzero((side_E[edges] == _TRAIN) & (src != dst)))
    held = HeldOut(_pairs(graph, side_E == _VAL), _pairs(graph, side_E == _TEST))
    _check_left(num_training, graph.num_edges, graph.name, split)
    return _without(graph, side_E != _TRAIN), held


def hold_out_of_shard(shard: Shard, split: str | None, seed: int) -> tuple[Shard, HeldOut]:
    """Return what `hold_out_edges` does before a graph is cut: this rank's share of both.

    Held-out edges are shared out by destination. Edges on disk are copied to a file that goes with
    the shard. Every rank calls this together.
    """
    shares, kept, num_training = _shares(split), _KeptEdges(shard), 0
    held: dict[int, list[Array]] = {_VAL: [], _TEST: []}
    with shard.world.second_line() as channel:
        numbers = column_numbers(shard, channel)
    for low, high in row_spans(shard.csr.indptr, _EDGES_AT_ONCE, _EDGES_AT_ONCE):
        src, dst = (ends.numpy() for ends in edge_ends(shard, numbers, low, high))
        side = _sides(src, dst, shares, seed)
        num_training += int(np.count_nonzero((side == _TRAIN) & (src != dst)))
        for which, found in held.items():
            found.append(np.stack([src[side == which], dst[side == which]], axis=1))
        kept.add(low, high, torch.from_numpy(side == _TRAIN))
    counts = [float(num_training), float(shard.csr.num_edges)]
    left, of = (int(sum(row)) for row in zip(*shard.world.gather_numbers(counts), strict=True))
    _check_left(left, of, shard.name, split)
    pairs = (np.concatenate(found) for found in held.values())
    return kept.shard(), HeldOut(*(_distinct(found[:, 0], found[:, 1]) for found in pairs))


class _KeptEdges:
    """The edges of a shard that stay, copied row after row to where the others lie."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._count = shard, 0
        self._degree = torch.zeros_like(shard.csr.indptr)
        columns = {name: shard.reader(name) for name in _EDGE_ARRAYS}
        self._columns = {name: reader for name, reader in columns.items() if reader is not None}
        self._kept = {
            name: new_rows(reader.shape, reader.dtype, on_disk=shard.is_mapped)
            for name, reader in self._columns.items()
        }

    def add(self, low: int, high: int, keep_E: Tensor) -> None:
        """Copy those of the edges into some rows that `keep_E` tells."""
        indptr = self._shard.csr.indptr
        first = int(indptr[low])
        edges = first + keep_E.nonzero().squeeze(1)
        for name, reader in self._columns.items():
            self._kept[name].write(self._count, reader.read(edges))
        before = torch.cat([torch.zeros(1, dtype=torch.int64), keep_E.cumsum(0)])
        self._degree[low + 1 : high + 1] = before[indptr[low : high + 1] - first].diff()
        self._count += len(edges)

    def shard(self) -> Shard:
        """Return the shard with these edges alone."""
        whole, files = self._shard, {}
        held: dict[str, Tensor | None] = dict.fromkeys(_EDGE_ARRAYS)
        for name, rows in self._kept.items():
            if isinstance(rows, ScratchRows):
                files[name] = rows.array[: self._count]
                held[name] = torch.from_numpy(files[name])
            else:
                held[name] = rows.slice(0, self._count).clone()
        index = held["src"]
        assert index is not None
        return replace(
            whole,
            csr=CSR(self._degree.cumsum(0), index, whole.csr.num_cols, held["edge_weight"]),
            edge_attr=held["edge_attr"],
            edge_type=held["edge_type"],
            edge_y=None,
            edge_split=None,
            _files=whole._files | files,
            _mapped=[*whole._mapped, *files.values()],
        )


def column_numbers(shard: Shard, channel: World) -> Tensor:
    """Return the number in the whole graph of each column of a shard on the host."""
    return torch.cat([shard.row_ids, exchange_halo(shard.row_ids, shard.plan, channel)])


def edge_ends(shard: Shard, numbers_C: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return source and destination, by number, of each edge into some owned rows."""
    indptr, reader = shard.csr.indptr, shard.reader("src")
    assert reader is not None
    columns = reader.read(torch.arange(int(indptr[low]), int(indptr[high])))
    degree = indptr[low : high + 1].diff()
    return numbers_C.index_select(0, columns), shard.row_ids[low:high].repeat_interleave(degree)


def _sides(src: Array, dst: Array, shares: tuple[float, float], seed: int) -> Array:
    low, high = (torch.from_numpy(pick(src, dst)) for pick in (np.minimum, np.maximum))
    draw = uniform_pairs(DrawKey(seed, 0, _PURPOSE), low, high, 1, dtype=torch.float64)[:, 0]
    side = np.searchsorted([shares[0], shares[0] + shares[1]], draw.numpy(), side="right")
    return np.where(src == dst, _TRAIN, side)


def _check_left(num_training: int, num_edges: int, name: str, split: str | None) -> None:
    if not num_training:
        raise DataError(
            "No edges are left to train on.",
            seen=f"{num_edges:,} edges in {name}, loops left out; split {split or DEFAULT_SPLIT}",
            fix="give a graph with more edges, or a larger first number to --split",
        )


def _shares(split: str | None) -> tuple[float, float]:
    train, val = parse_split(split or DEFAULT_SPLIT)
    if train >= 1:
        raise ConfigError(
            "Edges are split by shares.",
            seen=f"--split {split} with --task link",
            fix=f"give the shares for training and validation, as --split {DEFAULT_SPLIT}",
        )
    return train, val


def _edges(graph: Graph) -> Iterator[tuple[slice, Array, Array]]:
    """Yield pieces of the edges: which, their sources and their destinations."""
    for low in range(0, graph.num_edges, _EDGES_AT_ONCE):
        high = min(low + _EDGES_AT_ONCE, graph.num_edges)
        src = np.asarray(graph.src[low:high], np.int64)
        yield slice(low, high), src, _destinations(graph, np.arange(low, high))
        forget(graph.src)


def _destinations(graph: Graph, edges: Array) -> Array:
    return np.searchsorted(graph.indptr, edges, side="right") - 1


def _pairs(graph: Graph, chosen_E: Array) -> Array:
    edges = np.flatnonzero(chosen_E)
    return _distinct(np.asarray(graph.src[edges], np.int64), _destinations(graph, edges))


def _distinct(src: Array, dst: Array) -> Array:
    pairs = np.stack([src, dst], axis=1)[np.lexsort((dst, src))]
    is_new = np.ones(len(pairs), bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[is_new]


def _without(graph: Graph, dropped_E: Array) -> Graph:
    gone = np.bincount(_destinations(graph, np.flatnonzero(dropped_E)), minlength=graph.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(np.diff(graph.indptr) - gone)]).astype(np.int64)
    columns: dict[str, Any] = {name: column[~dropped_E] for name, column in graph.edge_arrays()}
    return replace(graph, indptr=indptr, **columns)
