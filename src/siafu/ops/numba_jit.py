"""How every Numba kernel is compiled: cached on disk, without the GIL, without checks.

Without Numba a kernel stays the Python function it is: slow, and right.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

try:
    import numba

    from siafu.ops.numba_cache import SharedCache
    from siafu.ops.numba_intrinsics import line_width, prefetch
except ImportError:
    _compiler: Any = None

    def prefetch(array: Any, row: Any, column: int) -> None:
        """Without a compiler there is nothing to ask for."""

else:
    _compiler = numba.njit

__all__ = ["callee", "kernel", "line_width", "load_compiler", "prefetch", "strict_kernel"]

Function = TypeVar("Function", bound=Callable[..., Any])

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Enough freedom to vectorise sums, yet NaN and infinity keep their meaning."""


def load_compiler() -> None:
    """Load what Numba otherwise does at its first call, 0.8 s; starts no thread."""
    if _compiler is not None:
        target = numba.core.registry.cpu_target
        target.typing_context.refresh()
        target.target_context.refresh()


def kernel(function: Function) -> Function:
    """Compile for speed, once per machine: later processes load the code from disk."""
    return _compile(function, fastmath=REASSOCIATE)


def strict_kernel(function: Function) -> Function:
    """Compile like `kernel` but with every float operation as written."""
    return _compile(function, fastmath=False)


def callee(function: Function) -> Function:
    """Make a function that kernels may call; it becomes part of their code."""
    return _njit(function, error_model="numpy", forceinline=True)


def _compile(function: Function, *, fastmath: bool | set[str]) -> Function:
    options = {"fastmath": fastmath, "nogil": True, "error_model": "numpy"}
    compiled = _njit(function, **options)
    if _compiler is not None:
        with suppress(RuntimeError):  # neither our folder nor the user's cache folder is writable
            compiled._cache = SharedCache(function)  # type: ignore[attr-defined]
    return compiled


def _njit(function: Function, **options: Any) -> Function:
    """Return the kernel, which to callers has the signature it was written with."""
    if _compiler is None:
        # integers wrap and 1 / 0 is infinite without a word, as in compiled code
        return np.errstate(all="ignore")(function)
    compiled: Function = _compiler(**options)(function)
    return compiled
