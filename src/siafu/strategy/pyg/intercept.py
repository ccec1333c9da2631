"""What a foreign model's torch calls mean when its rows are spread over ranks.

While a model runs, a torch function mode watches some calls and leaves all others alone:

- rows indexed by the sources of edges: halo rows are fetched first;
- dropout, and a number drawn per edge (`dropout_edge`): by node or edge, not by rank;
- batch norm: statistics over the rows of all ranks;
- products with a map: by the fastest there are on this processor;
- sums at the sources, and other random draws of the model's own: refused, since ranks would differ.

Sources are recognised by identity: whatever the model takes as row 0 of a [2, E] integer tensor.
So PyG's convolutions, and code written by hand in PyG's manner, run as they are.

Shapes: N owned rows, C columns (owned, then halo rows), E edges, D columns of a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from siafu.errors import PlanError
from siafu.nn import Draws, normalised
from siafu.nn.messages import RANDOM_CALLS, refuse_draw
from siafu.ops import DrawKey, dropout_pairs, dropout_rows, linear, uniform_pairs
from siafu.strategy.neighbours import BlockNeighbours

_FIRST_SITE = 1 << 16
"""Streams of draws for foreign models, apart from those of the built-in layers."""


_RESHAPES = (
    Tensor.view,
    Tensor.reshape,
    Tensor.expand,
    Tensor.expand_as,
    Tensor.unsqueeze,
    Tensor.contiguous,
    Tensor.clone,
    Tensor.to,
    Tensor.long,
)
"""Calls whose result are still the sources of edges."""

_SUMS_AT = (
    Tensor.scatter_add_,
    Tensor.scatter_add,
    torch.scatter_add,
    Tensor.scatter_reduce_,
    Tensor.scatter_reduce,
    torch.scatter_reduce,
    Tensor.index_add_,
    Tensor.index_add,
    torch.index_add,
    Tensor.bincount,
    torch.bincount,
)


_ORDERS = (
    *(getattr(place, name) for name in ("gt", "lt", "ge", "le") for place in (torch, Tensor)),
    *(Tensor.__gt__, Tensor.__lt__, Tensor.__ge__, Tensor.__le__),
)


class SourceSumError(RuntimeError):
    """A model adds up at the sources of edges, most of which live on other ranks."""


class RankMode(TorchFunctionMode):
    """Active during one forward pass of a foreign model on one rank."""

    def __init__(self, neighbours: BlockNeighbours, draws: Draws, *, in_stages: bool) -> None:
        super().__init__()
        self._neighbours, self._draws, self._in_stages = neighbours, draws, in_stages
        self._is_paused = False
        self._num_owned = neighbours.shard.num_owned
        self._ends = WeakTensorKeyDictionary()
        self._extended = WeakTensorKeyDictionary()
        self._sites = 0
        self._last_edges: Tensor | None = None
        self.in_message = False
        """True while a layer works on edges; its hooks say so."""
        self.at_work: list[str] = ["code outside of PyG's layers"]
        """Layers that are running, the innermost last."""
        self._handlers: dict[Any, Callable[..., Any]] = {
            Tensor.__getitem__: self._getitem,
            Tensor.unbind: self._unbind,
            torch.unbind: self._unbind,
            Tensor.index_select: self._index_select,
            torch.index_select: self._index_select,
            functional.dropout: self._dropout,
            functional.batch_norm: self._batch_norm,
            functional.linear: _linear,
        }
        self._handlers |= {call: partial(self._reshape, call) for call in _RESHAPES}
        if neighbours.shard.world.size > 1:
            self._handlers |= {call: partial(self._sum_at, call) for call in _SUMS_AT}
            self._handlers |= {call: partial(refuse_draw, call) for call in RANDOM_CALLS}
            self._handlers |= {call: partial(self._compare, call) for call in _ORDERS}
        self._handlers[torch.rand] = self._rand

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Route the watched calls; run every other one unchanged."""
        handler = None if self._is_paused else self._handlers.get(func)
        return (handler or func)(*args, **(kwargs or {}))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing: layers are carried out in stages, by code that knows of ranks."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def note_edges(self, edge_index: Tensor) -> None:
        """Remember the edges a layer works on."""
        self._note(edge_index, enumerate(edge_index.unbind(0)))

    def take_sites(self, count: int) -> int:
        """Return the first of `count` sites that nothing else in this pass draws at."""
        first = _FIRST_SITE + self._sites + 1
        self._sites += count
        return first

    def next_draw(self) -> DrawKey:
        """Return the key of the next draws."""
        return self._draws.key(self.take_sites(1))

    def _getitem(self, rows: Tensor, place: Any) -> Any:
        if isinstance(place, Tensor) and self._is_source(place) and self._is_owned(rows):
            # Not [place]: the gradient of that adds up in an order that changes from run to run.
            return self._extend(rows).index_select(0, place)
        out = rows[place]
        if isinstance(place, int) and _is_edge_index(rows):
            self._note(rows, [(place % 2, out)])
        return out

    def _unbind(self, rows: Tensor, dim: int = 0) -> Any:
        out = rows.unbind(dim)
        if dim == 0 and _is_edge_index(rows):
            self._note(rows, enumerate(out))
        return out

    def _index_select(self, rows: Tensor, dim: int, index: Tensor) -> Tensor:
        if not self._is_source(index) or rows.size(dim) != self._num_owned:
            return rows.index_select(dim, index)
        if dim % rows.dim() == 0:
            return self._extend(rows).index_select(0, index)
        # Some layers stack several sets of rows: [K, N, D].
        return self._extend(rows.movedim(dim, 0)).index_select(0, index).movedim(0, dim)

    def _note(self, edge_index: Tensor, ends: Iterable[tuple[int, Tensor]]) -> None:
        self._last_edges = edge_index
        for end, index in ends:
            self._ends[index] = end

    def _is_source(self, index: Tensor) -> bool:
        return self._ends.get(index) == 0

    def _is_owned(self, rows: Tensor) -> bool:
        return rows.dim() > 0 and rows.size(0) == self._num_owned

    def _extend(self, rows: Tensor) -> Tensor:
        # A layer may read one tensor's sources several times; its halo rows travel once.
        state = rows._version, torch.is_grad_enabled()
        known, kept = self._extended.get(rows, (None, None))
        if known != state:
            self._check_width(rows)
            kept = self._neighbours.extended(rows)
            self._extended[rows] = state, kept
        return kept

    def _check_width(self, rows: Tensor) -> None:
        """Raise where stages would be in vain: all halo rows at once, and not a number each."""
        width = math.prod(rows.shape[1:])
        if self._in_stages and width > 1:
            raise PlanError(
                "Rows at the sources of edges are read all at once, which stages are to avoid.",
                seen=f"{self.at_work[-1]} reads rows of width {width} at edge_index[0]",
                fix="use stages=1 (strategy 'halo'), or let a MessagePassing layer read them in "
                "its message",
            )

    def _reshape(self, call: Any, index: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = call(index, *args, **kwargs)
        if isinstance(out, Tensor) and self._is_source(index):
            self._ends[out] = 0
        return out

    def _sum_at(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if any(not t.is_floating_point() and self._is_source(t) for t in tensors):
            raise SourceSumError(call.__name__)
        return call(*args, **kwargs)

    def _compare(self, call: Any, first: Any, second: Any, **kwargs: Any) -> Any:
        ends = {self._ends.get(one) for one in (first, second) if isinstance(one, Tensor)}
        if ends == {0, 1}:
            raise PlanError(
                "The model compares numbers of sources with those of destinations, which are "
                "each rank's own.",
                seen=f"{self.at_work[-1]} compares edge_index[0] with edge_index[1]",
                fix="leave out dropout_edge's force_undirected and the like; graphs are made "
                "undirected when ingested (--undirected)",
            )
        return call(first, second, **kwargs)

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        key = self.next_draw()
        flat = x.reshape(x.size(0), math.prod(x.shape[1:]))
        shard = self._neighbours.shard
        if self._is_on_edges(x):
            assert self._last_edges is not None
            src, dst = self._last_edges.unbind(0)
            sources = shard.column_ids.index_select(0, src)
            return dropout_pairs(flat, sources, shard.row_ids[dst], key, p).view_as(x)
        # What is neither on edges nor on nodes is the same on every rank: keyed by place.
        ids = shard.row_ids if self._is_owned(x) else torch.arange(len(flat), device=x.device)
        return dropout_rows(flat, ids, key, p).view_as(x)

    def _rand(self, *size: Any, **kwargs: Any) -> Tensor:
        """Return a draw per edge by its ends (PyG's `dropout_edge`); others are each rank's own."""
        shape = tuple(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        edges, shard = self._last_edges, self._neighbours.shard
        if edges is None or shape != (edges.size(1),) or kwargs.get("generator") is not None:
            return (torch.rand if shard.world.size == 1 else partial(refuse_draw, torch.rand))(
                *size, **kwargs
            )
        src, dst = edges.unbind(0)
        ends = shard.column_ids.index_select(0, src), shard.row_ids[dst]
        drawn_E = uniform_pairs(self.next_draw(), *ends, 1).flatten()
        return drawn_E.to(kwargs.get("device"), kwargs.get("dtype") or torch.get_default_dtype())

    def _is_on_edges(self, x: Tensor) -> bool:
        """Return whether x has a row per edge; a layer in mid-message settles N = E."""
        if self._last_edges is None or x.size(0) != self._last_edges.size(1):
            return False
        return self.in_message or not self._is_owned(x)

    def _batch_norm(  # noqa: PLR0913 - torch's own signature
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            settings = (weight, bias, training, momentum, eps)
            return functional.batch_norm(x, running_mean, running_var, *settings)
        if x.dim() != 2:
            raise PlanError(
                "Batch norm over ranks takes rows of columns.",
                seen=f"{x.dim()} dimensions",
                fix="flatten all but the first dimension before the norm",
            )
        rows = torch.full((1,), float(x.size(0)), dtype=torch.float64, device=x.device)
        count = int(self._neighbours.shard.world.sum_in_place(rows, "norm"))
        out_ND, mean_D, variance_D = normalised(
            x, weight, bias, self._neighbours, count=count, eps=eps
        )
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean_D, momentum)
                running_var.lerp_(variance_D * (count / max(1, count - 1)), momentum)
        return out_ND


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(input, weight, bias)  # by the names that torch's has


def _is_edge_index(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.size(0) == 2 and tensor.dtype == torch.int64
