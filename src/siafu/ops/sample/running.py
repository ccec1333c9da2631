"""Weights added up along each row: what a draw by weight is looked up in.

Shapes: N rows, E edges.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.ops.numba_jit import strict_kernel

Array = NDArray[Any]


def running_sums(indptr: Tensor, weight_E: Tensor) -> Tensor:
    """Return float64 [E] on CPU: of each edge and those before it in its row, one after another.

    Weights that are not above 0 count as 0.
    """
    out = np.empty(len(weight_E), np.float64)
    _add_up(indptr.numpy(), weight_E.contiguous().numpy(), out)
    return torch.from_numpy(out)


@strict_kernel
def _add_up(indptr: Array, weight: Array, out: Array) -> None:
    for row in range(len(indptr) - 1):
        total = 0.0
        for edge in range(indptr[row], indptr[row + 1]):
            w = np.float64(weight[edge])
            total += w if w > 0 else 0.0
            out[edge] = total
