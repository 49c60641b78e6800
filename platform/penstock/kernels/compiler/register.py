"""The register of all kernels of the modules imported so far; `kernels.compiler.compile` enters them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled function as it was declared."""

    function: Callable[..., Any]
    signatures: tuple[Any, ...]
    options: dict[str, Any]
    #: The callable: numba's dispatcher, or the function of a bundle.
    entry: Any
    #: Whether numba made it in this process.
    compiled: bool


_kernels: dict[int, Kernel] = {}


def add(kernel: Kernel) -> None:
    """Enter a kernel."""
    _kernels[id(kernel.entry)] = kernel


def found(entry: object) -> Kernel | None:
    """Return the kernel that callers know as `entry`; None when it is no kernel."""
    return _kernels.get(id(entry))


def kernels() -> tuple[Kernel, ...]:
    """Return every kernel of the modules imported so far."""
    return tuple(_kernels.values())


def compiled_count() -> int:
    """Return the number of compiled signatures; it must not change after `warm()`."""
    return sum(len(k.entry.signatures) if k.compiled else len(k.signatures) for k in _kernels.values())
