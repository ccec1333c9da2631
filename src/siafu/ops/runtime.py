"""How a process is set up for the kernels: threads, allocator, compiled code, what is missing."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from siafu.ops import kernels
from siafu.ops.csr.matrix import CSR
from siafu.ops.csr.maximum import fold_max, max_gradients, neighbour_max
from siafu.ops.csr.sum import neighbour_sum
from siafu.ops.random.draws import DrawKey, dropout_rows, uniform_rows
from siafu.ops.threads import set_threads

__all__ = [
    "fast_paths",
    "set_threads",
    "spare_memory",
    "spare_page_faults",
    "telling_compilation",
    "warm_up",
]

# malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
KEEP_ALL = -1
"""Of freed memory; any number of bytes is an int, and 2 GB of them too few."""
PAD_BYTES = 64 << 20
MAP_BYTES = 1 << 20
MOST_MAPS = 65536
HUGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""Makes torch ask for huge pages; read when its first tensor is made."""


def spare_page_faults() -> bool:
    """Make glibc keep freed tensors for the next step; False where the allocator is another.

    By default a freed tensor goes back to the kernel at once and the next one is faulted in page
    by page, which took a third of an epoch. The price is that peak memory is not handed back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEEP_ALL), (M_TOP_PAD, PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)


def spare_memory() -> bool:
    """Make glibc give every freed tensor back at once; False where the allocator is another.

    Freed tensors that are kept lie between others, and the holes they leave made a rank take up to
    twice what was alive. With huge pages (HUGE_PAGES_VARIABLE, set before the process starts) the
    faults that this brings back cost half as much.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_MAX, MOST_MAPS), (M_MMAP_THRESHOLD, MAP_BYTES), (M_TRIM_THRESHOLD, 0))
    return all(mallopt(name, value) == 1 for name, value in settings)


def fast_paths() -> dict[str, str]:
    """Return "on", or why not, for each compiler that makes kernels fast."""
    cuda = kernels.triton_missing
    if cuda is None and not torch.cuda.is_available():
        cuda = "no CUDA device is visible"
    return {"numba": _state(kernels.numba_missing), "triton/cuda": _state(cuda)}


@torch.enable_grad()
def warm_up(width: int = 128) -> None:
    """Compile the float32 CPU kernels, or load them from disk, before ranks start and race to.

    Covers sums of `width` columns with no factor, a row scale (mean), a column scale (its backward)
    and both (GCN), the maximum, drawing and dropout. Not attention: its code differs by heads and
    width, and takes 5 s per kind and shape to compile (0.04 s to load).
    """
    csr = CSR(torch.tensor([0, 1, 1]), torch.zeros(1, dtype=torch.int32), 2)
    x, scale, ids = torch.ones(2, width, requires_grad=True), torch.ones(2), torch.arange(2)
    for row_scale in (None, scale):
        for col_scale in (None, scale):
            neighbour_sum(csr, x, row_scale_M=row_scale, col_scale_C=col_scale).sum().backward()
    neighbour_max(csr, x).sum().backward()
    edge = torch.full((2, width), 1 << 30, dtype=torch.int32)
    for rows in (None, ids):  # over several ranks, in blocks
        fold_max(csr, x.detach(), csr.index, torch.zeros(2, width), edge, rows_M=rows)
        max_gradients(csr, edge, x.detach(), rows_M=rows)
    key = DrawKey(seed=0, epoch=0, purpose=0)
    uniform_rows(key, ids, width)
    dropout_rows(x.detach(), ids, key, 0.5)


COMPILING = "Compiling kernels (once per machine and kind of model, up to a minute) ..."


@contextmanager
def telling_compilation(
    tell: Callable[[str], None], on_change: Callable[[bool], None] = lambda begins: None
) -> Iterator[None]:
    """Tell once that kernels are compiled, where Numba has to and has none on disk.

    `on_change` is called with True when a compilation begins and with False when it has ended, by
    the thread that needs the kernel; those inside another are part of it.
    """
    if kernels.numba_missing is not None:
        yield
        return
    events = import_module("numba.core.event")
    told = False
    depths: dict[int, int] = {}

    def note(event: Any) -> None:
        nonlocal told
        if not told and event.is_start:
            told = True
            tell(COMPILING)
        thread = threading.get_ident()
        before = depths.get(thread, 0)
        depths[thread] = before + (1 if event.is_start else -1)
        if 0 in (before, depths[thread]):
            on_change(bool(event.is_start))

    class Listener(events.Listener):  # type: ignore[misc,name-defined]
        on_start = on_end = staticmethod(note)

    with events.install_listener("numba:compile", Listener()):
        yield


def _state(reason: str | None) -> str:
    return "on" if reason is None else f"off: {reason}"
