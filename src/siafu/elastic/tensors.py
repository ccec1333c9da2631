"""Tensors as raw frames, and the entries of a header that say what they are.

An entry is `[name, dtype, shape]`; its frame holds the elements in order, little-endian.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from siafu.elastic.task import Tensors
from siafu.errors import TaskError

Frame = bytes | bytearray | memoryview

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_DIMS = 8
MOST_TENSORS = 1024
LONGEST_NAME = 256


def is_entry(value: Any, most_bytes: int) -> bool:
    """Return whether a value from a header tells of one tensor within the limits."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    name, dtype, shape = value
    if not is_name(name) or not isinstance(dtype, str) or dtype not in DTYPES:
        return False
    if not isinstance(shape, list) or len(shape) > MOST_DIMS:
        return False
    if not all(type(dim) is int and 0 <= dim <= most_bytes for dim in shape):
        return False
    # A zero among them makes the tensor empty; the others still have to be sane.
    return prod(max(dim, 1) for dim in shape) * DTYPES[dtype].itemsize <= max(most_bytes, 8)


def is_name(value: Any) -> bool:
    """Return whether a value can name a tensor or a bundle."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def encode_tensors(tensors: Tensors, most_bytes: int) -> tuple[list[Any], list[Frame]]:
    """Return a header's entries, and the frames in the same order."""
    entries: list[Any] = []
    frames: list[Frame] = []
    for name, tensor in tensors.items():
        entry = [name, NAMES.get(tensor.dtype, ""), list(tensor.shape)]
        if tensor.layout is not torch.strided or not is_entry(entry, most_bytes):
            raise TaskError(
                "A tensor is of a kind or size that doesn't travel.",
                seen=f"{name}: {tensor.dtype}, {tensor.layout}, {list(tensor.shape)}",
                fix=f"use {', '.join(DTYPES)}; {MOST_DIMS} dims, {most_bytes} bytes at most",
            )
        entries.append(entry)
        frames.append(_bytes_of(tensor))
    return entries, frames


def _bytes_of(tensor: Tensor) -> Frame:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def decode_tensors(entries: Iterable[Sequence[Any]], frames: Iterable[Frame]) -> Tensors:
    """Return the tensors by name; raise TaskError where a frame is not what its entry says.

    The entries have passed `is_entry`, and there is one frame for each. Memory is taken for frames
    that are there, never for a size that an entry merely claims.
    """
    tensors: Tensors = {}
    for (name, dtype, shape), frame in zip(entries, frames, strict=True):
        if name in tensors:
            raise _unreadable(f"two tensors are named {name!r}")
        claimed = prod(shape) * DTYPES[dtype].itemsize
        if len(frame) != claimed:
            raise _unreadable(f"{name!r} claims {claimed} bytes, and {len(frame)} came")
        tensors[name] = _tensor(frame, DTYPES[dtype], shape)
    return tensors


def _tensor(frame: Frame, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not len(frame):
        return torch.empty(shape, dtype=dtype)
    # A copy: frames may be read-only, at any address, and belong to the socket.
    flat = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
    if dtype is torch.bool and int(flat.max()) > 1:
        raise _unreadable("a truth value that is neither 0 nor 1")
    return flat.view(dtype).reshape(shape)


def _unreadable(seen: str) -> TaskError:
    return TaskError(
        "A message can't be read.", seen=seen, fix="use the same siafu on both machines"
    )
