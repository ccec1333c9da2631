"""What kernels say to the compiler itself; importing this needs Numba."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

_intrinsic: Any = intrinsic

CACHE_LINE_BYTES = 64


def line_width(array: Any) -> int:
    """Return how many elements of `array` share a cache line; a constant to the compiler."""
    return CACHE_LINE_BYTES // int(array.itemsize)


def _line_width(array: Any) -> Any:
    width = CACHE_LINE_BYTES // (array.dtype.bitwidth // 8)

    def constant(array: Any) -> Any:
        return width

    return constant


overload(line_width)(_line_width)


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of array[row, column] and carry on without it."""
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        values = context.make_array(array_type)(context, builder, arguments[0])
        address = cgutils.get_item_pointer(
            context, builder, array_type, values, list(arguments[1:]), wraparound=False
        )
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        # read, keep in all cache levels, data
        builder.call(function, [builder.bitcast(address, byte), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return signature, generate


prefetch: Callable[[Any, Any, int], None] = _intrinsic(_prefetch)
