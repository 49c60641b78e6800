"""Compiles all kernels before a local cluster starts: for `penstock compile`, or for the first job.

Without this, the workers of a job compile missing kernels silently. Local clusters check first and compile with a
progress display.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from penstock.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress

#: Modules of the connectors, and the package that each needs in addition.
_CONNECTORS = {
    "penstock_connectors.formats.json_kernels": "",
    "penstock_connectors.formats.json_table": "",
    "penstock_connectors.formats.json_writer": "",
    "penstock_connectors.kafka.client._kernels": "confluent_kafka",
}
#: Used by benchmarks only, which compile them at their start. The wheel does not have them.
_BENCHMARKS = ("penstock_lab.nexmark._kernels", "penstock_lab.workloads.kernels")
#: (compiled modules, all modules), starting at zero.
OnCompiled = Callable[[int, int], None]


def kernel_modules(*, benchmarks: bool = False) -> tuple[str, ...]:
    """Return the modules of all kernels that can be compiled here."""
    from penstock.kernels.compiler.build import MODULES

    usable = [name for name, needs in _CONNECTORS.items() if not needs or importlib.util.find_spec(needs) is not None]
    own = (f"penstock.kernels.{name}" for name in MODULES)
    return (*own, *usable, *(_BENCHMARKS if benchmarks and has_lab() else ()))


def has_lab() -> bool:
    """Return whether the benchmarks and test servers are installed: in a checkout, not from a wheel."""
    return importlib.util.find_spec("penstock_lab") is not None


def are_compiled() -> bool:
    """Return whether a job can start without compiling kernels first."""
    from penstock.kernels.compiler.build import unbundled

    return not unbundled(kernel_modules())


def compile_kernels(on_compiled: OnCompiled | None = None, *, benchmarks: bool = False) -> int:
    """Compile the missing kernels; return the number of modules. `on_compiled` is called for each.

    Raises:
        PenstockError: the compilation failed.
    """
    from penstock.kernels.compiler.build import (  # imports numpy, which no control process needs
        build,
        compile_lock,
        unbundled,
    )

    wanted = kernel_modules(benchmarks=benchmarks)
    if not unbundled(wanted):
        return 0
    with compile_lock(_say_wait), CompileProgress() as progress:
        modules = unbundled(wanted)
        if not modules:
            return 0
        tell = on_compiled or progress.show
        tell(0, len(modules))
        done = 0

        def on_done(_module: str) -> None:
            nonlocal done
            done += 1
            tell(done, len(modules))

        build(modules, on_done)
    return len(modules)


def _say_wait() -> None:
    sys.stderr.write("waiting for another process that compiles the kernels, once for this installation ...\n")
    sys.stderr.flush()


class CompileProgress:
    """Shows the progress on standard error: a bar on a terminal, otherwise a line for each module."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Start without output; `show` begins it."""
        self._clock = clock or SystemClock()
        self._begin_ms = 0.0
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` modules are compiled."""
        if done == 0:
            self._begin_ms = self._clock.monotonic_ms()
            sys.stderr.write("compiling the kernels, once for this installation ...\n")
            if sys.stderr.isatty():
                from rich.console import Console
                from rich.progress import Progress

                self._bar = Progress(console=Console(stderr=True), transient=True)
                self._task = self._bar.add_task("modules", total=total)
                self._bar.start()
        elif self._bar is not None:
            self._bar.update(self._task, completed=done)
        seconds = (self._clock.monotonic_ms() - self._begin_ms) / 1000
        if 0 < done < total and self._bar is None:
            sys.stderr.write(f"compiled {done} of {total} modules, {seconds:.0f} s so far\n")
        if done == total:
            sys.stderr.write(f"compiled the kernels: {total} modules in {seconds:.0f} s\n")
        sys.stderr.flush()
