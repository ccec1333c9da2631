"""The edges a PyG layer hands to `propagate`, as blocks.

Layers add loops, drop edges and normalise weights anew in every step, so most edge lists are new
tensors with old content. They are compared with those seen before, and cut into blocks once.

Shapes: N owned rows, C columns (owned, then halo rows), E edges.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from siafu.errors import PlanError
from siafu.ops import CSR
from siafu.ops.csr.matrix import edge_dtype
from siafu.strategy.blocks import Reach
from siafu.strategy.neighbours import BlockNeighbours

_KEPT_EDGES = 8
"""Edge lists are forgotten, the oldest first, beyond this many times the shard's own edges."""


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """One list of edges, sorted by destination and cut into blocks."""

    reach: Reach
    """Without weights."""
    order_E: Tensor | None
    """Where each sorted edge stands in the list; None: the list is sorted."""

    @property
    def num_edges(self) -> int:
        """E."""
        return self.reach.own.whole.num_edges

    def sorted(self, rows_E: Tensor) -> Tensor:
        """Return a row per edge in the order of the blocks, differentiably."""
        return rows_E if self.order_E is None else rows_E.index_select(0, self.order_E)

    def holds(self, edge_index: Tensor) -> bool:
        """Return whether these are the same edges in the same order."""
        if edge_index.size(1) != self.num_edges:
            return False
        whole, start = self.reach.own.whole, 0
        # In pieces, so that nothing beside the edges is as large as they are.
        for lo, hi in whole.row_spans():
            bounds_M = whole.indptr[lo : hi + 1]
            end = int(bounds_M[-1])
            row_E = torch.arange(lo, hi, device=whole.device).repeat_interleave(bounds_M.diff())
            if self.order_E is None:
                src, dst = edge_index[:, start:end]
            else:
                src, dst = edge_index.index_select(1, self.order_E[start:end])
            if not bool(((src == whole.index[start:end]) & (dst == row_E)).all()):
                return False
            start = end
        return True


class EdgeSets:
    """The edge lists of a model's layers; each rank cuts its own, without asking others."""

    def __init__(self, neighbours: BlockNeighbours) -> None:
        self._num_owned = neighbours.shard.num_owned
        own = neighbours.reach
        self._like = own if neighbours.view.csr.weight is None else own.with_weights(None)
        self._known = [EdgeSet(self._like, None)]
        self._by_tensor = WeakTensorKeyDictionary()

    def of(self, edge_index: Tensor) -> EdgeSet:
        """Return the edges of a [2, E] tensor as blocks."""
        version, found = self._by_tensor.get(edge_index, (None, None))
        if found is None or version != edge_index._version:
            found = self._seen(edge_index) or self._cut(edge_index)
            self._by_tensor[edge_index] = edge_index._version, found
        result: EdgeSet = found
        return result

    def _seen(self, edge_index: Tensor) -> EdgeSet | None:
        for place, known in enumerate(self._known):
            if known.holds(edge_index):
                if place:  # the first, the graph's own, stays first
                    self._known.append(self._known.pop(place))
                return known
        return None

    def _cut(self, edge_index: Tensor) -> EdgeSet:
        src, dst = edge_index.detach()
        if src.numel() and not (int(dst.min()) >= 0 and int(dst.max()) < self._num_owned):
            raise PlanError(
                "A layer is given edges that end at nodes of other ranks.",
                seen=f"edge_index[1] up to {int(dst.max())}, {self._num_owned} owned nodes",
                fix="leave the edges' direction as it is; graphs are made undirected when ingested",
            )
        order_E: Tensor | None = None
        if not bool((dst.diff() >= 0).all()):
            order_E = dst.argsort(stable=True)
            src, dst = src[order_E], dst[order_E]
            order_E = order_E.to(edge_dtype(len(order_E)))
        counts_N = torch.bincount(dst, minlength=self._num_owned)
        indptr = torch.zeros(self._num_owned + 1, dtype=torch.int64, device=dst.device)
        torch.cumsum(counts_N, 0, out=indptr[1:])
        num_cols = self._like.own.whole.num_cols
        csr = CSR.checked(indptr, src.to(edge_dtype(num_cols)), num_cols)
        made = EdgeSet(self._like.recut(csr), order_E)
        self._known.append(made)
        self._forget()
        return made

    def _forget(self) -> None:
        most = _KEPT_EDGES * max(1, self._known[0].num_edges + self._num_owned)
        while len(self._known) > 2 and sum(known.num_edges for known in self._known) > most:
            self._known.pop(1)
