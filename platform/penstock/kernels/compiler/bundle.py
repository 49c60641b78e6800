"""Machine code of kernels, stored next to numba's cache in a form that loads without numba.

One file a package (`penstock`, `penstock_connectors`): numba's object code of every kernel, and a digest of every
module that contains kernels. `function` looks up kernels while `kernels.compiler.compile` declares them. `save` writes
the file; the workers' template calls it after compiling. A file is used only with the versions, the processor and the
sources it was made for. Without one, numba compiles or loads every kernel as usual.

A wheel ships files for a baseline of processors (`native.baseline`). They are used for the modules that this
installation has not compiled itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from penstock.kernels.compiler import native, register
from penstock.kernels.compiler.register import Kernel

#: Another folder for the files; `0`: no files, all kernels are numba's dispatchers.
FOLDER = "PENSTOCK_KERNEL_BUNDLES"
_PROOF_SECONDS = 60
_PROOF = "import sys; from penstock.kernels.compiler import bundle; bundle.prove(*sys.argv[1:])"
_FORMAT = 2
#: Files that came with the wheel, and files of who installed it: in an image often another user than the one that runs.
SHIPPED = Path(__file__).parents[1] / "shipped"
INSTALLED = Path(__file__).parent / "__pycache__"


class _Bundle(msgspec.Struct, frozen=True):
    """The content of a file."""

    made_for: str
    #: The processor, as in `native.processor`.
    processor: str
    #: Module -> (path below the package's folder, digest) of the sources.
    sources: dict[str, tuple[str, str]]
    #: `<module>.<name>` -> code.
    kernels: dict[str, native.Code]


class _Group:
    """The kernels of one package in this process."""

    def __init__(self, package: str) -> None:
        self.package = package
        #: Those compiled here before those of the wheel.
        self.bundles = _usable(package)


_groups: dict[str, _Group] = {}


def function(declared: Callable[..., Any]) -> Any:
    """Return the compiled form of a kernel, or None if numba has to make it."""
    module, name = declared.__module__, declared.__name__
    package = module.partition(".")[0]
    if package not in _groups:
        _groups[package] = _Group(package)
    full_name = f"{module}.{name}"
    usable = (found for found in _groups[package].bundles if module in found.sources and full_name in found.kernels)
    bundle = next(usable, None)
    code = None if bundle is None else bundle.kernels[full_name]
    return None if code is None else native.load(code, name)


def held(package: str) -> frozenset[str]:
    """Return the modules of a package whose kernels are in a usable file."""
    return frozenset(module for found in _usable(package) for module in found.sources)


def save(kernels: Iterable[Kernel]) -> None:
    """Write the bundles of the packages in which numba had to make a kernel; a failure changes nothing."""
    if os.environ.get(FOLDER) == "0":
        return
    known = tuple(kernels)
    for package in {k.function.__module__.partition(".")[0] for k in known if k.compiled}:
        own = [k for k in known if k.function.__module__.partition(".")[0] == package]
        try:
            _write(package, own)
        except Exception as error:  # noqa: BLE001 - numba's insides differ from what we know: kernels stay numba's
            sys.stderr.write(f"penstock: cannot store the kernels of {package}: {type(error).__name__}: {error}\n")


def _write(package: str, kernels: list[Kernel]) -> None:
    # what was compiled for another processor stays in its own file
    kept = [found for found in _groups[package].bundles if found.processor == native.processor()]
    sources = {module: place for found in reversed(kept) for module, place in found.sources.items()}
    codes = {name: code for found in reversed(kept) for name, code in found.kernels.items()}
    root = _root(package)
    # every module with a kernel that numba made here: those of the other modules stay in the wheel's file
    for module in {kernel.function.__module__ for kernel in kernels if kernel.compiled}:
        source = Path(str(sys.modules[module].__file__))
        sources[module] = (str(source.relative_to(root)), _digest(source))
    for kernel in kernels:
        if kernel.compiled:
            name = f"{kernel.function.__module__}.{kernel.function.__name__}"
            codes[name] = native.extract(kernel.entry)
    bundle = _Bundle(_made_for(), native.processor(), sources, codes)
    path = folder() / file_name(package)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.msgpack.encode(bundle))
    try:
        # Another process tries the file first: wrong machine code kills the process that runs it.
        command = [sys.executable, "-c", _PROOF, package, str(temporary)]
        subprocess.run(command, check=True, timeout=_PROOF_SECONDS, stdin=subprocess.DEVNULL, capture_output=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _usable(package: str) -> tuple[_Bundle, ...]:
    """Return the kernels compiled here, by this user and at the installation, then the wheel's, as far as they fit."""
    given = os.environ.get(FOLDER)
    if given == "0":
        return ()
    folders = dict.fromkeys((folder(),) if given else (folder(), INSTALLED, SHIPPED))
    found = (_read(package, place / file_name(package)) for place in folders)
    return tuple(bundle for bundle in found if bundle is not None)


def _read(package: str, path: Path) -> _Bundle | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        bundle = msgspec.msgpack.decode(path.read_bytes(), type=_Bundle)
        root = _root(package)
        if (
            bundle.made_for == _made_for()
            and native.runs(bundle.processor)
            and all(_digest(root / place) == digest for place, digest in bundle.sources.values())
        ):
            return bundle
    return None


def _root(package: str) -> Path:
    """Return the folder of a package, or of a single module."""
    spec = importlib.util.find_spec(package)
    return Path(str(spec.origin)).parent if spec is not None else Path()


def folder() -> Path:
    """Return the folder for new files: next to numba's cache if that is writable, else in the user's cache."""
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    if os.access(INSTALLED if INSTALLED.exists() else INSTALLED.parent, os.W_OK):
        return INSTALLED
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "penstock" / "kernels"


def file_name(package: str) -> str:
    """Return the name of a package's file: it names the interpreter's binary interface too."""
    return f"{package}.{sysconfig.get_config_var('SOABI')}.kernels"


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _made_for() -> str:
    """Return all that machine code depends on apart from the sources and the processor."""
    own = Path(__file__).parent
    parts = [_digest(own / name) for name in ("compile.py", "native.py")]
    return " ".join([str(_FORMAT), str(sysconfig.get_config_var("SOABI")), *native.versions(), *parts])


def prove(package: str, path: str) -> None:
    """Load every kernel of a file and call it without arguments: its own error shows that it runs.

    Raises:
        SystemExit: a kernel does not load or run.
    """
    read = _read(package, Path(path))
    if read is None:
        raise SystemExit("the file is not usable in this process")
    _groups[package] = _groups.get(package) or _Group(package)
    _groups[package].bundles = (read,)
    for module in read.sources:
        importlib.import_module(module)
    found = [
        kernel
        for kernel in register.kernels()
        if f"{kernel.function.__module__}.{kernel.function.__name__}" in read.kernels
    ]
    if len(found) < len(read.kernels) or any(kernel.compiled for kernel in found):
        raise SystemExit("some kernels could not be loaded")
    for kernel in found:
        with contextlib.suppress(TypeError):
            kernel.entry()
            raise SystemExit(f"{kernel.function.__name__} takes no arguments")
