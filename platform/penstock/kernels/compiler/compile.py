"""The one way a kernel is made: explicit signatures, cached on disk, GIL released.

With explicit signatures a kernel is compiled (or loaded) when its module is imported and never later: a call with
another type is an error instead of a hidden compilation. Arrow memory is read-only, which is another type to numba:
inputs are declared read-only (which accepts writable arrays too). Helpers of a kernel must be in the kernel's module,
because that file alone is the key of numba's cache.

Kernel modules take `types`, `njit` and `intrinsic` from here, not from numba. While every kernel is found in a bundle
(`kernels.compiler.bundle`), numba is not imported, which saves every template a second of CPU time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.kernels.compiler import bundle, register
from penstock.kernels.compiler.deferred import Deferred, resolve
from penstock.kernels.compiler.register import Kernel

I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
U8: TypeAlias = NDArray[np.uint8]
F64: TypeAlias = NDArray[np.float64]

#: `numba.types`.
types: Any = Deferred(lambda: importlib.import_module("numba").types)

i8, i4, u8, f8, u1 = types.int64, types.int32, types.uint64, types.float64, types.uint8
#: Inputs.
I64_IN = types.Array(types.int64, 1, "C", readonly=True)
I32_IN = types.Array(types.int32, 1, "C", readonly=True)
F64_IN = types.Array(types.float64, 1, "C", readonly=True)
U8_IN = types.Array(types.uint8, 1, "C", readonly=True)
#: Outputs and state.
I64_OUT = types.Array(types.int64, 1, "C")
I32_OUT = types.Array(types.int32, 1, "C")
U64_OUT = types.Array(types.uint64, 1, "C")
F64_OUT = types.Array(types.float64, 1, "C")
U8_OUT = types.Array(types.uint8, 1, "C")
#: Tables of rows.
I64_ROWS = types.Array(types.int64, 2, "C")
F64_ROWS = types.Array(types.float64, 2, "C")
I32_ROWS = types.Array(types.int32, 2, "C")
I64_ROWS_IN = types.Array(types.int64, 2, "C", readonly=True)


_revealing: set[int] = set()


def tuple_of(*members: Any) -> Any:
    """Return the type of a tuple argument."""
    return types.Tuple(members)


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a helper of kernels: inlined where it is called, never called from Python."""

    def decorate(declared: Callable[..., Any]) -> Deferred:
        return Deferred(lambda: _numba().njit(**options)(revealed(declared)))

    return decorate if function is None else decorate(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a numba intrinsic: `function(typing context, *types)` returns a signature and a code generator."""
    return Deferred(lambda: importlib.import_module("numba.extending").intrinsic(revealed(function)))


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function to be compiled for `signatures` only."""

    def decorate(function: Callable[..., Any]) -> Any:
        return compiled(signatures, function, error_model="numpy")

    return decorate


def compiled(signatures: tuple[Any, ...], function: Callable[..., Any], **options: Any) -> Any:
    """Return `function` compiled for these signatures: from a bundle, or by numba with these options."""
    ready = bundle.function(function)
    options = {"cache": True, "nogil": True, **options}
    entry = ready if ready is not None else _compile(function, signatures, options)
    register.add(Kernel(function, signatures, options, entry, compiled=ready is None))
    return entry


def revealed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace deferred names among the globals of `function` by the real ones, which numba must see."""
    names: dict[str, Any] = function.__globals__
    if id(names) in _revealing:
        return function
    _revealing.add(id(names))
    try:
        for name, value in list(names.items()):
            known = register.found(value)
            if isinstance(value, Deferred):
                names[name] = resolve(value)
            elif known is not None and not known.compiled:
                names[name] = _compile(known.function, known.signatures, known.options)
    finally:
        _revealing.discard(id(names))
    return function


def _compile(function: Callable[..., Any], signatures: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return _numba().njit(list(resolve(signatures)), **options)(revealed(function))


def _numba() -> Any:
    return importlib.import_module("numba")


def _load8(_: Any, data: Any, at: Any) -> Any:
    return types.uint64(data, at), _unaligned(64)


def _load4(_: Any, data: Any, at: Any) -> Any:
    return types.uint32(data, at), _unaligned(32)


def _unaligned(bits: int) -> Any:
    from llvmlite import ir
    from numba.np.arrayobj import make_array

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(signature.args[0])(context, builder, arguments[0])  # type: ignore[no-untyped-call]
        start = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(start, ir.IntType(bits).as_pointer()), align=1)

    return generate


def _word_at(_: Any, _address: Any) -> Any:
    from llvmlite import ir

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


#: `word_at(address)`: the 64-bit integer at an address.
word_at: Any = intrinsic(_word_at)
#: `load8(data, at)`: 8 bytes of a byte array as one little-endian word, aligned or not; `load4`: 4 bytes.
load8: Any = intrinsic(_load8)
load4: Any = intrinsic(_load4)
