"""Sampled training as a loop of plain torch operations: what siafu stands beside on one GPU.

Shapes: as in `benchmarks.sampled_gpu`.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.shard import Shard

WIDTH, CLASSES = 100, 47
HIDDEN, FANOUT, BATCH = 256, (15, 10, 5), 1024
"""Of both sides."""


class PlainSage(nn.Module):
    """SAGE in torch operations, on sub-graphs as lists of edges whose rows are a prefix."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH, HIDDEN, HIDDEN, CLASSES]
        pairs = list(pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.near = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)

    def forward(self, x: Tensor, hops: list[tuple[Tensor, Tensor]], sizes: list[int]) -> Tensor:
        """Return logits of the seeds; `hops` are destinations and sources, `sizes` nodes met."""
        for layer, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            depth = len(hops) - layer
            rows = torch.cat([dst for dst, _ in hops[:depth]])
            columns = torch.cat([src for _, src in hops[:depth]])
            total = x.new_zeros(sizes[depth - 1], x.size(1)).index_add_(0, rows, x[columns])
            count = x.new_zeros(sizes[depth - 1]).index_add_(0, rows, torch.ones_like(rows).to(x))
            x = own(x[: sizes[depth - 1]]) + near(total / count.clamp(min=1)[:, None])
            x = functional.dropout(torch.relu(x), 0.5) if layer < len(hops) - 1 else x
        return x


class PlainLoop:
    """Sampled training in plain torch operations on one device, rows and edges there."""

    def __init__(self, shard: Shard) -> None:
        assert isinstance(shard.x, Tensor)
        assert shard.y is not None
        device = shard.world.device
        self._indptr, self._index = shard.csr.indptr.to(device), shard.csr.index.long().to(device)
        self._x, self._y, self._seeds = (
            column.to(device) for column in (shard.x, shard.y, shard.train)
        )
        self._place = torch.full((shard.num_nodes,), -1, dtype=torch.int64, device=device)
        self._model = PlainSage().to(device)
        self._optimiser = torch.optim.Adam(self._model.parameters(), lr=0.003)

    def sample(self, batch: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]], list[int]]:
        """Return nodes, edges of each hop and how many nodes were met before it."""
        met, frontier, hops, sizes = [batch], batch, [], [len(batch)]
        self._place[batch] = torch.arange(len(batch), device=batch.device)
        for fanout in FANOUT:
            first = self._indptr[frontier]
            degree = self._indptr[frontier + 1] - first
            draws = torch.rand(len(frontier), fanout, device=batch.device)
            picks = first[:, None] + (draws * degree[:, None]).long()
            has = (degree > 0)[:, None].expand_as(picks)
            sources = self._index[picks[has]]
            fresh = sources[self._place[sources] < 0].unique()
            begin = sizes[-1]
            self._place[fresh] = torch.arange(begin, begin + len(fresh), device=batch.device)
            rows = self._place[frontier][:, None].expand_as(picks)[has]
            hops.append((rows, self._place[sources]))
            sizes.append(begin + len(fresh))
            met.append(fresh)
            frontier = fresh
        nodes = torch.cat(met)
        self._place[nodes] = -1
        return nodes, hops, sizes

    def epoch(self) -> float:
        """Train on every seed once."""
        losses = []
        order = torch.randperm(len(self._seeds), device=self._seeds.device)
        for batch in self._seeds[order].split(BATCH):
            nodes, hops, sizes = self.sample(batch)
            out = self._model(self._x[nodes], hops, sizes)
            loss = functional.cross_entropy(out, self._y[batch])
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._optimiser.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def draw(self) -> None:
        """Draw an epoch of minibatches and train on none."""
        for batch in self._seeds.split(BATCH):
            self.sample(batch)
