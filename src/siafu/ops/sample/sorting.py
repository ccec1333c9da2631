"""Sampling by draws of sources where tensors lie, by sorting: torch's own operations alone.

Shapes: Q requests, E their edges, S sampled edges.
"""

import torch
from torch import Tensor

from siafu.ops.random.reference import WORD, philox

_SIGN = 1 << 31
"""Of the upper word: flipped, unsigned numbers of 64 bits are in order as signed ones."""


def share(
    indptr: Tensor, ids_E: Tensor, batch_Q: Tensor, keys_B2: Tensor, fanout: int
) -> tuple[Tensor, Tensor]:
    """See `contract.SampleKernels`."""
    degree_Q = indptr.diff()
    row_E = torch.arange(len(degree_Q), device=indptr.device).repeat_interleave(
        degree_Q, output_size=len(ids_E)
    )
    key_E2 = keys_B2.index_select(0, batch_Q.index_select(0, row_E)) & WORD
    none_E = torch.zeros_like(ids_E)
    high_E = (ids_E >> 32 & 0xFFFF) << 16
    w0_E, w1_E, *_ = philox((ids_E & WORD, none_E, high_E, none_E), (key_E2[:, 0], key_E2[:, 1]))
    word_E = w0_E | (w1_E ^ _SIGN) << 32
    # Rows stay together, and within one the smallest draws come first.
    by_word_E = word_E.argsort(stable=True)
    order_E = by_word_E[row_E.index_select(0, by_word_E).argsort(stable=True)]
    place_E = torch.arange(len(ids_E), device=indptr.device) - indptr.index_select(0, row_E)
    kept_S = order_E[place_E < fanout].sort().values
    return degree_Q.clamp(max=fanout), kept_S
