"""GCN's normalisation from the edges alone, without the host waiting for the device.

Shapes: N rows and columns, E edges. The matrix is square; its rows are sorted by column.
"""

import torch
from torch import Tensor

from siafu.ops.csr.matrix import CSR
from siafu.ops.csr.sum import neighbour_sum


def gcn_scales(csr: CSR, *, loops: bool = True) -> tuple[Tensor, Tensor]:
    """Return float64 root_N and own_N: D^-1/2, and the weight of a row in its own sum.

    GCN's D^-1/2 (A + I) D^-1/2 x is root * (A (root * x)) + own * x. I is only where a node has
    no loop yet; D sums the weights of in-edges with that loop. root is 0 where D is not positive.
    `loops=False` says that no row has an edge to itself, which spares a pass over all edges.
    """
    degree_N = csr.degree().double()
    if csr.weight is not None:
        ones_N1 = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.device)
        degree_N = neighbour_sum(csr.with_weight(csr.weight.double()), ones_N1)[:, 0]
    added_N = (_count_loops(csr) == 0).double() if loops else torch.ones_like(degree_N)
    degree_N = degree_N + added_N
    root_N = torch.where(degree_N > 0, degree_N.clamp(min=1e-300).rsqrt(), 0.0)
    return root_N, root_N.square() * added_N


def gcn_values(csr: CSR) -> Tensor:
    """Return float64 [E]: the normalised value of every edge, for those who need it spelt out."""
    root_N, _ = gcn_scales(csr)
    value_E = root_N[csr.rows()] * root_N.index_select(0, csr.index)
    return value_E if csr.weight is None else value_E * csr.weight


def _count_loops(csr: CSR) -> Tensor:
    """Return how many loops each row has, by a running count over all edges."""
    row_E = torch.arange(csr.num_rows, dtype=csr.index.dtype, device=csr.device)
    row_E = row_E.repeat_interleave(csr.degree(), output_size=csr.num_edges)
    counted = torch.zeros(csr.num_edges + 1, dtype=torch.int32, device=csr.device)
    torch.cumsum(csr.index == row_E, 0, dtype=torch.int32, out=counted[1:])
    return counted[csr.indptr].diff()
