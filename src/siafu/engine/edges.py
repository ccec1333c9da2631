"""Classes or numbers of the edges of a static graph, from the rows of both ends.

An edge lies with the rank of its destination, where the row of its source is fetched as a halo row.
Shapes: E edges into owned rows, A asked about, N owned rows, R halo rows, D width, O outputs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from siafu.comm import exchange_halo
from siafu.config import ResolvedConfig, RunConfig
from siafu.engine.infer import SPLIT_NAMES, node_targets, prediction_columns, row_pieces, write_part
from siafu.engine.networks.network import Network
from siafu.engine.networks.pipelined import RowsInMemory
from siafu.errors import ConfigError, DataError
from siafu.graph import MASKS
from siafu.nn import Draws, PairHead
from siafu.nn.precision import weight_type
from siafu.partitioning import Parts, edge_sides
from siafu.shard import Shard

_EDGES_AT_ONCE = 1 << 18


class EdgeHead(PairHead):
    """PairHead that adds a map of the features of an edge, where edges have some."""

    def __init__(self, width: int, out_width: int, hidden: int, edge_width: int) -> None:
        super().__init__(width, out_width, hidden)
        self.edge = nn.Linear(edge_width, hidden, bias=False) if edge_width else None


class EdgeNetwork(RowsInMemory):
    """A model of node rows, and a head that makes answers about edges of them."""

    def __init__(self, nodes: Network, head: EdgeHead, shard: Shard, train: Tensor) -> None:
        """`train` are the edges to learn from; `shard` is that of the nodes."""
        self.nodes, self.head, self._shard, self._train = nodes, head, shard, train
        self.strategy, self.book = nodes.strategy, nodes.book
        self.module = nn.ModuleDict({"model": nodes.module, "head": head})

    def training_logits(self) -> Tensor:
        """Return out_AO of the training edges."""
        halves = self._halves()
        return self._joined(*halves, self._train)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Return out_EO of every edge into owned rows, some at a time."""
        halves, count = self._halves(), self._shard.csr.num_edges
        edges = torch.arange(count, device=self._shard.world.device)
        pieces = edges.split(_EDGES_AT_ONCE) if count else (edges,)
        return torch.cat([self._joined(*halves, piece) for piece in pieces])

    def embeddings(self) -> Tensor:
        """Return the rows of nodes that edges are judged by."""
        return self.nodes.logits()

    def _halves(self) -> tuple[Tensor, Tensor]:
        """Return what sources, of all columns, and destinations add to the answer."""
        rows_ND, shard = self.nodes.logits(), self._shard
        # Mapped first: no row travels wider than the head needs.
        source_NH = self.head.source(rows_ND)
        halo_RH = exchange_halo(source_NH, shard.plan, shard.world)
        return torch.cat([source_NH, halo_RH]), self.head.target(rows_ND)

    def _joined(self, source_CH: Tensor, target_NH: Tensor, edges_A: Tensor) -> Tensor:
        csr, attr = self._shard.csr, self._shard.edge_attr
        row_A = torch.searchsorted(csr.indptr, edges_A, right=True) - 1
        sums = source_CH[csr.index[edges_A].long()] + target_NH[row_A]
        if self.head.edge is not None:
            assert attr is not None, "the head was made for their width"
            sums = sums + self.head.edge(attr[edges_A].to(sums.dtype))
        return self.head.joined(sums)


def edge_view(config: RunConfig, shard: Shard) -> Shard:
    """Return the shard with edges in the place of nodes, as far as targets are concerned.

    All ranks call this together; the graph itself, and what models read of it, is left alone.
    """
    if shard.edge_y is None:
        raise DataError(
            "The edges have no targets to learn.",
            seen=f"--task edge with {shard.name}",
            fix="name the column that has them with --edge-label, or use --task node or link",
        )
    split_E = shard.edge_split
    if split_E is None or config.split is not None:
        split_E = _draw_split(config, shard)
    asked = _with_split(shard, split_E)
    if not asked.mask_totals["train"]:
        raise DataError(
            "No edges are there to train on.",
            seen=f"{shard.name}: edges of the splits {asked.mask_totals}",
            fix="draw the splits anew from the targets: --split 0.6,0.2",
        )
    return told_of_edges(asked)


def known_edges(shard: Shard) -> Shard:
    """Return the same for inference: what the data tells of its edges, which may be nothing."""
    split_E = shard.edge_split
    if split_E is None:
        split_E = torch.zeros(shard.csr.num_edges, dtype=torch.uint8)
    return told_of_edges(_with_split(shard, split_E))


def _with_split(shard: Shard, split_E: Tensor) -> Shard:
    """Return the shard with masks of edges, and how many of all ranks' each has."""
    masks = {name: (split_E == 1 + k).nonzero().squeeze(1) for k, name in enumerate(MASKS)}
    counts = shard.world.gather_numbers([float(len(rows)) for rows in masks.values()])
    totals = {name: int(sum(row[k] for row in counts)) for k, name in enumerate(MASKS)}
    return replace(shard, masks=masks, mask_totals=totals)


def told_of_edges(shard: Shard) -> Shard:
    """Return the shard with the targets of edges in the place of those of nodes."""
    return replace(
        shard,
        y=shard.edge_y,
        multi_label=False,
        num_classes=shard.num_edge_classes,
        num_targets=shard.num_edge_targets,
        class_names=shard.edge_class_names,
        target_names=shard.edge_target_names,
    )


def edge_numbers(shard: Shard) -> tuple[Tensor, Tensor]:
    """Return source and destination of each edge, by number in the whole graph."""
    return shard.column_ids[shard.csr.index.long()], shard.row_ids[shard.csr.rows()]


def _draw_split(config: RunConfig, shard: Shard) -> Tensor:
    """Return uint8 [E]: the split of each edge that has a target."""
    source, target = (ends.cpu() for ends in edge_numbers(shard))
    side = edge_sides(source, target, config.split, config.seed)
    assert shard.edge_y is not None
    y = shard.edge_y.cpu()
    known = ~y.isnan().all(dim=1) if y.is_floating_point() else y >= 0
    return torch.where(known, side, 0).to(shard.world.device)


def edge_network(config: ResolvedConfig, nodes: Network, shard: Shard, asked: Shard) -> EdgeNetwork:
    """Return the network of a run about edges, its head drawn from the seed alike on all ranks."""
    width = 0 if shard.edge_attr is None else shard.edge_attr.size(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        head = EdgeHead(config.hidden, asked.num_outputs, config.hidden, width)
    head = head.to(shard.world.device, weight_type(config.precision))
    return EdgeNetwork(nodes, head, shard, asked.train)


def check_edge_settings(config: RunConfig) -> None:
    """Raise where edges are to be learnt in a way that can't be done."""
    if config.chosen.unit != "graph":
        told = "" if config.edge_label is None else f" (--edge-label {config.edge_label})"
        raise ConfigError(
            "Classes and numbers of edges are learnt on the whole graph.",
            seen=f"--task edge{told} with --strategy {config.strategy}",
            fix="use --strategy halo, sar or adaqp, or leave it out",
        )
    if config.prune:
        raise ConfigError(
            "Edges are judged by the rows of all nodes, so none can be left out.",
            seen="--prune with --task edge",
            fix="leave --prune out",
        )


@torch.no_grad()
def write_edges(
    network: EdgeNetwork, asked: Shard, draws: Draws, parts: Parts, target: Path
) -> None:
    """Write a row for each edge: src, dst, what is told of it, and its split.

    Of a table of edges also which row it was: edges between the same nodes are told apart by it.
    """
    network.module.eval()
    draws.training = False
    logits, targets, all_ids = network.logits(), node_targets(asked), parts.ids
    row_E = parts.part(asked.world.rank).load_if_present("edge_row")
    source_E, target_E = (ends.cpu().numpy() for ends in edge_numbers(asked))
    split_E = np.zeros(len(source_E), np.int8)
    for number, rows in enumerate(asked.masks.values()):
        split_E[rows.cpu().numpy()] = 1 + number

    def table(low: int, high: int) -> pa.Table:
        columns: dict[str, Any] = {
            "src": all_ids.take(source_E[low:high]).to_arrow(),
            "dst": all_ids.take(target_E[low:high]).to_arrow(),
        }
        if row_E is not None:
            rows = np.asarray(row_E[low:high])
            columns["row"] = pa.array(rows, mask=rows < 0)
        y = None if asked.y is None else asked.y[low:high]
        columns |= prediction_columns(logits[low:high], asked.objective, targets, y)
        if any(asked.mask_totals.values()):
            columns["split"] = SPLIT_NAMES.take(pa.array(split_E[low:high]))
        return pa.table(columns)

    pieces = (table(low, high) for low, high in row_pieces(len(source_E)))
    write_part(pieces, target, asked.world.rank)
