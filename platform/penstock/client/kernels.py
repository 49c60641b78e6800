"""All kernels, compiled before a cluster of this machine starts: by `penstock compile`, or by the first job.

A job that needs a kernel which is not there compiles it in its workers, in silence. So clusters of this machine look
first, and compile with a line for people.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from penstock.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress

#: Modules of the connectors, and what each needs besides penstock.
_CONNECTORS = {
    "penstock_connectors.formats.json_kernels": "",
    "penstock_connectors.formats.json_table": "",
    "penstock_connectors.formats.json_writer": "",
    "penstock_connectors.kafka.client._kernels": "confluent_kafka",
}
#: Of benchmarks alone, which compile them when they start.
_BENCHMARKS = ("penstock_connectors.nexmark._kernels", "penstock_connectors.workloads.kernels")
#: (modules done, modules in all), beginning with none done.
OnCompiled = Callable[[int, int], None]


def kernel_modules(*, benchmarks: bool = False) -> tuple[str, ...]:
    """Return the modules of all kernels that can run here."""
    from penstock.kernels.compiler.warm import MODULES

    usable = [name for name, needs in _CONNECTORS.items() if not needs or importlib.util.find_spec(needs) is not None]
    own = (f"penstock.kernels.{name}" for name in MODULES)
    return (*own, *usable, *(_BENCHMARKS if benchmarks else ()))


def compile_kernels(on_compiled: OnCompiled | None = None, *, benchmarks: bool = False) -> int:
    """Compile what is not compiled yet and return how many modules that were; `on_compiled` is called for each.

    Raises:
        PenstockError: they cannot be compiled.
    """
    from penstock.kernels.compiler.build import alone, build, lacking  # with numpy, which no control process needs

    wanted = kernel_modules(benchmarks=benchmarks)
    if not lacking(wanted):
        return 0
    with alone(), CompileProgress() as progress:
        modules = lacking(wanted)
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


class CompileProgress:
    """A bar on a terminal, else a line at the begin and one at the end, on standard error."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Nothing is shown before `show`."""
        self._clock = clock or SystemClock()
        self._begin_ms = 0.0
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Show that so many modules are compiled."""
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
        if done == total:
            seconds = (self._clock.monotonic_ms() - self._begin_ms) / 1000
            sys.stderr.write(f"compiled the kernels: {total} modules in {seconds:.0f} s\n")
        sys.stderr.flush()
