"""The type that rows are computed and travel in: torch's autocast decides, layers ask.

Inside `computing("bf16", ...)` products are of bfloat16; so are rows that are gathered or sent,
while what is summed (over neighbours, in a softmax, in a norm) is float32, and so are parameters.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siafu.errors import ConfigError
from siafu.ops import sum_type

Precision = Literal["bf16", "float32", "float64"]

BYTES: dict[Precision, int] = {"bf16": 2, "float32": 4, "float64": 8}
"""Of an entry of a row."""


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return what a forward pass runs in; backward runs outside of it."""
    if precision != "bf16":
        return nullcontext()
    return _autocast(device, torch.bfloat16, is_on=True)


def computing_as_now(device: torch.device) -> AbstractContextManager[object]:
    """Return the same as is around this call, for a later one that must give equal numbers."""
    kind, is_on = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
    return _autocast(device, kind, is_on=is_on)


def _autocast(device: torch.device, kind: torch.dtype, *, is_on: bool) -> torch.autocast:
    # Its cache would hand a weight that was cast without gradients to a call that needs them.
    return torch.autocast(device.type, kind, is_on, cache_enabled=False)


def as_rows(x: Tensor) -> Tensor:
    """Return rows in the type that they are computed and travel in; float64 and numbers stay."""
    if x.dtype != torch.float32 or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def widened_message(layer: nn.Module, given: Any, out: Any) -> Any:
    """Return a PyG layer's messages as they are added up."""
    return out.to(sum_type(out.dtype)) if isinstance(out, Tensor) else out


def weight_type(precision: Precision) -> torch.dtype:
    """Return the type of parameters, and of all that is told; float32 is torch's default type."""
    return torch.float64 if precision == "float64" else torch.get_default_dtype()


def stored_type(precision: Precision) -> torch.dtype:
    """Return the type that input rows may be held in: they are rounded to it before all else."""
    return torch.bfloat16 if precision == "bf16" else weight_type(precision)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise where bfloat16 would be computed without the instructions for it."""
    if precision != "bf16" or _has_bfloat16(device):
        return
    raise ConfigError(
        "This device has no instructions for bfloat16, so that bf16 would be slower than float32.",
        seen=f"--precision bf16 on {_described(device)}",
        fix="leave --precision out, or use a CPU with AMX or AVX512-BF16, or a GPU from Ampere on",
    )


def usable(precision: Precision, device: torch.device) -> Precision:
    """Return what a trained model answers in here: float32 where there is no bfloat16."""
    return "float32" if precision == "bf16" and not _has_bfloat16(device) else precision


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _described(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "a CPU without AMX and AVX512-BF16"
