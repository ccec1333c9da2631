"""Features as rows by number: as they lie, scaled, or with their zeros written out; and degrees.

Shapes: N owned rows, R rows read, F features, M rows written, V nodes of a minibatch.
"""

import torch
from torch import Tensor

from siafu.minibatch.placement import as_movable
from siafu.nn import Sampled, rows_to_sum_one
from siafu.nn.normalisation import added_loop, summed_weights
from siafu.nn.sparse import dense
from siafu.ops import CSR
from siafu.shard import HeldRows, RowReader, Shard


def feature_rows(shard: Shard, *, normalise: bool, dtype: torch.dtype = torch.float32) -> RowReader:
    """Return the features of a shard, which may lie on disk."""
    reader = _SparseRows(shard.x) if isinstance(shard.x, CSR) else shard.reader("x")
    assert reader is not None, "require(shard, 'x') comes first"
    reader = _NormalisedRows(reader) if normalise else reader
    return reader if reader.dtype == dtype else _TypedRows(reader, dtype)


class _TypedRows:
    """Features in another type: they travel, and lie on a device, in that."""

    def __init__(self, x: RowReader, dtype: torch.dtype) -> None:
        self._x, self.shape, self.dtype = x, x.shape, dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows."""
        return self._x.read(rows_R).to(self.dtype)

    @property
    def nbytes(self) -> int:
        """What they take where they are moved to."""
        return as_movable(self._x).nbytes * self.dtype.itemsize // self._x.dtype.itemsize

    def to(self, device: torch.device) -> RowReader:
        """Return the same rows on a device: converted once, if they are dense."""
        there = as_movable(self._x).to(device)
        if isinstance(there, HeldRows):
            return HeldRows(there.rows.to(self.dtype))
        return _TypedRows(there, self.dtype)


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


def fact_rows(shard: Shard) -> Tensor:
    """Return [N, 3]: in-edges, GCN's degree, its added loop."""
    facts_N3 = torch.empty(shard.num_owned, 3, dtype=torch.float64)
    for low, high, csr in shard.edge_pieces():
        loop = added_loop(csr, first_row=low)
        rows = [csr.degree().double(), summed_weights(csr) + loop, loop]
        facts_N3[low:high] = torch.stack(rows, dim=1)
    return facts_N3


def sampled_of(csr: CSR, facts_V3: Tensor, removed_M: Tensor | None, *, by_weight: bool) -> Sampled:
    """Return what the whole graph has of a layer's rows, less edges that were taken away."""
    count_N, degree_N, loop_N = facts_V3[: csr.num_cols].unbind(1)
    count_M = count_N[: csr.num_rows]
    if removed_M is not None:
        gone_M = removed_M[: csr.num_rows].to(count_M)
        count_M, degree_N = count_M - gone_M, degree_N.clone()
        degree_N[: csr.num_rows] -= gone_M
    # Drawn by weight, edges stand for the sum of weights; drawn alike, for their count.
    whole_M = (degree_N - loop_N)[: csr.num_rows] if by_weight else count_M
    return Sampled(whole_M / csr.degree().clamp(min=1), count_M, degree_N, loop_N)
