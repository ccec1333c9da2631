"""Rows on their way to and from a pool in fewer bits, rounded at random and right on average.

The wire of `siafu.ops`: a quantised tensor NAME travels as `q.NAME`, its payload, and `form.NAME`,
its bits, type and shape. Draws are keyed by (epoch, task, name, vertex, column), so that an attempt
made twice sends the same bytes.
"""

import zlib

import torch
from torch import Tensor

from siafu.elastic.task import Fact, Tensors
from siafu.errors import TaskError
from siafu.ops import DrawKey, WireLayout, decode, encode
from siafu.ops.wire import DTYPES, WIDTHS

RAW = 32


def encode_rows(tensors: Tensors, ids_N: Tensor, bits: int, purpose: str, draw: DrawKey) -> Tensors:
    """Return the tensors with every one that has a float row for each vertex in `bits` bits."""
    if bits == RAW:
        return tensors
    out: Tensors = {}
    for name, tensor in tensors.items():
        if not _is_of_vertices(name, tensor, len(ids_N)):
            out[name] = tensor
            continue
        flat = tensor.flatten(1)
        layout = _layout(bits, len(flat), flat.size(1), tensor.dtype)
        key = DrawKey(draw.seed, draw.epoch, zlib.crc32(f"{purpose} {name}".encode()))
        out[f"q.{name}"] = encode(flat, None, layout, key, ids_N).payload
        form = [bits, DTYPES.index(tensor.dtype), *tensor.shape]
        out[f"form.{name}"] = torch.tensor(form, dtype=torch.int64)
    return out


def _is_of_vertices(name: str, tensor: Tensor, count: int) -> bool:
    has_rows = tensor.dim() > 1 and len(tensor) == count and tensor.dtype in DTYPES
    return has_rows and tensor.numel() > 0 and not name.startswith(("w.", "g."))


def _layout(bits: int, rows: int, width: int, dtype: torch.dtype) -> WireLayout:
    return WireLayout.build(torch.full((rows,), bits, dtype=torch.uint8), width, dtype)


def decode_rows(tensors: Tensors) -> Tensors:
    """Return the tensors as they were before `encode_rows`, but for the rounding."""
    coded = [name.removeprefix("q.") for name in tensors if name.startswith("q.")]
    out = {name: t for name, t in tensors.items() if not name.startswith(("q.", "form."))}
    for name in coded:
        form = tensors.get(f"form.{name}", torch.zeros(0)).flatten().tolist()
        payload = tensors[f"q.{name}"]
        if not _makes_sense(form, payload):
            raise TaskError(
                "Quantised rows came without a form that makes sense.",
                seen=f"{name}: {form[:8]} for {payload.numel()} bytes",
                fix="use the same version of siafu on both sides",
            )
        bits, kind, *shape = form
        width = torch.Size(shape[1:]).numel()
        out[name] = decode(payload, _layout(bits, shape[0], width, DTYPES[kind])).view(*shape)
    return out


def _makes_sense(form: list[int], payload: Tensor) -> bool:
    """Whether rows of that form could be in the payload: each of them takes a byte at least."""
    if len(form) < 4 or not all(isinstance(number, int) for number in form):
        return False
    bits, kind, count, *rest = form
    is_known = bits in WIDTHS and kind in range(len(DTYPES))
    return is_known and 1 <= count <= payload.numel() and min(rest) >= 1


def draw_of(facts: dict[str, Fact]) -> DrawKey:
    """Return the seed and epoch that a task's draws go by."""
    return DrawKey(int(facts["seed"]), int(facts["epoch"]), 0)
