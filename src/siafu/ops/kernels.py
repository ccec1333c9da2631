"""The one place that chooses an implementation: Numba on CPU, Triton on CUDA, else plain torch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from siafu.ops import (
    attention_torch,
    csr_torch,
    delta_torch,
    random_torch,
    sample_reference,
    wire_torch,
)
from siafu.ops.contract import (
    AttentionKernels,
    CsrKernels,
    DeltaKernels,
    RandomKernels,
    SampleKernels,
    WireKernels,
)

try:
    from siafu.ops import csr_numba, delta_numba, random_numba, sample_numba, wire_numba
    from siafu.ops.attention_gat_numba import GatAttention
    from siafu.ops.attention_score_numba import DotRule, GatV2Rule
    from siafu.ops.attention_vector_numba import VectorAttention
except ImportError as error:
    numba_missing: str | None = str(error)
else:
    numba_missing = None

try:
    # importing Triton takes a second that machines without CUDA need not spend
    if torch.version.cuda is None:
        raise ImportError("torch was built without CUDA")  # noqa: TRY301
    from siafu.ops import (
        attention_gat_triton,
        attention_vector_triton,
        csr_triton,
        random_triton,
        wire_triton,
    )
except ImportError as error:
    triton_missing: str | None = str(error)
else:
    triton_missing = None


class Kernels(NamedTuple):
    """One implementation of every kernel."""

    csr: CsrKernels
    random: RandomKernels
    attention: Mapping[str, AttentionKernels] = attention_torch.PLAIN
    """By the name of the kind."""
    wire: WireKernels = wire_torch
    sample: SampleKernels = sample_reference
    delta: DeltaKernels = delta_torch


PLAIN = Kernels(csr_torch, random_torch)

fast: dict[str, Kernels] = {}
"""The fast implementation for each kind of device; absent where its compiler is missing."""

if numba_missing is None:
    fast["cpu"] = Kernels(
        csr_numba,
        random_numba,
        {
            "gat": GatAttention(),
            "gatv2": VectorAttention(GatV2Rule),
            "dot": VectorAttention(DotRule),
        },
        wire_numba,
        sample_numba,
        delta_numba,
    )
if triton_missing is None:
    fast["cuda"] = Kernels(
        csr_triton,
        random_triton,
        {
            "gat": attention_gat_triton,
            "gatv2": attention_vector_triton.VectorAttention(v2=True),
            "dot": attention_vector_triton.VectorAttention(v2=False),
        },
        wire_triton,
    )


def csr_kernels(device: torch.device, dtype: torch.dtype | None = None) -> CsrKernels:
    """Return the kernels for tensors on `device`; `dtype` is x's, where there is one."""
    chosen = fast.get(device.type, PLAIN).csr
    return chosen if dtype is None or dtype in chosen.DTYPES else PLAIN.csr


def random_kernels(device: torch.device, dtype: torch.dtype) -> RandomKernels:
    """Return the drawing kernels for tensors of `dtype` on `device`."""
    chosen = fast.get(device.type, PLAIN).random
    return chosen if dtype in chosen.DTYPES else PLAIN.random


def attention_kernels(kind: str, device: torch.device, dtype: torch.dtype) -> AttentionKernels:
    """Return the kernels of one kind of attention for tensors of `dtype` on `device`."""
    chosen = fast.get(device.type, PLAIN).attention[kind]
    return chosen if dtype in chosen.DTYPES else PLAIN.attention[kind]


def wire_kernels(device: torch.device) -> WireKernels:
    """Return the encoding kernels for rows on `device`."""
    return fast.get(device.type, PLAIN).wire


def sample_kernels(device: torch.device) -> SampleKernels:
    """Return the sampling kernels for a graph on `device`."""
    return fast.get(device.type, PLAIN).sample


def delta_kernels(device: torch.device) -> DeltaKernels:
    """Return the kernels over deltas for matrices on `device`."""
    return fast.get(device.type, PLAIN).delta
