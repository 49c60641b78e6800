"""Machine code of kernels, kept beside numba's own cache in a form that is loaded without numba.

One file a package (`penstock`, `penstock_connectors`): the object code numba made of every kernel, and a digest of
every module they stand in. `function` answers out of it while `kernels.compiler.compile` declares kernels; `save`
writes it, called by the workers' template when it had to compile something. A file is used only by the versions, the
processor and the sources it was made for; without one everything is compiled or loaded by numba, as if there were none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from penstock.kernels.compiler import native, register
from penstock.kernels.compiler.register import Kernel

#: Another folder for the files; `0`: there are none, kernels are always numba's own dispatchers.
FOLDER = "PENSTOCK_KERNEL_BUNDLES"
_PROOF_SECONDS = 60
_PROOF = "import sys; from penstock.kernels.compiler import bundle; bundle.prove(sys.argv[1])"
_FORMAT = 1


class _Bundle(msgspec.Struct, frozen=True):
    """A file."""

    made_for: str
    #: Module -> (path, digest) of the sources.
    sources: dict[str, tuple[str, str]]
    #: `<module>.<name>` -> code.
    kernels: dict[str, native.Code]


class _Group:
    """The kernels of one package in this process."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.bundle = _read(_path(package))
        #: Modules whose kernels were asked for here.
        self.seen: set[str] = set()


_groups: dict[str, _Group] = {}


def function(declared: Callable[..., Any]) -> Any:
    """Return the compiled form of a kernel, or None when numba has to make it."""
    module, name = declared.__module__, declared.__name__
    package = module.partition(".")[0]
    if package not in _groups:
        _groups[package] = _Group(package)
    group = _groups[package]
    group.seen.add(module)
    if group.bundle is None or module not in group.bundle.sources:
        return None
    code = group.bundle.kernels.get(f"{module}.{name}")
    return None if code is None else native.load(code, name)


def held(package: str) -> frozenset[str]:
    """Return the modules of a package whose kernels a usable file has."""
    found = _read(_path(package))
    return frozenset() if found is None else frozenset(found.sources)


def save(kernels: Iterable[Kernel]) -> None:
    """Write the bundles of the packages in which numba had to make a kernel; a failure leaves things as they are."""
    if os.environ.get(FOLDER) == "0":
        return
    known = tuple(kernels)
    for package in {k.function.__module__.partition(".")[0] for k in known if k.compiled}:
        own = [k for k in known if k.function.__module__.partition(".")[0] == package]
        try:
            _write(package, own)
        except Exception as error:  # noqa: BLE001 - numba's insides differ from what we know: kernels stay numba's
            sys.stderr.write(f"penstock: kernels of {package} are not kept: {type(error).__name__}: {error}\n")


def _write(package: str, kernels: list[Kernel]) -> None:
    group = _groups[package]
    sources = {} if group.bundle is None else dict(group.bundle.sources)
    codes = {} if group.bundle is None else dict(group.bundle.kernels)
    for module in group.seen:
        source = str(sys.modules[module].__file__)
        sources[module] = (source, _digest(source))
    for kernel in kernels:
        if kernel.compiled:
            name = f"{kernel.function.__module__}.{kernel.function.__name__}"
            codes[name] = native.extract(kernel.entry)
    bundle = _Bundle(_made_for(), sources, codes)
    path = _path(package)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.msgpack.encode(bundle))
    try:
        # Another process tries it first: wrong machine code is the end of the process that runs it.
        command = [sys.executable, "-c", _PROOF, str(temporary)]
        subprocess.run(command, check=True, timeout=_PROOF_SECONDS, stdin=subprocess.DEVNULL, capture_output=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> _Bundle | None:
    if os.environ.get(FOLDER) == "0":
        return None
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        bundle = msgspec.msgpack.decode(path.read_bytes(), type=_Bundle)
        if bundle.made_for == _made_for() and all(_digest(p) == digest for p, digest in bundle.sources.values()):
            return bundle
    return None


def folder() -> Path:
    """Return the folder of the files: beside numba's cache where that can be written, else in the user's."""
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    own = Path(__file__).parent / "__pycache__"
    if os.access(own if own.exists() else own.parent, os.W_OK):
        return own
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "penstock" / "kernels"


def _path(package: str) -> Path:
    return folder() / f"{package}.{sys.implementation.cache_tag}.kernels"


def _digest(path: str) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()


def _made_for() -> str:
    """Everything but the sources that machine code depends on."""
    own = Path(__file__).parent
    parts = [_digest(str(own / name)) for name in ("compile.py", "native.py")]
    return " ".join([str(_FORMAT), sys.version, *native.versions(), *parts])


def prove(path: str) -> None:
    """Load every kernel of a file and call it with nothing: its own complaint shows that it runs.

    Raises:
        SystemExit: something is wrong.
    """
    read = _read(Path(path))
    if read is None:
        raise SystemExit("the file does not fit")
    for module in read.sources:
        package = module.partition(".")[0]
        _groups[package] = _groups.get(package) or _Group(package)
        _groups[package].bundle = read
    for module in read.sources:
        importlib.import_module(module)
    found = [
        kernel
        for kernel in register.kernels()
        if f"{kernel.function.__module__}.{kernel.function.__name__}" in read.kernels
    ]
    if len(found) < len(read.kernels) or any(kernel.compiled for kernel in found):
        raise SystemExit("not every kernel is loaded")
    for kernel in found:
        with contextlib.suppress(TypeError):
            kernel.entry()
            raise SystemExit(f"{kernel.function.__name__} takes no arguments")
