"""Features that are mostly zero, as short rows of equal length: which columns, and their values.

So they travel, and are picked and kept, like any other rows. Shapes: N rows, R rows read, K values
of the fullest row of any rank, F features, Z values not zero.
"""

import torch
from torch import Tensor

from siafu.comm import World
from siafu.nn import SparseRows, rows_to_sum_one
from siafu.ops import CSR

_MOST_COLUMNS = 1 << 24
"""A column's number travels as a float32, exact up to here."""

_SHORTER = 4
"""Times shorter than a row written out, without which a dense product is quicker."""


class PackedRows:
    """Sparse rows as [R, 2 K]: numbers of columns from 1 on, 0 where there is none, then values."""

    def __init__(self, csr: CSR, most_values: int, *, normalise: bool) -> None:
        """`normalise` has each row sum to 1."""
        assert csr.weight is not None
        self._csr, self._most, self._normalise = csr, most_values, normalise
        self.shape, self.dtype = (csr.num_rows, 2 * most_values), csr.weight.dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, packed."""
        picked, _ = self._csr.select_rows(rows_R)
        if self._normalise:
            scaled = rows_to_sum_one(SparseRows(picked, rows_R))
            assert isinstance(scaled, SparseRows)
            picked = scaled.csr
        assert picked.weight is not None
        out = picked.weight.new_zeros(len(rows_R), 2 * self._most)
        place_z = torch.arange(picked.num_edges) - picked.indptr[:-1].repeat_interleave(
            picked.degree()
        )
        place_z += picked.rows() * (2 * self._most)
        flat = out.view(-1)
        flat[place_z] = picked.index.to(self.dtype) + 1
        flat[place_z + self._most] = picked.weight
        return out


def packed_rows(csr: CSR, world: World, *, normalise: bool = False) -> PackedRows | None:
    """Return the reader, or None where rows written out are not much longer; all ranks call."""
    mine = [float(csr.degree().max()) if csr.num_rows else 0.0]
    most = max(1, int(max(row[0] for row in world.gather_numbers(mine))))
    pays = _SHORTER * 2 * most <= csr.num_cols <= _MOST_COLUMNS
    return PackedRows(csr, most, normalise=normalise) if pays else None


def unpack_rows(packed_R2K: Tensor, ids_R: Tensor, width: int) -> SparseRows:
    """Return the rows as a first layer reads them."""
    columns_RK, values_RK = packed_R2K.chunk(2, dim=1)
    is_value_RK = columns_RK > 0
    indptr = torch.zeros(len(packed_R2K) + 1, dtype=torch.int64, device=packed_R2K.device)
    indptr[1:] = is_value_RK.sum(dim=1).cumsum(0)
    index_z = (columns_RK[is_value_RK] - 1).to(torch.int32)
    return SparseRows(CSR(indptr, index_z, width, values_RK[is_value_RK]), ids_R)
