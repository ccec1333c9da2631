"""Random numbers by address: a draw depends on (seed, epoch, purpose, id, column) and nothing else.

So a node or an edge draws the same on any rank, thread count and device, and a dropout mask is
drawn again in backward instead of being stored. Ids are below 2^48.

Shapes: N rows, E edges, W drawn columns, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.errors import ConfigError, PlanError
from siafu.ops.compiler_guard import guarded_late
from siafu.ops.contract import Draw
from siafu.ops.kernels import random_kernels, widened
from siafu.ops.quick import quick
from siafu.ops.random.reference import WORD, draw_words, philox, signed_key, words_to_uniform


@dataclass(frozen=True, slots=True)
class DrawKey:
    """What a set of draws is for; different keys give unrelated numbers."""

    seed: int
    """The run's seed, below 2^64."""

    epoch: int
    """Or any other count of repetitions, below 2^64."""

    purpose: int
    """Which use in the program: two uses in one epoch must differ here. Below 2^64."""

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "purpose"):
            if not 0 <= getattr(self, name) < 2**64:
                raise ConfigError(
                    f"{name} is out of range.",
                    seen=f"{name}={getattr(self, name)}",
                    fix="use a number from 0 to 2^64 - 1",
                )

    def row_words(self) -> tuple[int, int]:
        """Return the cipher key for draws by one id."""
        return self._words()[:2]

    def pair_words(self) -> tuple[int, int]:
        """Return the cipher key for draws by two ids, so that (v, 0) is not the draw of v."""
        return self._words()[2:]

    def held_words(self) -> tuple[int, int]:
        """Return the key for draws by one id and that by two, each as one int64."""
        return signed_key(self.row_words()), signed_key(self.pair_words())

    def _words(self) -> tuple[int, int, int, int]:
        counter = (*_halves(self.epoch), *_halves(self.purpose))
        return philox(counter, _halves(self.seed))


@dataclass(frozen=True, eq=False, slots=True)
class HeldKey:
    """A key in the memory of a device, read whenever a kernel runs.

    So a step that was recorded draws other numbers each time it is replayed.
    """

    words: Tensor
    """int64 [2]: what `DrawKey.held_words` gives."""


def uniform_reference(draw: Draw, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The definition: every word at once, in int64. Slow and large; used by tests alone."""
    return words_to_uniform(draw_words(draw, width), dtype)


def uniform_rows(
    key: DrawKey, ids_N: Tensor, width: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return u_NW in [0, 1) on the device of `ids_N`, the draw of (key, id, column)."""
    return _uniform(Draw(key.row_words(), _ids(ids_N)), width, dtype)


def uniform_pairs(
    key: DrawKey,
    first_E: Tensor,
    second_E: Tensor,
    width: int,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return u_EW in [0, 1) on the device of the ids, the draw of (key, first, second, column)."""
    return _uniform(Draw(key.pair_words(), _ids(first_E), _ids(second_E)), width, dtype)


def dropout_rows(
    x_ND: Tensor, ids_N: Tensor, key: DrawKey | HeldKey, p: float, *, relu: bool = False
) -> Tensor:
    """Return x with entries 0 at probability p, else scaled by 1 / (1 - p); no mask is stored.

    With `relu`, of max(x, 0), in the same pass; backward knows from the result where it was 0.
    """
    if isinstance(key, HeldKey):
        return _dropout(x_ND, Draw((0, 0), _ids(ids_N), held=key.words[:1]), p, relu=relu)
    return _dropout(x_ND, Draw(key.row_words(), _ids(ids_N)), p, relu=relu)


def dropout_grad(
    grad_ND: Tensor, ids_N: Tensor, key: DrawKey | HeldKey, p: float, dropped_ND: Tensor | None
) -> Tensor:
    """Return the gradient of what `dropout_rows` was given; its result is needed with `relu`."""
    if dropped_ND is not None:
        return _relu_grad(dropped_ND, grad_ND, 1 / (1 - p))
    return dropout_rows(grad_ND, ids_N, key, p)


def dropout_pairs(
    x_ED: Tensor, first_E: Tensor, second_E: Tensor, key: DrawKey | HeldKey, p: float
) -> Tensor:
    """Return `dropout_rows` of values that belong to edges, drawn by both ends' ids."""
    ends = _ids(first_E), _ids(second_E)
    if isinstance(key, HeldKey):
        return _dropout(x_ED, Draw((0, 0), *ends, key.words[1:]), p)
    return _dropout(x_ED, Draw(key.pair_words(), *ends), p)


@guarded_late
@torch.library.custom_op("siafu::dropout", mutates_args=())
def dropout(
    x: Tensor, first: Tensor, second: Tensor | None, key0: int, key1: int, p: float
) -> Tensor:
    """Return x with entries dropped; linear in x and its own transpose, so also its backward."""
    return _dropped(x, first, second, key0, key1, p)


def _dropped(
    x: Tensor,
    first: Tensor,
    second: Tensor | None,
    key0: int | Tensor,
    key1: int,
    p: float,
    relu: bool = False,
) -> Tensor:
    """A tensor in place of the first word is a key that lies on the device."""
    kernels = random_kernels(x.device)
    held, words = (key0, (0, 0)) if isinstance(key0, Tensor) else (None, (key0, key1))
    x_ND = widened(kernels, x).contiguous()
    out_ND = torch.empty_like(x_ND)
    kernels.dropout_into(
        Draw(words, first, second, held),
        x_ND,
        out_ND,
        threshold=round(p * 2**32),
        scale=1 / (1 - p),
        relu=relu,
    )
    return out_ND.to(x.dtype)


@dropout.register_fake
def _(x: Tensor, first: Tensor, second: Tensor | None, key0: int, key1: int, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, first, second, *ctx.key_and_p = inputs
    ctx.save_for_backward(first, second)


def _backward(call: Callable[..., Tensor], ctx: Any, grad_ND: Tensor) -> tuple[Any, ...]:
    first, second = ctx.saved_tensors
    return call(grad_ND, first, second, *ctx.key_and_p), None, None, None, None, None


dropout.register_autograd(partial(_backward, dropout), setup_context=_save)
_quick_dropout = quick(dropout, _dropped, _save, _backward)


def _save_result(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.scale = 1 / (1 - inputs[5])
    ctx.save_for_backward(output)


def _relu_backward(call: Callable[..., Tensor], ctx: Any, grad_ND: Tensor) -> tuple[Any, ...]:
    (dropped_ND,) = ctx.saved_tensors
    return _relu_grad(dropped_ND, grad_ND, ctx.scale), None, None, None, None, None, None


def _relu_grad(dropped_ND: Tensor, grad_ND: Tensor, scale: float) -> Tensor:
    kernels = random_kernels(dropped_ND.device)
    wide_ND, given_ND = widened(kernels, dropped_ND), widened(kernels, grad_ND).contiguous()
    out_ND = torch.empty_like(wide_ND)
    kernels.relu_grad_into(wide_ND, given_ND, out_ND, scale=scale)
    return out_ND.to(grad_ND.dtype)


_quick_relu_dropout = quick(
    lambda x, *rest: dropout(torch.relu(x), *rest[:-1]), _dropped, _save_result, _relu_backward
)


def _uniform(draw: Draw, width: int, dtype: torch.dtype) -> Tensor:
    _check_pair(draw)
    if dtype not in (torch.float32, torch.float64):
        # a narrower type would round the largest draws up to 1
        raise PlanError(
            "Draws come in two types.", seen=f"dtype={dtype}", fix="use float32 or float64"
        )
    out_NW = torch.empty(len(draw.first_N), width, dtype=dtype, device=draw.first_N.device)
    random_kernels(out_NW.device).uniform_into(draw, out_NW)
    return out_NW


def _dropout(x_ND: Tensor, draw: Draw, p: float, *, relu: bool = False) -> Tensor:
    if not 0 <= p < 1:
        raise ConfigError("The dropout rate is out of range.", seen=f"p={p}", fix="use 0 <= p < 1")
    if x_ND.dim() != 2 or len(x_ND) != len(draw.first_N) or x_ND.device != draw.first_N.device:
        raise PlanError(
            "Dropout needs one id for each row of x, on its device.",
            seen=f"x {tuple(x_ND.shape)} on {x_ND.device}, {len(draw.first_N)} ids",
            fix="pass the ids of exactly these rows",
        )
    _check_pair(draw)
    if p == 0:
        return torch.relu(x_ND) if relu else x_ND
    key = draw.key if draw.held is None else (draw.held, 0)
    given = x_ND, draw.first_N, draw.second_N, *key, p
    out_ND: Tensor = _quick_relu_dropout(*given, True) if relu else _quick_dropout(*given)
    return out_ND


def _check_pair(draw: Draw) -> None:
    if draw.second_N is not None and draw.second_N.shape != draw.first_N.shape:
        raise PlanError(
            "Pairs need as many second ids as first ids.",
            seen=f"{len(draw.first_N)} and {len(draw.second_N)}",
            fix="pass both ends of the same edges",
        )


def _ids(ids_N: Tensor) -> Tensor:
    if ids_N.dtype != torch.int64 or ids_N.dim() != 1:
        raise PlanError(
            "Ids must be a row of int64.",
            seen=f"{ids_N.dtype}, shape {tuple(ids_N.shape)}",
            fix="pass global ids as int64 [N]",
        )
    return ids_N.contiguous()


def _halves(number: int) -> tuple[int, int]:
    return number & WORD, number >> 32
