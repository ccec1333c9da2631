"""Philox4x32-10 (Salmon et al., 2011) in plain torch: the reference, and the way without compilers.

Shapes: N drawn rows, W drawn columns, B = W / 4 rounded up: one call of the cipher gives 4 columns.
Words are unsigned 32-bit numbers held in int64.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from siafu.ops.contract import Draw

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

Words = TypeVar("Words", int, Tensor)

WORD = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85

SLICE_WORDS = 1 << 20
"""Words drawn at once; the cipher keeps about ten int64 of each."""


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Any, Any]
) -> tuple[Words, Words, Words, Words]:
    """Return the four words of `counter` after ten rounds; takes integers or int64 tensors.

    A product of two words overflows int64, which wraps: its bits are right, and the masks drop
    the copies of the sign bit that the shift brings in.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & WORD) ^ c1 ^ k0,
            p1 & WORD,
            ((p0 >> 32) & WORD) ^ c3 ^ k1,
            p0 & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def signed_key(key: tuple[int, int]) -> int:
    """Return both words of a key as one int64."""
    both = key[0] | key[1] << 32
    return both - 2**64 if both >= 2**63 else both


def key_of(draw: Draw) -> tuple[int, int]:
    """Return the words of a draw's key, which the host waits for where they lie on a device."""
    if draw.held is None:
        return draw.key
    both = int(draw.held)
    return both & WORD, both >> 32 & WORD


def uniform_into(draw: Draw, out_NW: Tensor) -> None:
    """See `contract.RandomKernels`."""
    for lo, hi, words_SW in _word_slices(draw, out_NW.size(1)):
        out_NW[lo:hi] = words_to_uniform(words_SW, out_NW.dtype)


def dropout_into(
    draw: Draw,
    x_NW: Tensor,
    out_NW: Tensor,
    *,
    threshold: int,
    scale: float,
    relu: bool = False,
) -> None:
    """See `contract.RandomKernels`."""
    for lo, hi, words_SW in _word_slices(draw, out_NW.size(1)):
        x_SW = x_NW[lo:hi].relu() if relu else x_NW[lo:hi]
        out_NW[lo:hi] = torch.where(words_SW >= threshold, x_SW * scale, 0)


def relu_grad_into(dropped_NW: Tensor, grad_NW: Tensor, out_NW: Tensor, *, scale: float) -> None:
    """See `contract.RandomKernels`."""
    torch.mul(grad_NW, scale, out=out_NW).masked_fill_(dropped_NW <= 0, 0)


def words_to_uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in [0, 1): all 32 bits in float64; else the top 24, which float32 holds."""
    if dtype == torch.float64:
        return words.to(dtype) * 2.0**-32
    return ((words >> 8).to(torch.float32) * 2.0**-24).to(dtype)


def draw_words(draw: Draw, width: int) -> Tensor:
    """Return words_NW: column c is word c % 4 of the cipher's block c // 4.

    The counter is (low half of the first id, low half of the second, 16 high bits of each, block).
    """
    first_N1 = draw.first_N[:, None]
    second_N1 = torch.zeros_like(first_N1) if draw.second_N is None else draw.second_N[:, None]
    high_N1 = ((first_N1 >> 32 & 0xFFFF) << 16) | (second_N1 >> 32 & 0xFFFF)
    block_B = torch.arange((width + 3) // 4, device=first_N1.device)
    counter = torch.broadcast_tensors(first_N1 & WORD, second_N1 & WORD, high_N1, block_B)
    words_NB4 = torch.stack(philox(counter, key_of(draw)), dim=-1)
    return words_NB4.flatten(1)[:, :width]


def _word_slices(draw: Draw, width: int) -> Iterator[tuple[int, int, Tensor]]:
    step = max(1, SLICE_WORDS // max(1, width))
    for lo in range(0, len(draw.first_N), step):
        hi = min(lo + step, len(draw.first_N))
        second = None if draw.second_N is None else draw.second_N[lo:hi]
        yield lo, hi, draw_words(draw._replace(first_N=draw.first_N[lo:hi], second_N=second), width)
