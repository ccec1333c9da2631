"""Node features that are mostly zero, kept as CSR through the first layer.

Shapes: N rows, F columns of the features, O width after a linear map, Z values not zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.nn.draws import Draws, Dropout
from siafu.nn.precision import Precision, as_rows, stored_type, weight_type
from siafu.ops import CSR, dropout_pairs, linear, neighbour_sum


@dataclass(frozen=True)
class SparseRows:
    """A sparse feature matrix with the global ids of its rows."""

    csr: CSR
    ids_N: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as for a dense tensor."""
        return self.csr.num_rows, self.csr.num_cols

    def dropped(self, draws: Draws, dropout: Dropout) -> "SparseRows":
        """Return the matrix with values dropped while training (zeros stay zeros)."""
        if not draws.training or dropout.p == 0.0:
            return self
        assert self.csr.weight is not None
        ids_Z, cols_Z = self.ids_N[self.csr.rows()], self.csr.index.long()
        key = draws.any_key(dropout.site)
        value_Z = dropout_pairs(self.csr.weight.unsqueeze(1), ids_Z, cols_Z, key, dropout.p)
        return SparseRows(self.csr.with_weight(value_Z.squeeze(1)), self.ids_N)

    def select(self, rows: Tensor) -> "SparseRows":
        """Return some of the rows, in this order."""
        return SparseRows(self.csr.select_rows(rows)[0], self.ids_N[rows])

    def dense(self) -> Tensor:
        """Return the matrix with its zeros written out."""
        assert self.csr.weight is not None
        x_NF = self.csr.weight.new_zeros(self.shape)
        rows_Z, cols_Z = self.csr.rows(), self.csr.index.long()
        return x_NF.index_put_((rows_Z, cols_Z), self.csr.weight, accumulate=True)


@dataclass(frozen=True)
class CachedRows:
    """Constant rows with what the first layer aggregates from them, computed once."""

    rows: Tensor
    aggregate: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as for a dense tensor."""
        return self.rows.size(0), self.rows.size(1)


@dataclass(frozen=True)
class MappedRows:
    """Rows as a layer's own linear maps made them (`MapsAhead`), while nothing is trained."""

    mapped: Tensor
    """Of all nodes that are read: what is gathered."""
    own: Tensor | None
    """Of the nodes that are written, with the bias; None where the layer takes `mapped` again."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what is gathered."""
        return self.mapped.size(0), self.mapped.size(1)


Rows = Tensor | SparseRows | CachedRows | MappedRows
"""What a layer may be given: a first one sparse or cached rows, a last one mapped ones."""


def dense(x: Rows) -> Tensor:
    """Return the rows with their zeros written out."""
    if isinstance(x, SparseRows):
        return x.dense()
    assert not isinstance(x, MappedRows), "what was mapped is no input"
    return x.rows if isinstance(x, CachedRows) else x


def held_as(x: Rows, precision: Precision) -> Rows:
    """Return input rows in the type that they are rounded to before all else.

    Sparse ones are factors of a sum, and stay as wide as sums are.
    """
    if isinstance(x, SparseRows):
        assert x.csr.weight is not None
        return SparseRows(x.csr.with_weight(x.csr.weight.to(weight_type(precision))), x.ids_N)
    return dense(x).to(stored_type(precision))


def rows_to_sum_one(x: Rows) -> Rows:
    """Return the rows scaled to sum to 1; those that sum to 0 or less stay."""
    if not isinstance(x, SparseRows):
        x_NF = dense(x)
        return x_NF / _divisors(x_NF.sum(dim=1, keepdim=True))
    assert x.csr.weight is not None
    rows_Z = x.csr.rows()
    sums_N = x.csr.weight.new_zeros(x.csr.num_rows).index_add_(0, rows_Z, x.csr.weight)
    return SparseRows(x.csr.with_weight(x.csr.weight / _divisors(sums_N)[rows_Z]), x.ids_N)


def _divisors(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, sums, 1)


def project(x: Rows, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x W^T + b for rows of any kind."""
    if not isinstance(x, SparseRows):
        return linear(dense(x), weight_OD, bias_O)
    out_NO = neighbour_sum(x.csr, as_rows(weight_OD).t().contiguous())
    return out_NO if bias_O is None else out_NO + bias_O.to(out_NO.dtype)
