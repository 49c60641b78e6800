"""Loads all kernels in the worker template, and compiles missing ones on all cores before a job needs them.

As a program this module is one of the compiling processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock.kernels.compiler import bundle
from penstock.kernels.compiler.register import kernels

#: One per line, as several branches add modules.
MODULES = (
    "keys.key_columns",
    "aggregates.values",
    "keys.hashing",
    "rows.row_order",
    "keys.hash_index",
    "rows.key_group_split",
    "aggregates.accumulate",
    "aggregates.aggregate",
    "aggregates.pages",
    "aggregates.merge",
    "aggregates.pane_assignment",
    "rows.row_filter",
    "rows.join_kernels",
    "aggregates.running_kernels",
    "aggregates.cold_cells",
)


def warm(clock: Clock | None = None) -> float:
    """Load all kernels and return the seconds it took."""
    clock = clock or SystemClock()
    begin = clock.monotonic_ms()
    for name in MODULES:
        importlib.import_module(f"penstock.kernels.{name}")
    return (clock.monotonic_ms() - begin) / 1000


def keep() -> None:
    """Store kernels that numba had to compile or load here, so that the next process needs no numba.

    See `kernels.compiler.bundle`.
    """
    bundle.save(kernels())


_SAVE = "--save"
#: Modules that compile longer than others of their size: their loops are compiled for several kinds of cells.
_COSTLY = {"penstock.kernels.aggregates.merge": 3.0}


def unbundled(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules whose kernels are in no bundle; none if bundles are disabled."""
    if os.environ.get(bundle.FOLDER) == "0":
        return ()
    packages = {module.partition(".")[0] for module in modules}
    held = frozenset[str]().union(*(bundle.held(package) for package in packages))
    return tuple(module for module in modules if module not in held)


def build(modules: Sequence[str], on_done: Callable[[str], None], processes: int | None = None) -> None:
    """Compile and keep the kernels of these modules; call `on_done` with each finished module.

    Raises:
        PenstockError: they cannot be compiled or kept.
    """
    count = max(1, min(len(modules), processes or len(os.sched_getaffinity(0))))
    with tempfile.TemporaryFile() as errors:
        reader, writer = os.pipe()
        children = [_start(share, writer, errors.fileno()) for share in _shares(modules, count)]
        os.close(writer)
        try:
            with os.fdopen(reader, encoding="utf-8") as lines:
                for line in lines:
                    on_done(line.strip())
            children.append(_start([_SAVE, *modules], subprocess.DEVNULL, errors.fileno()))
            codes = [child.wait() for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
        if any(codes) or unbundled(modules):
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            msg = f"compiling the kernels failed: {said or 'the result could not be saved'}"
            way_out = "repair that" if said else "make the package folder or ~/.cache/penstock writable"
            raise PenstockError(msg, hint=f"{way_out}, then run `penstock compile`")


@contextlib.contextmanager
def compile_lock(on_wait: Callable[[], None]) -> Iterator[None]:
    """Exclude other processes that want to compile, so that each finds the results of the one before.

    `on_wait` is called before a wait for another process.
    """
    place = bundle.folder() / "kernels.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _shares(modules: Sequence[str], count: int) -> list[list[str]]:
    """Return the modules in shares of similar cost; a module that imports another is in its share.

    Otherwise both processes would compile the kernels of the imported one.
    """
    groups: list[set[str]] = []
    for module in modules:
        own = {module, *(other for other in _imported(module) if other in modules)}
        joined = [group for group in groups if group & own]
        groups = [group for group in groups if not group & own] + [own.union(*joined)]
    shares: list[list[str]] = [[] for _ in range(min(count, len(groups)))]
    for group in sorted(groups, key=lambda group: (-sum(map(_cost, group)), min(group))):
        share = min(shares, key=lambda share: sum(map(_cost, share)))
        share += [module for module in modules if module in group]
    return shares


def _cost(module: str) -> float:
    """Return a measure for the compile time of a module's kernels: the size of its source, times a factor."""
    return _source(module).stat().st_size * _COSTLY.get(module, 1.0)


def _imported(module: str) -> list[str]:
    return re.findall(r"^from (penstock[\w.]*) import", _source(module).read_text(encoding="utf-8"), re.MULTILINE)


def _source(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        msg = f"there is no module {module}"
        raise PenstockError(msg, hint="install penstock again")
    return Path(spec.origin)


def _start(arguments: Sequence[str], out: int, errors: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.kernels.compiler.build", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)


def main(arguments: Sequence[str]) -> None:
    """Import modules and print the name of each when done; with `--save`, write the bundles."""
    save = arguments[:1] == [_SAVE]
    for module in arguments[1:] if save else arguments:
        importlib.import_module(module)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(f"{module}\n")
            sys.stdout.flush()
    if save:
        bundle.save(kernels())


if __name__ == "__main__":
    main(sys.argv[1:])
