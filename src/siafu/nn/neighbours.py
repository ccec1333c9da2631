"""The one thing a layer is given: its in-neighbours, wherever they live.

Shapes: N rows a layer reads, M rows it writes (the same ones, or those of them that are needed), D
columns of a row, H heads, E in-edges of the M rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from siafu.nn.draws import Dropout
from siafu.ops import Attention, linear

Summing = Literal["sum", "mean", "normalised_sum"]
Reduce = Literal["sum", "mean", "max", "min", "mul", "softmax"]


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """What edges bring to an attention: a function of their data, called a piece at a time.

    The tensors that `make` captures get their gradients; the data itself gets none.
    """

    make: Callable[[Tensor], Tensor]
    """Maps data of S edges to the operand that the attention takes: [S, H] or [S, H, D]."""
    data_E: Tensor
    """A row per edge."""
    loop_M: Tensor | None = None
    """The data of the loop of each row, or one row that all loops share; without it the mean over
    a row's in-edges."""

    def loops_of(self, num_rows: int) -> Tensor | None:
        """Return the data of the loop of each of these rows, where it is told."""
        if self.loop_M is None or len(self.loop_M) == num_rows:
            return self.loop_M
        return self.loop_M.expand(num_rows, *self.loop_M.shape[1:])


class Neighbours(Protocol):
    """What a layer may ask of the graph. One process and every strategy answer alike."""

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        ...

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of the in-edges, a row per edge."""
        ...

    @property
    def edge_type(self) -> Tensor | None:
        """The type of each in-edge."""
        ...

    def maps_first(self, in_width: int, out_width: int) -> bool:
        """Return True where a linear map costs less before an aggregation than after it."""
        ...

    def own(self, x_ND: Tensor) -> Tensor:
        """Return the rows of the nodes that are written, of those that are read."""
        ...

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T (x itself for None), rows that others need being on their way already.

        The next thing asked is `how` of what is returned; what is computed in between costs no
        time where rows travel meanwhile.
        """
        ...

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the sum of in-neighbours' rows times their edge weights; 0 without any."""
        ...

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges; 0 without any."""
        ...

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return D^-1/2 (A + I) D^-1/2 x, with I only where a node has no loop yet (GCN)."""
        ...

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows; 0 without any."""
        ...

    def attend(
        self,
        attention: Attention,
        sources: tuple[Tensor, ...],
        rows: tuple[Tensor, ...],
        shared: tuple[Tensor, ...] = (),
        *,
        dropout: Dropout,
        edges: EdgeRows | None = None,
        loops: bool = True,
    ) -> Tensor:
        """Return out_MHD, the attention's weighted sum over in-neighbours.

        `sources` have N rows, `rows` M; `siafu.ops` tells which tensors each attention takes. With
        `loops` a node attends to itself once; loops of the graph are replaced by that one.
        """
        ...

    def reduce(
        self,
        message: Callable[..., Any],
        x_src: Tensor | tuple[Tensor, ...],
        x_dst: Tensor | tuple[Tensor, ...] = (),
        edge_attr: Tensor | tuple[Tensor, ...] = (),
        *,
        reduce: Reduce = "sum",
    ) -> Tensor:
        """Return a function of edges, joined over each row's in-edges.

        `message(rows of sources, rows of destinations, rows of edges)` is given some edges at a
        time, leaves out what was not given, and treats each edge by itself. Tensors it captures,
        such as its weights, get their gradients. For "softmax" it returns (scores, values). Rows
        without in-edges give 0, in a product ("mul") 1.
        """
        ...

    def relations(self, x_ND: Tensor, map_TDO: Tensor) -> Tensor:
        """Return the sum over edge types t of the mean of x W_t over in-edges of type t (R-GCN)."""
        ...

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries zeroed by draws that depend on node and column, not on rank.

        Nothing is dropped while evaluating; what the dropout says of the sign is done all the same.
        """
        ...

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums over all nodes of the graph."""
        ...


@runtime_checkable
class Activating(Protocol):
    """Neighbours that add a bias, activate and drop in one pass."""

    def activates(self, x: Tensor) -> bool:
        """Return whether `activate` takes what is made of such rows."""
        ...

    def activate(self, z_ND: Tensor, bias_D: Tensor, dropout: Dropout) -> Tensor:
        """Return what `Neighbours.dropout` makes of max(z + bias, 0); z is used up."""
        ...


def as_tuple(tensors: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """Return one tensor, several or none as a tuple."""
    if tensors is None:
        return ()
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def mapped(x_ND: Tensor, weight_OD: Tensor | None) -> Tensor:
    """Return x W^T, or x: what `depart` is where no rows travel."""
    return x_ND if weight_OD is None else linear(x_ND, weight_OD)
