"""The one place that chooses an implementation: Numba on CPU, Triton on CUDA, else plain torch."""

from typing import NamedTuple

import torch

from siafu.ops import attention_dot_torch, attention_gat_torch, csr_torch, random_torch
from siafu.ops.contract import CsrKernels, DotKernels, GatKernels, RandomKernels

try:
    from siafu.ops import attention_dot_numba, attention_gat_numba, csr_numba, random_numba
except ImportError as error:
    numba_missing: str | None = str(error)
else:
    numba_missing = None

try:
    # importing Triton takes a second that machines without CUDA need not spend
    if torch.version.cuda is None:
        raise ImportError("torch was built without CUDA")  # noqa: TRY301
    from siafu.ops import attention_gat_triton, csr_triton, random_triton
except ImportError as error:
    triton_missing: str | None = str(error)
else:
    triton_missing = None


class Kernels(NamedTuple):
    """One implementation of every kernel."""

    csr: CsrKernels
    random: RandomKernels
    gat: GatKernels = attention_gat_torch
    dot: DotKernels = attention_dot_torch


PLAIN = Kernels(csr_torch, random_torch)

fast: dict[str, Kernels] = {}
"""The fast implementation for each kind of device; absent where its compiler is missing."""

if numba_missing is None:
    fast["cpu"] = Kernels(csr_numba, random_numba, attention_gat_numba, attention_dot_numba)
if triton_missing is None:
    fast["cuda"] = Kernels(csr_triton, random_triton, attention_gat_triton)


def csr_kernels(device: torch.device, dtype: torch.dtype | None = None) -> CsrKernels:
    """Return the kernels for tensors on `device`; `dtype` is x's, where there is one."""
    chosen = fast.get(device.type, PLAIN).csr
    return chosen if dtype is None or dtype in chosen.DTYPES else PLAIN.csr


def random_kernels(device: torch.device, dtype: torch.dtype) -> RandomKernels:
    """Return the drawing kernels for tensors of `dtype` on `device`."""
    chosen = fast.get(device.type, PLAIN).random
    return chosen if dtype in chosen.DTYPES else PLAIN.random


def gat_kernels(device: torch.device, dtype: torch.dtype) -> GatKernels:
    """Return the attention kernels for tensors of `dtype` on `device`."""
    chosen = fast.get(device.type, PLAIN).gat
    return chosen if dtype in chosen.DTYPES else PLAIN.gat


def dot_kernels(device: torch.device, dtype: torch.dtype) -> DotKernels:
    """Return the dot-product attention kernels for tensors of `dtype` on `device`."""
    chosen = fast.get(device.type, PLAIN).dot
    return chosen if dtype in chosen.DTYPES else PLAIN.dot
