"""Loads object code of kernels, and extracts it from numba's cache; the only module that knows numba's internals.

llvmlite links the object code, as in numba, against the C helpers of numba's extension modules, which are loaded
without numba itself (a later `import numba` finds and shares them). Called only by `kernels.compiler.bundle`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import platform
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

_ENVIRONMENT = "_ZN08NumbaEnv"
_WRAPPER = "_ZN7cpython"
_HELPERS = {
    "numba._dynfunc": "_dynfunc",
    "numba._helperlib": "_helperlib",
    "numba.core.runtime._nrt_python": "core/runtime/_nrt_python",
}
#: Variables of numba: the processor to compile for.
CPU_NAME, CPU_FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
#: Machine -> the oldest processor that portable code runs on; x86-64-v3 is Intel's Haswell (2013), AMD's Excavator.
_BASELINES = {
    "x86_64": "x86-64-v3 +64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,"
    "+popcnt,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    "aarch64": "generic ",
}
_SYMBOLS = 2  # the type of an ELF symbol table
_C_ORDER, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400


class Argument(msgspec.Struct, frozen=True):
    """An array argument: its position (`member` -1: the argument itself, else of a tuple) and its type."""

    position: int
    member: int
    dtype: str
    dimensions: int
    mutable: bool


class Code(msgspec.Struct, frozen=True):
    """One kernel."""

    code: bytes
    #: The function that takes Python arguments.
    wrapper: str
    #: Pointers that numba sets before a call.
    environments: tuple[str, ...]
    #: Symbols that the code needs from outside.
    externals: tuple[str, ...]
    arguments: tuple[Argument, ...]


def versions() -> tuple[str, ...]:
    """Return the versions that object code depends on apart from the sources: numba's and LLVM's."""
    _llvm()
    folder = _numba_folder()
    version = (folder / "_version.py").read_text(encoding="utf-8") if folder is not None else ""
    package = sys.modules["llvmlite"]
    return (version, str(package.__version__))


def processor() -> str:
    """Return the processor that numba compiles for in this process: its name and features in LLVM's words."""
    binding = _llvm()
    features = os.environ.get(CPU_FEATURES)
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    return f"{os.environ.get(CPU_NAME) or binding.get_host_cpu_name()} {features}"


def baseline() -> str:
    """Return the processor, as in `processor`, that portable code is compiled for on this architecture.

    Raises:
        ValueError: no baseline is known for the architecture.
    """
    machine = platform.machine()
    if machine not in _BASELINES:
        msg = f"no baseline is known for {machine}; known: {', '.join(_BASELINES)}"
        raise ValueError(msg)
    return _BASELINES[machine]


def runs(compiled_for: str) -> bool:
    """Return whether code for this processor is to be used here: for this very one, or for its baseline."""
    if compiled_for == processor():
        return True
    if compiled_for != _BASELINES.get(platform.machine()):
        return False
    has = _llvm().get_host_cpu_features()
    return all(has.get(feature.removeprefix("+")) for feature in compiled_for.partition(" ")[2].split(",") if feature)


def load(code: Code, name: str) -> Any:
    """Return the kernel as a function, or None if one of its symbols is missing."""
    linker = _linker()
    return None if linker is None else linker.function(code, name)


def extract(dispatcher: Any) -> Code:
    """Return the code of a kernel with one signature, from the cache that numba has just used or written.

    Raises:
        ValueError: it cannot be loaded without numba.
    """
    from numba.core.registry import cpu_target

    stored = dispatcher._cache._cache_file  # noqa: SLF001
    (types,) = dispatcher.signatures
    magic = cpu_target.target_context.codegen().magic_tuple()
    keys = [key for key in stored._load_index() if getattr(key[0], "args", key[0]) == types and key[1] == magic]  # noqa: SLF001
    if not keys:
        msg = "not in numba's cache"
        raise ValueError(msg)
    (_, kind, (data, _)), _, environment, _, _, _, _, again, others = stored.load(keys[0])
    if kind != "object" or again or any(e.consts for e in (environment, *others)):
        msg = "needs numba at run time"
        raise ValueError(msg)
    defined, undefined = symbols(data)
    (wrapper,) = (symbol for symbol in defined if symbol.startswith(_WRAPPER))
    return Code(
        data,
        wrapper,
        tuple(symbol for symbol in defined if symbol.startswith(_ENVIRONMENT)),
        undefined,
        tuple(_arrays(types)),
    )


def symbols(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names an ELF object file defines, and those it needs from outside.

    Raises:
        ValueError: it is no ELF file of a 64-bit little-endian machine.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        msg = "the object code is not in ELF format"
        raise ValueError(msg)
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    defined: list[str] = []
    undefined: list[str] = []
    for section in sections:
        if section[1] != _SYMBOLS:
            continue
        texts = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], section[9]):
            name_at, info, _, index = struct.unpack_from("<IBBH", data, at)
            name = data[texts + name_at : data.index(b"\0", texts + name_at)].decode()
            if name and info >> 4:  # not local
                (defined if index else undefined).append(name)
    return tuple(defined), tuple(undefined)


class _Linker:
    """Links object code into this process."""

    def __init__(self, binding: Any, helpers: dict[str, Any]) -> None:
        self._binding = binding
        self._make = helpers["numba._dynfunc"].make_function
        self._environment = helpers["numba._dynfunc"].Environment({})
        for name, address in helpers["numba._helperlib"].c_helpers.items():
            binding.add_symbol(f"numba_{name}", address)
        runtime = helpers["numba.core.runtime._nrt_python"]
        for name, address in runtime.c_helpers.items():
            binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
        runtime.memsys_use_cpython_allocator()
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        target = binding.Target.from_triple(binding.get_process_triple())
        machine = target.create_target_machine(
            cpu=binding.get_host_cpu_name(), reloc="static", codemodel="jitdefault", jit=True
        )
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)

    def function(self, code: Code, name: str) -> Any:
        # LLVM reports a missing symbol by leaving all addresses at 0.
        if not all(self._binding.address_of_symbol(symbol) for symbol in code.externals):
            return None
        self._engine.add_object_file(self._binding.ObjectFileRef.from_data(code.code))
        self._engine.finalize_object()
        for symbol in code.environments:
            address = self._engine.get_global_value_address(symbol)
            ctypes.c_void_p.from_address(address).value = id(self._environment)
        address = self._engine.get_function_address(code.wrapper)
        raw = self._make(sys, name, "", address, self._environment, (self._engine,))
        return guarded(raw, name, code.arguments) if code.arguments else raw


def guarded(raw: Callable[..., Any], name: str, arguments: tuple[Argument, ...]) -> Callable[..., Any]:
    """Wrap `raw` with checks of its array arguments: compiled code has none."""
    checks = [
        (a.position, a.member, np.dtype(a.dtype), a.dimensions, _C_ORDER | _ALIGNED | (_WRITEABLE if a.mutable else 0))
        for a in arguments
    ]

    def call(*given: Any) -> Any:
        try:
            for position, member, dtype, dimensions, flags in checks:
                array = given[position] if member < 0 else given[position][member]
                if (
                    (array.dtype is not dtype and array.dtype != dtype)
                    or array.flags.num & flags != flags
                    or array.ndim != dimensions
                ):
                    msg = f"kernel {name}: argument {position + 1} does not have its declared type: {array!r:.200}"
                    raise TypeError(msg)
        except (AttributeError, IndexError) as error:
            msg = f"kernel {name} does not take these arguments: {error}"
            raise TypeError(msg) from error
        return raw(*given)

    call.__name__ = call.__qualname__ = name
    return call


def _arrays(types: tuple[Any, ...]) -> list[Argument]:
    kinds: Any = importlib.import_module("numba.core.types")
    found = []
    for position, type_ in enumerate(types):
        members = list(enumerate(type_)) if isinstance(type_, kinds.BaseTuple) else [(-1, type_)]
        for member, part in members:
            if isinstance(part, kinds.BaseTuple):
                msg = "nested tuples are not supported"
                raise ValueError(msg)  # noqa: TRY004 - of the kernel, not of a value
            if isinstance(part, kinds.Array):
                found.append(Argument(position, member, str(part.dtype), part.ndim, part.mutable))
    return found


@cache
def _llvm() -> Any:
    import llvmlite.binding

    return llvmlite.binding


@cache
def _numba_folder() -> Path | None:
    spec = importlib.util.find_spec("numba")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


@cache
def _linker() -> _Linker | None:
    folder = _numba_folder()
    if folder is None:
        return None
    helpers = {}
    for name, path in _HELPERS.items():
        if name not in sys.modules:
            found = [folder / f"{path}{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
            file = next((f for f in found if f.exists()), None)
            spec = importlib.util.spec_from_file_location(name, file) if file is not None else None
            if spec is None or spec.loader is None:
                return None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        helpers[name] = sys.modules[name]
    return _Linker(_llvm(), helpers)
