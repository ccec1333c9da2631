"""The one thing a layer is given: its in-neighbours, wherever they live.

Shapes: N rows this rank owns, C columns an aggregation reads (owned rows, then halo rows),
D columns of a row, H heads.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from siafu.nn.loops import with_self_loops
from siafu.ops import (
    CSR,
    DrawKey,
    EdgeDraw,
    dropout_rows,
    gat_attention,
    neighbour_max,
    neighbour_sum,
)

_EDGES_AT_ONCE = 1 << 22


class Neighbours(Protocol):
    """What a layer may ask of the graph. One process and every strategy answer alike."""

    @property
    def num_vertices(self) -> int:
        """Vertices of the whole graph."""
        ...

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the sum of in-neighbours' rows times their edge weights; 0 without any."""
        ...

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges; 0 without any."""
        ...

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return D^-1/2 (A + I) D^-1/2 x, with I only where a vertex has no loop yet (GCN)."""
        ...

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows; 0 without any."""
        ...

    def attend(
        self, z_NHD: Tensor, left_NH: Tensor, right_NH: Tensor, *, slope: float, dropout: "Dropout"
    ) -> Tensor:
        """Return GAT's weighted sum over in-neighbours and the vertex itself."""
        ...

    def dropout(self, x_ND: Tensor, dropout: "Dropout") -> Tensor:
        """Return x with entries zeroed by draws that depend on vertex and column, not on rank."""
        ...

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums over all vertices of the graph."""
        ...


@dataclass(frozen=True, slots=True)
class Dropout:
    """One place in a model where values are dropped: how many, and which stream of draws."""

    p: float
    site: int


@dataclass(slots=True)
class Draws:
    """Where in the sequence of random draws a run is; the engine moves `epoch` on."""

    seed: int = 0
    epoch: int = 0
    training: bool = True

    def key(self, site: int) -> DrawKey:
        """Return the key of this epoch's draws for one place in the model."""
        return DrawKey(seed=self.seed, epoch=self.epoch, purpose=site)

    def on_edges(self, dropout: Dropout, ids_C: Tensor, ids_N: Tensor) -> EdgeDraw | None:
        """Return this epoch's dropout on edges; none while evaluating."""
        if not self.training or dropout.p == 0.0:
            return None
        return EdgeDraw(self.key(dropout.site), dropout.p, ids_C, ids_N)


@dataclass(frozen=True)
class GcnScales:
    """The parts of GCN's normalisation: D^-1/2 by column, and a row's weight in its own sum."""

    root_C: Tensor
    own_N1: Tensor


def gcn_scales(root_C: Tensor, loop_N: Tensor, dtype: torch.dtype) -> GcnScales:
    """Return the scales in the rows' dtype; columns are owned rows first."""
    own_N1 = (root_C[: len(loop_N)].square() * loop_N).unsqueeze(1)
    return GcnScales(root_C.to(dtype), own_N1.to(dtype))


def owned_degree(csr: CSR) -> Tensor:
    """Return degree_N: edge weights summed over each vertex's in-edges, the added loop included."""
    ones_C1 = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.indptr.device)
    weight = None if csr.weight is None else csr.weight.double()
    degree_N = neighbour_sum(CSR(csr.indptr, csr.index, csr.num_cols, weight), ones_C1)[:, 0]
    return degree_N + added_loop(csr)


def added_loop(csr: CSR) -> Tensor:
    """Return loop_N: 1 where a vertex has no loop of its own, else 0."""
    has_loop_N = torch.zeros(csr.num_rows, dtype=torch.bool, device=csr.device)
    # In pieces, since a row number for every edge would be as large as the edges themselves.
    step = max(1, _EDGES_AT_ONCE * csr.num_rows // max(1, csr.num_edges))
    for first in range(0, csr.num_rows, step):
        bounds = csr.indptr[first : first + step + 1]
        rows_E = torch.arange(first, first + len(bounds) - 1, device=csr.device)
        rows_E = rows_E.repeat_interleave(bounds.diff())
        loops = csr.index[bounds[0] : bounds[-1]] == rows_E
        has_loop_N[rows_E[loops]] = True
    return (~has_loop_N).double()


def inverse_root(degree: Tensor) -> Tensor:
    """Return degree^-1/2, with 0 where the degree is not positive."""
    return torch.where(degree > 0, degree.clamp(min=1e-300).rsqrt(), torch.zeros_like(degree))


class LocalNeighbours:
    """One process that holds the whole graph: the truth every strategy is compared with."""

    def __init__(self, csr: CSR, ids_N: Tensor, draws: Draws) -> None:
        self.csr, self.ids_N, self.draws = csr, ids_N, draws
        self._gcn_by_dtype: dict[torch.dtype, GcnScales] = {}

    @property
    def num_vertices(self) -> int:
        """Vertices of the whole graph."""
        return self.csr.num_rows

    def _csr(self, dtype: torch.dtype) -> CSR:
        if self.csr.weight is not None and self.csr.weight.dtype != dtype:
            self.csr = self.csr.with_weight(self.csr.weight.to(dtype))
        return self.csr

    @cached_property
    def _inverse_count_N(self) -> Tensor:
        return 1.0 / self.csr.indptr.diff().clamp(min=1).double()

    def _gcn(self, dtype: torch.dtype) -> GcnScales:
        if dtype not in self._gcn_by_dtype:
            root_N = inverse_root(owned_degree(self.csr))
            self._gcn_by_dtype[dtype] = gcn_scales(root_N, added_loop(self.csr), dtype)
        return self._gcn_by_dtype[dtype]

    @cached_property
    def _looped(self) -> CSR:
        return with_self_loops(self.csr)

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the weighted sum of in-neighbours' rows."""
        return neighbour_sum(self._csr(x_ND.dtype), x_ND)

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return `sum` divided by the number of in-edges."""
        scale_N = self._inverse_count_N.to(x_ND.dtype)
        return neighbour_sum(self._csr(x_ND.dtype), x_ND, row_scale_M=scale_N)

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return GCN's normalised sum."""
        csr, scales = self._csr(x_ND.dtype), self._gcn(x_ND.dtype)
        root_N = scales.root_C
        total_ND = neighbour_sum(csr, x_ND, row_scale_M=root_N, col_scale_C=root_N)
        return torch.addcmul(total_ND, scales.own_N1, x_ND)

    def max(self, x_ND: Tensor) -> Tensor:
        """Return the element-wise maximum of in-neighbours' rows."""
        return neighbour_max(self.csr, x_ND)

    def attend(
        self, z_NHD: Tensor, left_NH: Tensor, right_NH: Tensor, *, slope: float, dropout: Dropout
    ) -> Tensor:
        """Return GAT's weighted sum over in-neighbours and the vertex itself."""
        drop = self.draws.on_edges(dropout, self.ids_N, self.ids_N)
        return gat_attention(self._looped, z_NHD, left_NH, right_NH, slope=slope, drop=drop)

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        if not self.draws.training:
            return x_ND
        return dropout_rows(x_ND, self.ids_N, self.draws.key(dropout.site), dropout.p)

    def total(self, x_ND: Tensor) -> Tensor:
        """Return the column sums."""
        return x_ND.sum(dim=0)
