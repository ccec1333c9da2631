"""A built-in model as any torch module is called: rows and an edge index, nothing of a run.

Shapes: N nodes, F features, E edges, O width of the output.
"""

import torch
from torch import Tensor

from siafu.nn.cards import ModelSpec
from siafu.nn.draws import Draws
from siafu.nn.local import LocalNeighbours
from siafu.nn.models import GNN
from siafu.nn.sparse import rows_to_sum_one
from siafu.ops import CSR


class PlainGNN(GNN):
    """A model that takes the tensors of PyG; its weights have the names they have in a run."""

    def __init__(self, spec: ModelSpec, *, sums_to_one: bool = False) -> None:
        super().__init__(spec)
        self.draws, self.sums_to_one = Draws(), sums_to_one

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
    ) -> Tensor:
        """Return out_NO of x_NF and edges [2, E] from sources to destinations."""
        self.draws.training = self.training
        self.draws.epoch += self.training
        order = edge_index[1].argsort(stable=True)
        indptr = torch.zeros(len(x) + 1, dtype=torch.int64, device=x.device)
        torch.cumsum(edge_index[1].bincount(minlength=len(x)), 0, out=indptr[1:])
        weight, attr, types = (
            None if column is None else column[order]
            for column in (edge_weight, edge_attr, edge_type)
        )
        csr = CSR.checked(indptr, edge_index[0][order], len(x), weight)
        ids_N = torch.arange(len(x), device=x.device)
        near = LocalNeighbours(csr, ids_N, self.draws, edge_attr=attr, edge_type=types)
        rows = rows_to_sum_one(x) if self.sums_to_one else x
        return super().forward(rows, near, self.draws)
