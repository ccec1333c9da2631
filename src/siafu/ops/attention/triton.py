"""GATv2 and dot-product attention for CUDA, written in Triton: what is launched.

A program owns rows (or source columns) and some heads: no atomics, and results repeat. The price is
that backward gathers twice, for columns and for rows.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from siafu.ops.attention.triton_grad import grad_columns, grad_rows
from siafu.ops.attention.triton_kinds import fold_rows
from siafu.ops.attention.triton_rows import HUB_SEARCH_ROWS, drop_options, launch
from siafu.ops.contract import AttentionBlock, AttentionGrads, RowGrads, Softmax, Turned
from siafu.ops.csr import reference as csr_reference

ROWS_A_PROGRAM = 16
"""Rows whose part of the gradient of `att` is summed before it is written."""


class VectorAttention:
    """The kernels of one kind whose ends are vectors."""

    DTYPES = csr_reference.DTYPES

    def __init__(self, *, v2: bool) -> None:
        self._v2 = v2

    def fold_into(self, block: AttentionBlock, state: Softmax) -> None:
        """See `contract.AttentionKernels`."""
        ids_and_key, options = drop_options(block.drop)
        launch(
            fold_rows,
            len(block.rows[0]),
            self._shape(block),
            block.indptr,
            block.index,
            *self._tensors(block),
            *state,
            *ids_and_key,
            factor=block.factor,
            V2=self._v2,
            **options,
        )

    def grad_into(
        self, block: AttentionBlock, back: Turned, rows: RowGrads, grads: AttentionGrads
    ) -> None:
        """See `contract.AttentionKernels`."""
        ids_and_key, options = drop_options(block.drop)
        options |= {"factor": block.factor, "V2": self._v2}
        shape, inputs = self._shape(block), (*self._tensors(block), *rows)
        launch(
            grad_columns,
            len(block.sources[0]),
            shape,
            back.indptr,
            back.index,
            back.order,
            *inputs,
            grads.sources[0],
            grads.sources[-1],
            *ids_and_key,
            **options,
        )
        parts = self._parts(block)
        launch(
            grad_rows,
            len(block.rows[0]),
            shape,
            block.indptr,
            block.index,
            *inputs,
            grads.rows[0],
            grads.edge,
            *ids_and_key,
            rows=ROWS_A_PROGRAM if self._v2 else 1,
            parts=parts,
            **options,
        )
        for total in grads.shared:
            for part in parts:
                if part is not None:
                    total.add_(part.sum(dim=0))

    def _shape(self, block: AttentionBlock) -> tuple[int, int]:
        return block.sources[0].size(1), block.sources[0].size(2)

    def _tensors(self, block: AttentionBlock) -> tuple[Any, ...]:
        att = block.shared[0] if self._v2 else None
        return block.sources[0], block.sources[-1], block.rows[0], att, block.edge

    def _parts(self, block: AttentionBlock) -> tuple[Tensor | None, Tensor | None]:
        """Return where programs leave their parts of the gradient of `att`."""
        if not self._v2:
            return None, None
        att, num_rows = block.shared[0], len(block.rows[0])
        wide = torch.float64 if att.dtype == torch.float64 else torch.float32
        short, hubs = (
            torch.zeros(triton.cdiv(num_rows, n), *att.shape, dtype=wide, device=att.device)
            for n in (ROWS_A_PROGRAM, HUB_SEARCH_ROWS)
        )
        return short, hubs
