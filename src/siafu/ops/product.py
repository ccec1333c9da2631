"""Products of many rows with a map, where torch's own leave half of a processor unused.

Torch multiplies float32 with MKL, which takes only AVX2 on AMD's processors; oneDNN, which torch
has too, takes AVX-512. On Zen 5 that is 1.5 to 2.1 x as fast. Rows go through it in pieces that fit
a cache, of few shapes: it keeps what it prepared for each shape it has seen. A row's bits depend
neither on where it stands nor on the number of threads, a gradient's not on the latter.

Shapes: N rows, P rows of a piece, D input width, O output width.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PIECE_ROWS = 512
"""Rows at once for each thread."""
STEP_ROWS = 64
"""All pieces are a multiple of these, so that shapes are few; what is less is padded."""
MOST_WIDTH = 1024
"""Above it oneDNN may share out one sum among threads, and its bits depend on how many."""
GRADIENT_ROWS = MOST_WIDTH
"""Rows at once whose products are added up, for all threads: the order of a sum is part of it."""
LEAST_MAP = 64 * 64
"""Numbers in a map below which a call costs as much as it saves."""


@cache
def _is_faster_here() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.enabled:
        return False
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return is_zen5(described) and torch.backends.mkldnn.is_available()


def is_zen5(described: str) -> bool:
    """Return whether this is what Linux says of a processor that all this was measured on."""
    return bool(re.search(r"^vendor_id\s*: AuthenticAMD\ncpu family\s*: 26$", described, re.M))


def _is_taken(rows: Tensor, width: int) -> bool:
    """Return whether a product of rows with a map to such a width is oneDNN's."""
    is_plain = rows.device.type == "cpu" and rows.dtype == torch.float32
    return is_plain and rows.size(1) * width >= LEAST_MAP and _is_faster_here()


def _pieces(count: int) -> Iterator[slice]:
    """Yield pieces for all threads, then for one each, then the rest but for its last rows."""
    first, rest = 0, count // STEP_ROWS * STEP_ROWS
    for size in (PIECE_ROWS * torch.get_num_threads(), PIECE_ROWS, rest % PIECE_ROWS):
        while size and first + size <= rest:
            yield slice(first, first + size)
            first += size
    if first < count:
        yield slice(first, count)


def _multiply(rows_PD: Tensor, weight_OD: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows_PD, weight_OD, None, "none", [], "")
    return out


def _piece(x_ND: Tensor, weight_OD: Tensor, piece: slice) -> Tensor:
    """Return some rows of x W^T."""
    rows_PD, count = x_ND[piece], piece.stop - piece.start
    if missing := -count % STEP_ROWS:
        rows_PD = functional.pad(rows_PD, (0, 0, 0, missing))
    return _multiply(rows_PD, weight_OD)[:count]


def map_rows(x_ND: Tensor, weight_OD: Tensor) -> Tensor:
    """Return x W^T, without a gradient; both are of one type."""
    if x_ND.size(1) > MOST_WIDTH or not _is_taken(x_ND, len(weight_OD)):
        return _torchs_rows(x_ND, weight_OD)
    out_NO = x_ND.new_empty(len(x_ND), len(weight_OD))
    for piece in _pieces(len(x_ND)):
        out_NO[piece] = _piece(x_ND, weight_OD, piece)
    return out_NO


def add_mapped(onto_NO: Tensor, x_ND: Tensor, weight_OD: Tensor) -> None:
    """Add x W^T to rows, without a gradient; all are of one type."""
    if x_ND.size(1) > MOST_WIDTH or not _is_taken(x_ND, len(weight_OD)):
        onto_NO.addmm_(x_ND, weight_OD.t())
        return
    for piece in _pieces(len(x_ND)):
        onto_NO[piece].add_(_piece(x_ND, weight_OD, piece))


def map_gradient(grad_NO: Tensor, x_ND: Tensor) -> Tensor:
    """Return grad^T x, the gradient of the map; both are of one type."""
    count = len(x_ND) // STEP_ROWS * STEP_ROWS
    if not count or not _is_taken(x_ND, grad_NO.size(1)):
        return _torchs_gradient(grad_NO, x_ND)
    # The wider side comes second: of that one, more threads than one prepare the other layout.
    turned = grad_NO.size(1) > x_ND.size(1)
    one_PA, other_PB = (x_ND, grad_NO) if turned else (grad_NO, x_ND)
    out_AB = x_ND.new_zeros(one_PA.size(1), other_PB.size(1))
    for first in range(0, count, GRADIENT_ROWS):
        piece = slice(first, min(first + GRADIENT_ROWS, count))
        out_AB.add_(_multiply(one_PA[piece].t(), other_PB[piece].t()))
    if count < len(x_ND):
        out_AB.addmm_(one_PA[count:].t(), other_PB[count:])
    return out_AB.t().contiguous() if turned else out_AB


def _torchs_rows(x_ND: Tensor, weight_OD: Tensor) -> Tensor:
    return x_ND @ weight_OD.t()


def _torchs_gradient(grad_NO: Tensor, x_ND: Tensor) -> Tensor:
    return grad_NO.t() @ x_ND


class _Linear(torch.autograd.Function):
    """x W^T + b, or added to rows that are used up."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None, onto_NO: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x_ND, weight_OD)
        if onto_NO is not None:
            ctx.mark_dirty(onto_NO)
            add_mapped(onto_NO, x_ND, weight_OD)
            return onto_NO
        out_NO = map_rows(x_ND, weight_OD)
        return out_NO if bias_O is None else out_NO.add_(bias_O)

    @staticmethod
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_OD = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_onto = ctx.needs_input_grad
        by_rows, by_sums = map_rows, map_gradient
        if torch.is_grad_enabled():  # who asks for gradients of gradients is given torch's
            by_rows, by_sums = _torchs_rows, _torchs_gradient
        return (
            by_rows(grad_NO, weight_OD.t()) if needs_x else None,
            by_sums(grad_NO, x_ND) if needs_weight else None,
            grad_NO.sum(0) if needs_bias else None,
            grad_NO if needs_onto else None,
        )


def linear(x_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x W^T + b."""
    if not _takes(x_ND, weight_OD):
        return functional.linear(x_ND, weight_OD, bias_O)
    out: Tensor = _Linear.apply(x_ND, weight_OD, bias_O, None)
    return out


def linear_onto(onto_NO: Tensor, x_ND: Tensor, weight_OD: Tensor) -> Tensor:
    """Return onto + x W^T without a pass of its own for the sum; `onto` is used up."""
    if not onto_NO.dtype == x_ND.dtype == weight_OD.dtype:
        return torch.addmm(onto_NO, x_ND, weight_OD.t())  # autocast settles the type
    if not _takes(x_ND, weight_OD):
        return onto_NO.addmm_(x_ND, weight_OD.t())
    out: Tensor = _Linear.apply(x_ND, weight_OD, None, onto_NO)
    return out


def _takes(x_ND: Tensor, weight_OD: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x_ND.dim() == weight_OD.dim() == 2
        and weight_OD.dtype == torch.float32
        and _is_taken(x_ND, len(weight_OD))
        and not torch.is_autocast_enabled("cpu")
    )
