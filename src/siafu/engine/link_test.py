"""Held-out edges ranked against drawn ones, by the dot products of their ends' rows.

Shapes: H held-out edges of this rank, B some of them, K negatives of each, N owned
rows, D width.
"""

from collections.abc import Iterator
from copy import copy
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from siafu.comm import World
from siafu.engine.infer import write_part
from siafu.engine.scores import (
    doubled_ranks,
    gather_rows,
    highest,
    histogram,
    mrr_error,
    ranking_scores,
    shared_hits,
)
from siafu.graph import Ids
from siafu.minibatch import Feed, HeldOut, other_nodes
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.ops import DrawKey, uniform_pairs
from siafu.shard import RowReader

_PURPOSE = ORDER_PURPOSE - 4
_ROWS_AT_ONCE = 1 << 16
_MOST_NODES = 1 << 17
"""Rows that the edges of a sample may read of each split."""
_LEAST_EDGES = 256
SHARED = 50
"""The k of hits@k against one set of negatives for all edges: the first of each."""


class LinkTest:
    """Held-out edges, each beside destinations drawn by its ends: alike on any number of ranks."""

    def __init__(self, held: HeldOut, feed: Feed, num_negatives: int) -> None:
        """`held` is this rank's share of them."""
        assert feed.links is not None, "the feed deals edges"
        self._feed, self._links, self._num_negatives = feed, feed.links, num_negatives
        pairs = {"val": held.val, "test": held.test}
        self._edges = {split: torch.from_numpy(np.array(edges)) for split, edges in pairs.items()}
        self.totals = _totals(self._edges, feed.shard.world)

    def sampled(self) -> "LinkTest":
        """Return a test by some of the edges: the same on any ranks; all call this together."""
        some = copy(self)
        most = max(_LEAST_EDGES, _MOST_NODES // (2 + self._num_negatives))
        some._edges = {split: self._thinned(split, most) for split in self._edges}
        some.totals = _totals(some._edges, self._feed.shard.world)
        return some

    def _thinned(self, split: str, most: int) -> Tensor:
        edges_H2, total = self._edges[split], self.totals[split]
        if total <= most:
            return edges_H2
        key = DrawKey(self._links.seed, 1, _PURPOSE)
        src_H, dst_H = edges_H2.T.contiguous()
        draws = uniform_pairs(key, src_H, dst_H, 1, dtype=torch.float64)
        return edges_H2[draws[:, 0] < most / total]

    def addresses(self) -> Tensor:
        """Return the nodes whose rows are read, each once."""
        found = torch.empty(0, dtype=torch.int64)
        for edges_H2 in self._edges.values():
            for src_B, dst_B in self._pieces(edges_H2):
                wanted = torch.cat([src_B, dst_B, self._others(src_B, dst_B).flatten()])
                found = torch.cat([found, wanted]).unique()
        return self._links.directory.addresses(found)

    def scores(self, rows: RowReader) -> tuple[dict[str, float], dict[str, float]]:
        """Return the mean reciprocal rank of each split, and hits@k; every rank calls together.

        `val` and `test` alone are the mean reciprocal ranks, whose standard errors come too.
        """
        found: dict[str, float] = {}
        errors: dict[str, float] = {}
        for split in self._edges:
            scores = self._split_scores(rows, split)
            found[split], errors[split] = scores.pop("mrr"), scores.pop("error")
            found |= {f"{split} {name}": value for name, value in scores.items()}
        return dict(sorted(found.items(), key=lambda item: " " in item[0])), errors

    def _split_scores(self, rows: RowReader, split: str) -> dict[str, float]:
        world, num_negatives = self._feed.shard.world, self._num_negatives
        counts = torch.zeros(2 * num_negatives + 3, dtype=torch.int64)
        positives, shared = [], []
        for positive_B, negative_BK in self._compared(rows, split):
            counts += histogram(doubled_ranks(positive_B, negative_BK), num_negatives)
            positives.append(positive_B)
            shared.append(negative_BK[:, 0])
        counts = world.sum_in_place(counts.to(world.device), "metric").cpu()
        best = highest(torch.cat(shared), SHARED)[:, None].to(world.device)
        hits = shared_hits(torch.cat(positives), gather_rows(best, world)[:, 0].cpu(), SHARED)
        hits_of_all = sum(row[0] for row in world.gather_numbers([float(hits)], "metric"))
        share = hits_of_all / max(1, self.totals[split])
        found = ranking_scores(counts.tolist()) | {f"shared hits@{SHARED}": share}
        return found | {"error": mrr_error(counts.tolist())}

    def _compared(self, rows: RowReader, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield scores of some edges and of their negatives; equally often on every rank."""
        for src_B, dst_B in self._pieces(self._edges[split]):
            others_BK = self._others(src_B, dst_B)
            wanted = torch.cat([src_B, dst_B, others_BK.flatten()])
            found = self._fetch(rows, wanted).double()
            src_BD, dst_BD, other = found.split([len(src_B), len(dst_B), others_BK.numel()])
            other_BKD = other.view(*others_BK.shape, found.size(1))
            yield (src_BD * dst_BD).sum(1), (src_BD[:, None] * other_BKD).sum(2)

    def _others(self, src_B: Tensor, dst_B: Tensor) -> Tensor:
        """Return [B, K]: the destinations drawn for each edge, by its ends."""
        key, count = DrawKey(self._links.seed, 0, _PURPOSE), 2 * self._num_negatives
        draws = uniform_pairs(key, src_B, dst_B, count, dtype=torch.float64)
        return other_nodes(draws, dst_B, self._links.num_nodes)

    def _pieces(self, edges_H2: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        size = max(1, _ROWS_AT_ONCE // (2 + self._num_negatives))
        mine = max(1, -(-len(edges_H2) // size))
        rounds = max(row[0] for row in self._feed.shard.world.gather_numbers([float(mine)]))
        for number in range(int(rounds)):
            piece = edges_H2[number * size : (number + 1) * size]
            yield piece[:, 0].contiguous(), piece[:, 1].contiguous()

    def _fetch(self, rows: RowReader, numbers: Tensor) -> Tensor:
        """Return the rows of nodes by number, from whoever owns them."""
        addresses, place = self._links.directory.addresses(numbers).unique(return_inverse=True)
        served = self._feed.relay.served.node_columns
        served["embedding"] = rows
        found = self._feed.relay.fetch(addresses, ("embedding",))["embedding"]
        del served["embedding"]
        return found.index_select(0, place)

    def write(self, rows: RowReader, ids: Ids, target: Path) -> None:
        """Write one row a held-out edge, by the user's ids: src, dst, score, split.

        There is one Parquet file per rank; `ids` are of all nodes.
        """
        edges, scores, splits = [], [], []
        for split, edges_H2 in self._edges.items():
            edges.append(edges_H2)
            splits += [split] * len(edges_H2)
            for src_B, dst_B in self._pieces(edges_H2):
                found = self._fetch(rows, torch.cat([src_B, dst_B])).double()
                scores.append((found[: len(src_B)] * found[len(src_B) :]).sum(1))
        src, dst = torch.cat(edges).unbind(1)
        columns = {
            "src": ids.take(src.numpy()).to_arrow(),
            "dst": ids.take(dst.numpy()).to_arrow(),
            "score": pa.array(torch.cat(scores).numpy()),
            "split": pa.array(splits, pa.string()),
        }
        write_part([pa.table(columns)], target, self._feed.channel.rank)


def _totals(edges: dict[str, Tensor], world: World) -> dict[str, int]:
    table = world.gather_numbers([float(len(edges_H2)) for edges_H2 in edges.values()])
    columns = zip(*table, strict=True)
    return {split: int(sum(column)) for split, column in zip(edges, columns, strict=True)}
