"""Ops that leave torch's compiler unloaded as long as nothing is compiled.

Torch guards the kernel of every custom op from `torch.compile`, and the guard loads the compiler
when the op is first called: 1.2 s and 100 MB in each process. A compiler that nobody has loaded
has nothing to be kept from.
"""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any, TypeVar

Op = TypeVar("Op")
_COMPILER = "torch._dynamo"


def guarded_late(op: Op) -> Op:
    """Return the op; its kernels are guarded from the compiler from when that is loaded."""
    # Private: where torch keeps kernels elsewhere, the op stays as it is, and loads the compiler.
    kernels: dict[Any, Callable[..., Any]] = getattr(op, "_backend_fns", {})
    for device, guarded in kernels.items():
        kernels[device] = _plain_until_loaded(guarded)
    return op


def _plain_until_loaded(guarded: Callable[..., Any]) -> Callable[..., Any]:
    plain = unwrap(guarded)

    @wraps(plain)
    def call(*arguments: Any, **named: Any) -> Any:
        return (guarded if _COMPILER in sys.modules else plain)(*arguments, **named)

    return call
