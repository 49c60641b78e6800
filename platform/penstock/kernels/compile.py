"""The one way a kernel is made: explicit signatures, cached on disk, GIL released; and the register of all of them.

Signatures are explicit, so a kernel is compiled (or loaded from the cache) when its module is imported and never again:
a call with another type is an error instead of a hidden compilation. Arrow memory is read-only, which is another type
to numba: inputs are declared read-only (writable arrays are accepted there too). Helpers of a kernel stand in the
kernel's own module, because the cache is keyed by that file alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
U8: TypeAlias = NDArray[np.uint8]
F64: TypeAlias = NDArray[np.float64]

i8, i4, u8, f8, u1 = types.int64, types.int32, types.uint64, types.float64, types.uint8
#: Inputs.
I64_IN = types.Array(types.int64, 1, "C", readonly=True)
I32_IN = types.Array(types.int32, 1, "C", readonly=True)
F64_IN = types.Array(types.float64, 1, "C", readonly=True)
U8_IN = types.Array(types.uint8, 1, "C", readonly=True)
#: Outputs and state.
I64_OUT = types.int64[::1]
I32_OUT = types.int32[::1]
U64_OUT = types.uint64[::1]
F64_OUT = types.float64[::1]
U8_OUT = types.uint8[::1]
#: Tables of rows.
I64_ROWS = types.int64[:, ::1]
F64_ROWS = types.float64[:, ::1]
I32_ROWS = types.int32[:, ::1]
I64_ROWS_IN = types.Array(types.int64, 2, "C", readonly=True)

_KERNELS: list[Any] = []


def tuple_of(*members: Any) -> Any:
    """Return the type of a tuple argument."""
    return types.Tuple(members)  # type: ignore[no-untyped-call]


def _load8(_: Any, data: Any, at: Any) -> Any:
    return types.uint64(data, at), _unaligned(64)


def _load4(_: Any, data: Any, at: Any) -> Any:
    return types.uint32(data, at), _unaligned(32)


def _unaligned(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(signature.args[0])(context, builder, arguments[0])  # type: ignore[no-untyped-call]
        start = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(start, ir.IntType(bits).as_pointer()), align=1)

    return generate


#: `load8(data, at)`: 8 bytes of a byte array as one little-endian word, aligned or not; `load4`: 4 bytes.
load8: Any = intrinsic(_load8)
load4: Any = intrinsic(_load4)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function to be compiled for `signatures` alone."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = njit(list(signatures), cache=True, nogil=True, error_model="numpy")(function)
        _KERNELS.append(compiled)
        return compiled

    return decorate


def kernels() -> tuple[Any, ...]:
    """Return every kernel of the modules imported so far."""
    return tuple(_KERNELS)


def compiled_count() -> int:
    """Return the number of compiled signatures; it must not change after `warm()`."""
    return sum(len(k.signatures) for k in _KERNELS)
