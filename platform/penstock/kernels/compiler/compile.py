"""The only way to make a kernel: explicit signatures, cached on disk, GIL released.

Names of numba are resolved only to compile.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.kernels.compiler import bundle, register
from penstock.kernels.compiler.register import Kernel

# ruff: noqa: SLF001 - the functions of this module are the class's own


class Deferred:
    """An expression over numba's names, evaluated once, by `resolve`."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        """Take `make`, which returns the real object."""
        self._make = make
        self._made: Any = None

    def __getattr__(self, name: str) -> Deferred:
        """Defer the attribute too."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(lambda: getattr(resolve(self), name))

    def __call__(self, *arguments: Any, **named: Any) -> Deferred:
        """Defer the call too."""
        return Deferred(
            lambda: resolve(self)(*resolve(arguments), **{name: resolve(value) for name, value in named.items()})
        )

    def __getitem__(self, key: Any) -> Deferred:
        """Defer the subscription too."""
        return Deferred(lambda: resolve(self)[key])


def _made(deferred: Deferred) -> Any:
    # Functions outside of the class, because a method would hide a name of numba.
    if deferred._made is None:
        made = deferred._make()
        if deferred._made is None:  # otherwise it was resolved again while it was made
            deferred._made = made
    return deferred._made


def resolve(value: Any) -> Any:
    """Return the value of a deferred expression, also within tuples; other values as they are."""
    if isinstance(value, Deferred):
        return _made(value)
    if isinstance(value, tuple):
        return tuple(resolve(part) for part in value)
    return value


I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
U8: TypeAlias = NDArray[np.uint8]
F64: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

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


_resolving: set[int] = set()


def tuple_of(*members: Any) -> Any:
    """Return the type of a tuple argument."""
    return types.Tuple(members)


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a helper of kernels: inlined where it is called, never called from Python."""

    def decorate(declared: Callable[..., Any]) -> Deferred:
        return Deferred(lambda: _numba().njit(**options)(resolve_globals(declared)))

    return decorate if function is None else decorate(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a numba intrinsic: `function(typing context, *types)` returns a signature and a code generator."""
    return Deferred(lambda: importlib.import_module("numba.extending").intrinsic(resolve_globals(function)))


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


def resolve_globals(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace deferred names among the globals of `function` by the real ones, which numba must see."""
    names: dict[str, Any] = function.__globals__
    if id(names) in _resolving:
        return function
    _resolving.add(id(names))
    try:
        for name, value in list(names.items()):
            known = register.found(value)
            if isinstance(value, Deferred):
                names[name] = resolve(value)
            elif known is not None and not known.compiled:
                names[name] = _compile(known.function, known.signatures, known.options)
    finally:
        _resolving.discard(id(names))
    return function


def _compile(function: Callable[..., Any], signatures: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return _numba().njit(list(resolve(signatures)), **options)(resolve_globals(function))


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
