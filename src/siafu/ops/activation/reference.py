"""Bias, ReLU and dropout in plain torch: the reference, and the way without compilers.

Shapes: N rows, W columns, B = W / 32 rounded up words of a mask, M destination rows of a sum.
"""

import torch
from torch import Tensor

from siafu.ops.contract import Draw, Edges
from siafu.ops.csr import reference as csr_reference
from siafu.ops.random import reference as random_reference

DTYPES = frozenset({torch.float32, torch.float64})

WORD_BITS = 32


def activate_into(
    draw: Draw,
    z_NW: Tensor,
    bias_W: Tensor,
    out_NW: Tensor,
    mask_NB: Tensor,
    *,
    threshold: int,
    scale: float,
) -> None:
    """See `contract.ActivationKernels`."""
    moved_NW = z_NW + bias_W
    kept_NW = random_reference.draw_words(draw, z_NW.size(1)) >= threshold
    passes_NW = kept_NW & ~(moved_NW <= 0)
    mask_NB.copy_(packed(passes_NW))
    out_NW.copy_(torch.where(passes_NW, moved_NW * scale, 0))


def grad_into(mask_NB: Tensor, grad_NW: Tensor, bias_W: Tensor, *, scale: float) -> None:
    """See `contract.ActivationKernels`."""
    passes_NW = unpacked(mask_NB, grad_NW.size(1))
    grad_NW.copy_(torch.where(passes_NW, grad_NW * scale, 0))
    bias_W.copy_(grad_NW.sum(dim=0))


def sum_grad_into(
    edges: Edges,
    x_CW: Tensor,
    own_MW: Tensor | None,
    mask_NB: Tensor,
    grad_NW: Tensor,
    bias_W: Tensor,
    *,
    scale: float,
) -> None:
    """See `contract.ActivationKernels`."""
    csr_reference.sum_into(edges, x_CW, grad_NW, accumulate=False)
    if own_MW is not None:
        grad_NW[: len(own_MW)] += own_MW
    grad_into(mask_NB, grad_NW, bias_W, scale=scale)


def packed(flags_NW: Tensor) -> Tensor:
    """Return int32 words [N, B]: column c is bit c % 32 of word c // 32; what is left over is 0."""
    rows, width = flags_NW.shape
    words = -(-width // WORD_BITS)
    bits_NBb = flags_NW.new_zeros(rows, words * WORD_BITS, dtype=torch.int64)
    bits_NBb[:, :width] = flags_NW
    place_b = torch.arange(WORD_BITS, device=flags_NW.device)
    word_NB = (bits_NBb.view(rows, words, WORD_BITS) << place_b).sum(dim=2)
    return torch.where(word_NB >= 1 << 31, word_NB - (1 << 32), word_NB).to(torch.int32)


def unpacked(mask_NB: Tensor, width: int) -> Tensor:
    """Return the flags that were packed."""
    place_b = torch.arange(WORD_BITS, device=mask_NB.device)
    bits_NBb = (mask_NB.long()[:, :, None] >> place_b) & 1
    return bits_NBb.flatten(1)[:, :width] != 0
