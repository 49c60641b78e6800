"""Job files: run one with the current executor, or only plan its job.

Used by `penstock run`, `check` and `upgrade`, by `JobHandle.upgrade` and by Spark's writer of state.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import JobFailedError, PenstockError, UsageError, is_located, misuse_hint
from penstock.graph.executor import JobResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.graph.job_graph import JobGraph

_TRACEBACK = "PENSTOCK_TRACEBACK=1 prints the whole traceback"


class _PlanningExecutor:
    """An executor that records the jobs of a file and runs none."""

    def __init__(self) -> None:
        self.graphs: list[JobGraph] = []

    def submit(self, graph: JobGraph) -> Any:
        self.graphs.append(graph)
        msg = f"job {graph.name!r} uses env.submit(...), but is only planned here"
        raise UsageError(msg, hint="end the file with env.execute(...)")

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        del enough, timeout_ms
        self.graphs.append(graph)
        return JobResult(job_id="0" * 32, name=graph.name, state="FINISHED", duration_ms=0.0)


def require_job_file(job: Path) -> None:
    """Raise UsageError if there is no such file."""
    if not job.is_file():
        below = "" if job.is_absolute() else f"; {job} is relative to {Path.cwd()}"
        raise UsageError(f"there is no job file {job}", hint=f"pass the path of a Python file{below}")


def planned(job: Path, overrides: dict[str, str], name: str) -> JobGraph:
    """Return the job that a file builds, with settings overridden; of several the one called `name`.

    Raises:
        UsageError: the file does not exist, builds no job, or builds several of which not exactly one has the name.
    """
    from penstock.api.building.executors import use_executor

    require_job_file(job)
    plan = _PlanningExecutor()
    import_path = list(sys.path)
    try:
        with use_executor(plan, overrides):
            execute_file(job)
    finally:
        sys.path[:] = import_path  # this process may later import modules of the same names as the job's
    if not plan.graphs:
        msg = f"{job} ran to its end without calling env.execute(...)"
        raise UsageError(msg, hint="end the job file with env.execute('name')")
    named = [graph for graph in plan.graphs if graph.name == name]
    if len(plan.graphs) > 1 and len(named) != 1:
        msg = f"{job} builds {len(plan.graphs)} jobs, and not exactly one of them is named {name!r}"
        raise UsageError(msg, hint="keep one job to a file")
    return (named or plan.graphs)[0]


def execute_file(job: Path) -> None:
    """Run a job file; an error in it names its line.

    Raises:
        UsageError: Python code of the file fails, or the file has the name of a module of Python's own.
        PenstockError: the job cannot be built or fails.
    """
    if job.suffix not in ("", ".py"):
        raise UsageError(f"{job} is no Python file", hint="pass the job file, which ends with .py")
    if job.stem in sys.stdlib_module_names - {"test"}:  # no program imports `test`
        msg = f"{job} would be imported in place of Python's own module {job.stem!r}"
        raise UsageError(msg, hint="rename the job file")
    folder = job.resolve().parent
    sys.path.insert(0, str(folder))
    _forget_modules(folder)
    try:
        # workers have another working directory: they read the lines of a traceback by the absolute path
        runpy.run_path(str(folder / job.name), run_name="__main__")
    except PenstockError as error:
        if isinstance(error, JobFailedError):
            raise
        located = _located(error, job)
        if located is error:
            raise
        raise located from error
    except Exception as error:
        if os.environ.get("PENSTOCK_TRACEBACK"):
            raise
        if isinstance(error, SyntaxError):  # its text would name the place again
            msg = f"{_place(error, job)}: {type(error).__name__}: {error.msg}"
            line = (error.text or "").strip()
            raise UsageError(msg, hint=f"correct `{line}`" if line else "pass a Python file") from error
        # libraries explain their errors in further paragraphs
        text = " ".join(str(error).partition("\n\n")[0].split())
        msg = f"{_place(error, job)}: {type(error).__name__}: {text}"
        raise UsageError(msg, hint=_hint_of(error) or ("" if msg.endswith(")") else _TRACEBACK)) from error


def _hint_of(error: Exception) -> str:
    """Return a hint for an error of the job file's own code; empty if there is none."""
    if isinstance(error, NameError):
        return f"define it before this line; the name of a column is a text: {error.name!r}"
    if isinstance(error, ModuleNotFoundError):
        return f"a package: install it in this Python, {sys.executable}; a module of yours: put it beside the job file"
    return misuse_hint(error)


def _forget_modules(folder: Path) -> None:
    """Remove imported modules that share a name with those in this folder: another version of the job imported them."""
    own_modules = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    own_modules -= sys.stdlib_module_names | {"__main__"}
    for name in [name for name in sys.modules if name.partition(".")[0] in own_modules]:
        place = getattr(sys.modules[name], "__file__", None)
        if place and folder not in Path(place).resolve().parents:
            del sys.modules[name]


def _located(error: PenstockError, job: Path) -> PenstockError:
    """Return the error with its line in the job file, unless it names the line of an operator."""
    if is_located(error.message):
        return error
    located = type(error)(f"{_place(error, job)}: {error.message}", hint=error.hint)
    located.__cause__ = error
    return located


def _place(error: BaseException, job: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or job).name}:{error.lineno or 1}"
    frames: list[Any] = traceback.extract_tb(error.__traceback__)
    # a frame such as `<string>` has no file
    files = [frame for frame in frames if not frame.filename.startswith("<")]
    own = [frame for frame in files if Path(frame.filename).resolve().parent == job.resolve().parent]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else str(job)
