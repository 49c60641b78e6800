"""Memory by address for compiled code: load, store and copy without array headers, and the compile function.

Used by the kernels of the formats and of the Kafka reader. The caller is responsible for every address.
"""

from __future__ import annotations

import importlib
from typing import Any

from llvmlite import ir

from penstock.connector import compiled as way
from penstock.connector.compiled import Deferred, intrinsic, types

_WIDE = ir.IntType(64)
cgutils: Any = Deferred(lambda: importlib.import_module("numba.core.cgutils"))


def compiled(signature: Any, function: Any) -> Any:
    """Compile `function` for one signature now, without the interpreter lock, into the disk cache."""
    return way.compiled((signature,), function, boundscheck=False)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _byte(_typing: Any, _address: Any) -> Any:
    """Return the byte at an address as an integer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, arguments[0], ir.IntType(8))), _WIDE)

    return types.int64(types.int64), generate


def _word(_typing: Any, _address: Any) -> Any:
    """Return the 64-bit integer at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, arguments[0], _WIDE))

    return types.int64(types.int64), generate


def _put_byte(_typing: Any, _address: Any, _value: Any) -> Any:
    """Write the low byte of an integer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        narrow = ir.IntType(8)
        builder.store(builder.trunc(arguments[1], narrow), _pointer(builder, arguments[0], narrow))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _put_word(_typing: Any, _address: Any, _value: Any) -> Any:
    """Write a 64-bit integer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer(builder, arguments[0], _WIDE))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _put_float(_typing: Any, _address: Any, _value: Any) -> Any:
    """Write a double."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer(builder, arguments[0], ir.DoubleType()))
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), generate


def _copy(_typing: Any, _target: Any, _source: Any, _count: Any) -> Any:
    """Copy bytes between regions that do not overlap."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        narrow = ir.IntType(8)
        target, source = (_pointer(builder, address, narrow) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


byte: Any = intrinsic(_byte)
word: Any = intrinsic(_word)
put_byte: Any = intrinsic(_put_byte)
put_word: Any = intrinsic(_put_word)
put_float: Any = intrinsic(_put_float)
copy: Any = intrinsic(_copy)
