"""Cutting a shard's edges into blocks by where their source rows live."""

import torch
from torch import Tensor

from siafu.ops import CSR


def split_columns(csr: CSR, num_owned: int, dtype: torch.dtype) -> tuple[CSR, CSR]:
    """Return the edges from owned columns and those from halo columns, weights in `dtype`."""
    weight = None if csr.weight is None else csr.weight.to(dtype)
    is_own_E = csr.index < num_owned
    own = _select(csr, is_own_E, weight, offset=0, num_cols=num_owned)
    halo = _select(csr, ~is_own_E, weight, offset=num_owned, num_cols=csr.num_cols - num_owned)
    return own, halo


def _select(csr: CSR, keep_E: Tensor, weight: Tensor | None, *, offset: int, num_cols: int) -> CSR:
    kept_before = torch.zeros(csr.num_edges + 1, dtype=torch.int64, device=csr.device)
    torch.cumsum(keep_E, 0, out=kept_before[1:])
    return CSR(
        indptr=kept_before[csr.indptr],
        index=csr.index[keep_E] - offset,
        num_cols=num_cols,
        weight=None if weight is None else weight[keep_E],
    )
