"""Named tensors as bytes and back: the one form in which they reach the workers of every pool.

A block is a layout, an entry `[name, dtype, shape]` per tensor, and for each tensor its part: the
elements in order, little-endian. Parts are frames of a message, arrays, or lie one after another in
one memory, each at a multiple of 64 bytes. A layout is data: nothing in it is run or unpickled.

Before that, rows may be rounded to fewer bits, at random and right on average, by the wire of
`siafu.ops`: a tensor NAME then travels as `q.NAME`, its payload, and `form.NAME`, its bits, type
and shape. Draws are keyed by (epoch, task, name, node, column), so that an attempt made twice
sends the same bytes.
"""

import zlib
from collections.abc import Sequence
from math import prod
from typing import Annotated, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from siafu.elastic.task import Fact, Tensors
from siafu.errors import TaskError
from siafu.ops import DrawKey, WireLayout, decode, encode
from siafu.ops.wire import DTYPES as ROUNDED
from siafu.ops.wire import WIDTHS

MOST_BYTES = 1 << 48
"""Of one tensor, where a pool has no limit of its own."""
MOST_TENSORS = 1024
MOST_DIMS = 8
LONGEST_NAME = 256
RAW = 32
"""Bits of an entry that is not rounded."""
_ALIGNMENT_BYTES = 64


DtypeName = Literal[
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}
Name = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^(?:[^\p{C}\p{Z}]| )+$")]
"""Of a tensor, a bundle or a fact: letters that can be printed."""
Shape = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MOST_BYTES)], ...], Field(max_length=MOST_DIMS)
]
Entry = tuple[Name, DtypeName, Shape]
Layout = Annotated[tuple[Entry, ...], Field(max_length=MOST_TENSORS)]


def encode_block(
    tensors: Tensors, most_bytes: int = MOST_BYTES
) -> tuple[tuple[Entry, ...], list[Tensor]]:
    """Return the layout of the tensors and their parts, of type uint8, copied only where needed."""
    layout: list[Entry] = []
    parts: list[Tensor] = []
    for name, tensor in tensors.items():
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        is_plain = tensor.layout is torch.strided and dtype in DTYPES and len(shape) <= MOST_DIMS
        if not is_plain or _sane_bytes(dtype, shape) > most_bytes:
            raise TaskError(
                "A tensor is of a kind or size that doesn't travel.",
                seen=f"{name}: {tensor.dtype}, {tensor.layout}, {list(shape)}",
                fix=f"use dense tensors of {', '.join(DTYPES)}; "
                f"{MOST_DIMS} dims, {most_bytes} bytes at most",
            )
        layout.append((name, dtype, shape))  # type: ignore[arg-type]
        parts.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
    return tuple(layout), parts


def decode_block(
    layout: Sequence[Entry], parts: Sequence[Tensor], most_bytes: int = MOST_BYTES
) -> Tensors:
    """Return the tensors by name, on the memory of the parts.

    Raise TaskError where a part is not what its entry says: memory is taken for parts that are
    there, never for a size that an entry merely claims.
    """
    if len(layout) != len(parts):
        raise unreadable(f"{len(parts)} parts for {len(layout)} tensors")
    tensors: Tensors = {}
    for (name, dtype, shape), part in zip(layout, parts, strict=True):
        if name in tensors:
            raise unreadable(f"two tensors are named {name!r}")
        kind = DTYPES[dtype]
        claimed = prod(shape) * kind.itemsize
        if part.numel() != claimed or (claimed or _sane_bytes(dtype, shape)) > max(most_bytes, 8):
            raise unreadable(f"{name!r} claims {dtype} {list(shape)}, and {len(part)} bytes came")
        if kind is torch.bool and claimed and int(part.max()) > 1:
            raise unreadable(f"{name!r} has a truth value that is neither 0 nor 1")
        tensors[name] = part.view(kind).view(shape)
    return tensors


def spans(layout: Sequence[Entry]) -> list[slice]:
    """Return where each tensor of a block lies in one memory."""
    found, end = [], 0
    for _, dtype, shape in layout:
        start = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = start + prod(shape) * DTYPES[dtype].itemsize
        found.append(slice(start, end))
    return found


def _sane_bytes(dtype: str, shape: Sequence[int]) -> int:
    # A zero among them makes the tensor empty; the others still have to be sane.
    return prod(max(dim, 1) for dim in shape) * DTYPES[dtype].itemsize


def unreadable(seen: str) -> TaskError:
    """Return the error for what arrived and makes no sense."""
    return TaskError(
        "A message can't be read.", seen=seen, fix="use the same siafu on both machines"
    )


def encode_rows(tensors: Tensors, ids_N: Tensor, bits: int, purpose: str, draw: DrawKey) -> Tensors:
    """Return the tensors with every one that has a float row for each node in `bits` bits."""
    if bits == RAW:
        return tensors
    out: Tensors = {}
    for name, tensor in tensors.items():
        if not _is_of_nodes(name, tensor, len(ids_N)):
            out[name] = tensor
            continue
        flat = tensor.flatten(1)
        layout = _layout(bits, len(flat), flat.size(1), tensor.dtype)
        key = DrawKey(draw.seed, draw.epoch, zlib.crc32(f"{purpose} {name}".encode()))
        out[f"q.{name}"] = encode(flat, None, layout, key, ids_N).payload
        form = [bits, ROUNDED.index(tensor.dtype), *tensor.shape]
        out[f"form.{name}"] = torch.tensor(form, dtype=torch.int64)
    return out


def _is_of_nodes(name: str, tensor: Tensor, count: int) -> bool:
    has_rows = tensor.dim() > 1 and len(tensor) == count and tensor.dtype in ROUNDED
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
        out[name] = decode(payload, _layout(bits, shape[0], width, ROUNDED[kind])).view(*shape)
    return out


def _makes_sense(form: list[int], payload: Tensor) -> bool:
    """Whether rows of that form could be in the payload: each of them takes a byte at least."""
    if len(form) < 4 or not all(isinstance(number, int) for number in form):
        return False
    bits, kind, count, *rest = form
    is_known = bits in WIDTHS and kind in range(len(ROUNDED))
    return is_known and 1 <= count <= payload.numel() and min(rest) >= 1


def draw_of(facts: dict[str, Fact]) -> DrawKey:
    """Return the seed and epoch that a task's draws go by."""
    return DrawKey(int(facts["seed"]), int(facts["epoch"]), 0)
