"""Features as rows by number: as they lie, scaled, or with their zeros written out.

Shapes: R rows read, F features.
"""

import torch
from torch import Tensor

from siafu.minibatch.placement import as_movable
from siafu.nn import rows_to_sum_one
from siafu.nn.sparse import dense
from siafu.ops import CSR
from siafu.shard import HeldRows, RowReader, Shard


def feature_rows(shard: Shard, *, normalise: bool) -> RowReader:
    """Return the features of a shard, which may lie on disk."""
    reader = _SparseRows(shard.x) if isinstance(shard.x, CSR) else shard.reader("x")
    assert reader is not None, "require(shard, 'x') comes first"
    return _NormalisedRows(reader) if normalise else reader


class _NormalisedRows:
    """Features whose rows sum to 1; those that sum to 0 or less stay."""

    def __init__(self, x: RowReader) -> None:
        self._x, self.shape, self.dtype = x, x.shape, x.dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, scaled."""
        return dense(rows_to_sum_one(self._x.read(rows_R)))

    @property
    def nbytes(self) -> int:
        """What they take."""
        return as_movable(self._x).nbytes

    def to(self, device: torch.device) -> RowReader:
        """Return the same rows on a device: scaled once, if they are dense."""
        there = as_movable(self._x).to(device)
        if isinstance(there, HeldRows):
            return HeldRows(dense(rows_to_sum_one(there.rows)))
        return _NormalisedRows(there)


class _SparseRows:
    """Sparse features, whose zeros are written out for the rows that are read."""

    def __init__(self, csr: CSR) -> None:
        assert csr.weight is not None
        self._csr = csr
        self.shape, self.dtype = (csr.num_rows, csr.num_cols), csr.weight.dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, dense."""
        picked, _ = self._csr.select_rows(rows_R)
        assert picked.weight is not None
        out_RF = picked.weight.new_zeros(len(rows_R), self.shape[1])
        place = (picked.rows(), picked.index.long())
        return out_RF.index_put_(place, picked.weight, accumulate=True)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return self._csr.nbytes

    def to(self, device: torch.device) -> "_SparseRows":
        """Return the same rows on a device."""
        return _SparseRows(self._csr.to(device))
