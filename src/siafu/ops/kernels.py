"""The one place that chooses an implementation: Numba on CPU, Triton on CUDA, else plain torch."""

from typing import NamedTuple

import torch
from torch import Tensor

from siafu.ops.activation import reference as activation_reference
from siafu.ops.attention import reference as attention_reference
from siafu.ops.contract import (
    ActivationKernels,
    AttentionKernels,
    CsrKernels,
    RandomKernels,
    RowKernels,
    SampleKernels,
    WireKernels,
    sum_type,
)
from siafu.ops.csr import reference as csr_reference
from siafu.ops.delta import reference as delta_reference
from siafu.ops.delta.contract import DeltaKernels
from siafu.ops.random import reference as random_reference
from siafu.ops.rows import reference as row_reference
from siafu.ops.sample import reference as sample_reference
from siafu.ops.wire import reference as wire_reference

try:
    from siafu.ops.activation import numba as activation_numba
    from siafu.ops.attention import numba as attention_numba
    from siafu.ops.csr import numba as csr_numba
    from siafu.ops.delta import numba as delta_numba
    from siafu.ops.random import numba as random_numba
    from siafu.ops.sample import numba as sample_numba
    from siafu.ops.wire import numba as wire_numba
except ImportError as error:
    numba_missing: str | None = str(error)
else:
    numba_missing = None

try:
    # importing Triton takes a second that machines without CUDA need not spend
    if torch.version.cuda is None:
        raise ImportError("torch was built without CUDA")  # noqa: TRY301
    from siafu.ops.attention import triton as attention_triton
    from siafu.ops.csr import triton as csr_triton
    from siafu.ops.delta import triton as delta_triton
    from siafu.ops.random import triton as random_triton
    from siafu.ops.rows import triton as row_triton
    from siafu.ops.sample import triton as sample_triton
    from siafu.ops.wire import triton as wire_triton
except ImportError as error:
    triton_missing: str | None = str(error)
else:
    triton_missing = None


class Kernels(NamedTuple):
    """One implementation of every kernel."""

    csr: CsrKernels
    random: RandomKernels
    attention: AttentionKernels = attention_reference
    wire: WireKernels = wire_reference
    sample: SampleKernels = sample_reference
    delta: DeltaKernels = delta_reference
    rows: RowKernels = row_reference
    activation: ActivationKernels = activation_reference


PLAIN = Kernels(csr_reference, random_reference)

fast: dict[str, Kernels] = {}
"""The fast implementation for each kind of device; absent where its compiler is missing."""

if numba_missing is None:
    fast["cpu"] = Kernels(
        csr_numba,
        random_numba,
        attention_numba,
        wire_numba,
        sample_numba,
        delta_numba,
        activation=activation_numba,
    )
if triton_missing is None:
    fast["cuda"] = Kernels(
        csr_triton,
        random_triton,
        attention_triton,
        wire_triton,
        sample_triton,
        delta_triton,
        row_triton,
    )


def has_fast_kernels(kind: str) -> bool:
    """Return whether there is a compiler for this kind of device."""
    return kind in fast


def widened(kernels: CsrKernels | RandomKernels | AttentionKernels, tensor: Tensor) -> Tensor:
    """Return a tensor as kernels take it: of `sum_type` where they have no code for its type."""
    if tensor.dtype in kernels.DTYPES:
        return tensor
    return tensor.to(sum_type(tensor.dtype))


def csr_kernels(device: torch.device) -> CsrKernels:
    """Return the kernels for tensors on `device`."""
    return fast.get(device.type, PLAIN).csr


def adds_own(device: torch.device) -> bool:
    """Return whether a sum takes a row's own term along for less than a pass of its own takes."""
    return device.type == "cuda" and "cuda" in fast


def random_kernels(device: torch.device) -> RandomKernels:
    """Return the drawing kernels for tensors on `device`."""
    return fast.get(device.type, PLAIN).random


def attention_kernels(device: torch.device) -> AttentionKernels:
    """Return the kernels of attention for tensors on `device`."""
    return fast.get(device.type, PLAIN).attention


def activation_kernels(device: torch.device) -> ActivationKernels | None:
    """Return what does bias, ReLU and dropout in one pass; None where others do as well."""
    return fast["cpu"].activation if device.type == "cpu" and "cpu" in fast else None


def wire_kernels(device: torch.device) -> WireKernels:
    """Return the encoding kernels for rows on `device`."""
    return fast.get(device.type, PLAIN).wire


def sample_kernels(device: torch.device) -> SampleKernels:
    """Return the sampling kernels for a graph on `device`."""
    return fast.get(device.type, PLAIN).sample


def delta_kernels(device: torch.device) -> DeltaKernels:
    """Return the kernels over deltas for matrices on `device`."""
    return fast.get(device.type, PLAIN).delta


def row_kernels(device: torch.device) -> RowKernels:
    """Return the kernels that gather rows to `device`."""
    return fast.get(device.type, PLAIN).rows
