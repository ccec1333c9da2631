"""Tensors side by side in shared memory without a name.

Such memory is known by its descriptors and mappings alone, so the kernel frees it with the last of
them: nothing is left behind, however a process ends.
"""

import math
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from siafu.elastic.task import Tensors
from siafu.errors import TaskError

Layout = list[tuple[str, str, list[int], int]]
"""For each tensor its name, dtype, shape and first byte; goes through JSON."""

_ALIGNMENT_BYTES = 64
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


@dataclass(frozen=True, slots=True)
class Block:
    """Tensors that were written to shared memory, by this process's descriptor of it."""

    descriptor: int
    layout: Layout
    num_bytes: int
    """Of the tensors."""

    def close(self) -> None:
        """Let go of the descriptor; mappings of it stay."""
        os.close(self.descriptor)


def write_block(tensors: Tensors) -> Block:
    """Return a new block that holds copies of the tensors.

    Writing, unlike storing through a mapping, ends in an error where memory runs out, not in a
    signal that kills the process.
    """
    layout: Layout = []
    descriptor = _unnamed_memory()
    try:
        end = 0
        for name, tensor in tensors.items():
            start = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            layout.append((name, _dtype_name(name, tensor), list(tensor.shape), start))
            end = _write(descriptor, tensor, start)
        # A mapping needs a byte at least.
        os.ftruncate(descriptor, max(end, 1))
    except BaseException:
        os.close(descriptor)
        raise
    return Block(descriptor, layout, sum(tensor.nbytes for tensor in tensors.values()))


def map_block(descriptor: int, layout: Layout) -> Tensors:
    """Return the tensors of a block, without a copy; the descriptor may be closed afterwards.

    The mapping is private and ends with the last of the tensors: whoever writes to them gets a copy
    of those pages, and no other process sees it.
    """
    size = os.fstat(descriptor).st_size
    path = f"{_DESCRIPTORS}/{descriptor}"
    bytes_B = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    return {
        name: _tensor_at(bytes_B, _DTYPES[dtype], shape, start)
        for name, dtype, shape, start in layout
    }


def _tensor_at(bytes_B: Tensor, dtype: torch.dtype, shape: list[int], start: int) -> Tensor:
    end = start + math.prod(shape) * dtype.itemsize
    return bytes_B[start:end].view(dtype).view(shape)


def _dtype_name(name: str, tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES or tensor.layout is not torch.strided:
        raise TaskError(
            "A tensor of this type can't be handed to a worker.",
            seen=f"{name}: {tensor.dtype}, {tensor.layout}",
            fix=f"use a dense tensor of {', '.join(_DTYPES)}",
        )
    return dtype


def _write(descriptor: int, tensor: Tensor, start: int) -> int:
    """Write the tensor from byte `start` and return where it ends."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    bytes_B: Any = flat.view(torch.uint8).numpy()
    rest = memoryview(bytes_B)
    while rest:
        # One call takes 2 GiB at most.
        done = os.pwrite(descriptor, rest, start)
        start, rest = start + done, rest[done:]
    return start


def _unnamed_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("siafu-block", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # its name is gone as soon as it is open
        return os.dup(file.fileno())
