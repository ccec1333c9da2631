"""Graph layers, written as if one device held the graph.

Each is called with rows and `Neighbours`. A layer maps before it aggregates where that is the
narrower side: fewer bytes are gathered and fewer cross between ranks.

Shapes: N owned rows, D input width, O output width, H heads.
"""

import torch
from torch import Tensor, nn

from siafu.nn.neighbours import Dropout, Neighbours
from siafu.nn.sparse import Rows, SparseRows, project


def maps_first(x: Rows, out_width: int) -> bool:
    """Return True when the linear map should come before the aggregation."""
    return isinstance(x, SparseRows) or out_width <= x.shape[1]


class GCNLayer(nn.Module):
    """Kipf and Welling, 2017: out = D^-1/2 (A + I) D^-1/2 x W + b."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_width))
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_NO."""
        if maps_first(x, self.linear.out_features):
            return neighbours.normalised_sum(project(x, self.linear.weight)) + self.bias
        assert isinstance(x, Tensor)
        return self.linear(neighbours.normalised_sum(x)) + self.bias


class SAGELayer(nn.Module):
    """Hamilton et al., 2017: out = W_self x + W_neigh reduce(in-neighbours of x)."""

    def __init__(self, in_width: int, out_width: int, *, aggregation: str = "mean") -> None:
        super().__init__()
        self.own = nn.Linear(in_width, out_width)
        self.neigh = nn.Linear(in_width, out_width, bias=False)
        # A maximum does not commute with a linear map, so its rows are mapped before on purpose.
        self.pool = nn.Linear(in_width, out_width) if aggregation == "max" else None
        if self.pool is not None:
            self.neigh = nn.Linear(out_width, out_width, bias=False)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_NO."""
        own_NO = project(x, self.own.weight, self.own.bias)
        if self.pool is not None:
            pooled_NO = torch.relu(project(x, self.pool.weight, self.pool.bias))
            return own_NO + self.neigh(neighbours.max(pooled_NO))
        if maps_first(x, self.neigh.out_features):
            return own_NO + neighbours.mean(project(x, self.neigh.weight))
        assert isinstance(x, Tensor)
        return own_NO + self.neigh(neighbours.mean(x))


class GINLayer(nn.Module):
    """Xu et al., 2019: out = MLP((1 + eps) x + sum of in-neighbours)."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_width, out_width)
        self.second = nn.Linear(out_width, out_width)
        self.eps = nn.Parameter(torch.zeros(()))

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_NO."""
        if maps_first(x, self.first.out_features):
            # The first map is linear, so it may cross the sum; its bias is added once, after.
            mapped_NO = project(x, self.first.weight)
            hidden_NO = (1 + self.eps) * mapped_NO + neighbours.sum(mapped_NO) + self.first.bias
        else:
            assert isinstance(x, Tensor)
            hidden_NO = self.first((1 + self.eps) * x + neighbours.sum(x))
        return self.second(torch.relu(hidden_NO))


class GATLayer(nn.Module):
    """Velickovic et al., 2018: attention over in-neighbours and the vertex itself."""

    def __init__(
        self, in_width: int, out_width: int, *, heads: int, concat: bool, dropout: Dropout
    ) -> None:
        super().__init__()
        self.heads, self.concat, self.dropout = heads, concat, dropout
        self.linear = nn.Linear(in_width, heads * out_width, bias=False)
        self.left = nn.Parameter(torch.empty(heads, out_width))
        self.right = nn.Parameter(torch.empty(heads, out_width))
        self.bias = nn.Parameter(torch.zeros(heads * out_width if concat else out_width))
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.xavier_uniform_(self.left)
        nn.init.xavier_uniform_(self.right)

    def forward(self, x: Rows, neighbours: Neighbours) -> Tensor:
        """Return out_NO, heads side by side or averaged."""
        z_NHD = project(x, self.linear.weight).unflatten(1, (self.heads, -1))
        left_NH, right_NH = (z_NHD * self.left).sum(-1), (z_NHD * self.right).sum(-1)
        out_NHD = neighbours.attend(z_NHD, left_NH, right_NH, slope=0.2, dropout=self.dropout)
        out_NO = out_NHD.flatten(1) if self.concat else out_NHD.mean(dim=1)
        return out_NO + self.bias
