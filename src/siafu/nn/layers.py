"""Graph layers that sum over in-neighbours, written as if one device held the graph.

Each is called with rows and `Neighbours`. A layer maps before it aggregates where that is the
narrower side: fewer bytes are gathered and fewer cross between ranks.

Shapes: N rows read, M rows written, D input width, O output width, T edge types, B bases.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from siafu.nn.neighbours import Neighbours, Summing
from siafu.nn.sparse import CachedRows, MappedRows, Rows, SparseRows, dense, project
from siafu.ops import linear, linear_onto


class Linear(nn.Linear):
    """Torch's, by the fastest product there is for many rows."""

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return x W^T + b."""
        return linear(x_ND, self.weight, self.bias)


@runtime_checkable
class EndsWithBias(Protocol):
    """A layer that adds a bias last, and may leave that to who activates what it made."""

    @property
    def last_bias(self) -> Tensor:
        """The bias."""
        ...

    def before_bias(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO without the bias, in memory that nobody else reads."""
        ...


@runtime_checkable
class MapsAhead(Protocol):
    """A layer that sums what a linear map made of rows, so that they can be mapped before."""

    def map_ahead(self, x_ND: Tensor) -> MappedRows:
        """Return what the layer takes in place of these rows, for all of them."""
        ...


MOST_BASES = 8
"""Of R-GCN's maps, however many types of edges there are."""


def maps_first(x: Rows, out_width: int, neighbours: Neighbours) -> bool:
    """Return True when the linear map should come before the aggregation."""
    if isinstance(x, CachedRows):
        return False
    return isinstance(x, SparseRows | MappedRows) or neighbours.maps_first(x.shape[1], out_width)


def own_map(
    x: Rows, neighbours: Neighbours, weight_OD: Tensor, bias_O: Tensor | None = None
) -> Tensor:
    """Return x W^T + b for the rows that are written."""
    if isinstance(x, MappedRows):
        assert x.own is not None, "the layer made it"
        return x.own
    if isinstance(x, SparseRows):
        rows_M = neighbours.own(torch.arange(len(x.ids_N), device=x.ids_N.device))
        return project(x if len(rows_M) == len(x.ids_N) else x.select(rows_M), weight_OD, bias_O)
    rows_ND = x.rows if isinstance(x, CachedRows) else x
    return linear(neighbours.own(rows_ND), weight_OD, bias_O)


def _dense(x: Rows, weight_OD: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return rows and the map that is left to do: none for sparse rows, which need it done."""
    if isinstance(x, SparseRows):
        return project(x, weight_OD), None
    if isinstance(x, MappedRows):
        return x.mapped, None
    assert isinstance(x, Tensor)
    return x, weight_OD


def mapped_sum(
    x: Rows, weight_OD: Tensor, neighbours: Neighbours, how: Summing
) -> Callable[[Tensor | None], Tensor]:
    """Begin how(x) W^T, in the order that moves less; what is returned adds it to rows or a bias.

    What is computed before that is computed while rows travel. Rows it is added to are used up.
    """
    if isinstance(x, CachedRows):
        return lambda onto: _add_map(onto, x.aggregate, weight_OD)
    aggregate: Callable[[Tensor], Tensor] = getattr(neighbours, how)
    if maps_first(x, len(weight_OD), neighbours):
        rows_NO = neighbours.depart(*_dense(x, weight_OD), how)
        return lambda onto: _added(onto, aggregate(rows_NO))
    assert isinstance(x, Tensor)
    rows_ND = neighbours.depart(x, None, how)
    return lambda onto: _add_map(onto, aggregate(rows_ND), weight_OD)


def _added(onto: Tensor | None, sum_MO: Tensor) -> Tensor:
    """Return onto + sum, in the type of the sum."""
    return sum_MO if onto is None else onto.to(sum_MO.dtype) + sum_MO


def _add_map(onto: Tensor | None, x_MD: Tensor, weight_OD: Tensor) -> Tensor:
    """Return onto + x W^T, without a pass of its own for the sum."""
    if onto is None or onto.dim() == 1:
        return linear(x_MD, weight_OD, onto)
    return linear_onto(onto, x_MD, weight_OD)


class GCNLayer(nn.Module):
    """Kipf and Welling, 2017: out = D^-1/2 (A + I) D^-1/2 x W + b."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = Linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_width))
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO."""
        return mapped_sum(x, self.linear.weight, neighbours, "normalised_sum")(self.bias)

    def map_ahead(self, x_ND: Tensor) -> MappedRows:
        """Return x W^T."""
        return MappedRows(linear(x_ND, self.linear.weight), None)

    @property
    def last_bias(self) -> Tensor:
        """The bias."""
        return self.bias

    def before_bias(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO without the bias."""
        return mapped_sum(x, self.linear.weight, neighbours, "normalised_sum")(None)


class SAGELayer(nn.Module):
    """Hamilton et al., 2017: out = W_self x + W_neigh reduce(in-neighbours of x)."""

    def __init__(self, in_width: int, out_width: int, *, aggregation: str = "mean") -> None:
        super().__init__()
        self.own = Linear(in_width, out_width)
        self.neigh = Linear(in_width, out_width, bias=False)
        # A maximum does not commute with a linear map, so its rows are mapped before on purpose.
        self.pool = Linear(in_width, out_width) if aggregation == "max" else None
        if self.pool is not None:
            self.neigh = Linear(out_width, out_width, bias=False)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO."""
        return self._out(x, neighbours, self.own.bias)

    def map_ahead(self, x_ND: Tensor) -> MappedRows:
        """Return both maps of x; a maximum has three, which are wider."""
        assert self.pool is None, "no sum, and not narrower"
        return MappedRows(linear(x_ND, self.neigh.weight), self.own(x_ND))

    @property
    def last_bias(self) -> Tensor:
        """The bias."""
        return self.own.bias

    def before_bias(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO without the bias."""
        return self._out(x, neighbours, None)

    def _out(self, x: Rows, neighbours: Neighbours, bias_O: Tensor | None) -> Tensor:
        if self.pool is not None:
            own_MO = own_map(x, neighbours, self.own.weight, bias_O)
            pooled_NO = torch.relu(project(x, self.pool.weight, self.pool.bias))
            return own_MO + self.neigh(neighbours.max(pooled_NO))
        mean = mapped_sum(x, self.neigh.weight, neighbours, "mean")
        return mean(own_map(x, neighbours, self.own.weight, bias_O))


class GINLayer(nn.Module):
    """Xu et al., 2019: out = MLP((1 + eps) x + sum of in-neighbours)."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.first = Linear(in_width, out_width)
        self.second = Linear(out_width, out_width)
        self.eps = nn.Parameter(torch.zeros(()))

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO."""
        return self.second(self._hidden(x, neighbours))

    @property
    def last_bias(self) -> Tensor:
        """The bias."""
        return self.second.bias

    def before_bias(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO without the bias."""
        return linear(self._hidden(x, neighbours), self.second.weight)

    def _hidden(self, x: Rows, neighbours: Neighbours) -> Tensor:
        if isinstance(x, CachedRows):
            hidden_MO = self.first((1 + self.eps) * neighbours.own(x.rows) + x.aggregate)
        elif maps_first(x, self.first.out_features, neighbours):
            # The first map is linear, so it may cross the sum; its bias is added once, after.
            mapped_NO = neighbours.depart(*_dense(x, self.first.weight), "sum")
            own_MO = (1 + self.eps) * neighbours.own(mapped_NO)
            hidden_MO = own_MO + neighbours.sum(mapped_NO) + self.first.bias.to(own_MO.dtype)
        else:
            assert isinstance(x, Tensor)
            rows_ND = neighbours.depart(x, None, "sum")
            own_MD = (1 + self.eps) * neighbours.own(x)
            hidden_MO = self.first(own_MD + neighbours.sum(rows_ND))
        return torch.relu(hidden_MO)


class RGCNLayer(nn.Module):
    """Schlichtkrull et al., 2018: out = W_0 x + sum over types of the mean of W_t x; with bases.

    Maps are mixtures of at most eight bases, so their number does not grow with the types. Where
    all bases together are narrower than the input, rows are mapped by these before they travel, and
    mixed where they arrive.
    """

    def __init__(self, in_width: int, out_width: int, *, num_types: int) -> None:
        super().__init__()
        bases = min(num_types, MOST_BASES)
        self.own = Linear(in_width, out_width)
        self.basis = nn.Parameter(torch.empty(bases, in_width, out_width))
        self.mixture = nn.Parameter(torch.empty(num_types, bases))
        for matrix in self.basis:
            nn.init.xavier_uniform_(matrix)
        nn.init.xavier_uniform_(self.mixture)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_MO."""
        own_MO = own_map(x, neighbours, self.own.weight, self.own.bias)
        (bases, width, out), types = self.basis.shape, len(self.mixture)
        if isinstance(x, CachedRows):  # means of all types, side by side
            map_TDO = torch.einsum("tb,bdo->tdo", self.mixture, self.basis)
            return own_MO + x.aggregate @ map_TDO.flatten(0, 1).to(x.aggregate.dtype)
        if bases * out < width and neighbours.maps_first(width, bases * out):
            rows = project(x, self.basis.transpose(1, 2).reshape(bases * out, width))
            one_OO = torch.eye(out, dtype=self.mixture.dtype, device=self.mixture.device)
            mix_TBO = torch.einsum("tb,po->tbpo", self.mixture, one_OO)
            return own_MO + neighbours.relations(rows, mix_TBO.reshape(types, bases * out, out))
        map_TDO = torch.einsum("tb,bdo->tdo", self.mixture, self.basis)
        return own_MO + neighbours.relations(dense(x), map_TDO)
