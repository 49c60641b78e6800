"""The warm template: a process with imported modules and compiled kernels that forks workers in milliseconds.

`python -m penstock.taskmanager.template <socket descriptor> <supervisor pid>`, started by `template_client`. It has one
thread and runs no user function. It never *uses* Polars, Arrow compute or a client before a fork (a used Polars hangs
in the child); it warms only Penstock's kernels. `gc.freeze()` is the last call before the first fork, so that the
children's collector does not copy its pages. The kernel ends workers with the template, and the template with its
supervisor.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path

from penstock.core import failpoints
from penstock.core.logs import configure_logs
from penstock.taskmanager.process_control import (
    arm_lease,
    close_other_descriptors,
    die_with_parent,
    name_process,
    restore_default_signals,
    thread_names,
    title_process,
)
from penstock.taskmanager.template_messages import (
    MAX_PACKET_BYTES,
    Exited,
    Forked,
    ForkTemplate,
    ForkWorker,
    TemplateReady,
    TemplateReport,
    decode_request,
    encode,
)
from penstock.taskmanager.worker_logs import redirect_output

#: The modules that every worker needs; a job's preload adds its connectors.
MODULES = (
    "numpy",
    "pyarrow",
    "pyarrow.parquet",
    "pyarrow.compute",
    "polars",
    "cloudpickle",
    "penstock.kernels.compiler.build",
    "penstock.network.connection",
    "penstock.operators.registry",
    "penstock.task.drive.runtime",
    "penstock.taskmanager.worker",
)
#: Threads that libraries start on import and that may be lost in a fork: jemalloc starts a new one, Polars' cleaner
#: only sleeps.
SAFE_THREADS = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})
#: Until it is ready a worker does nothing that needs fencing, but a spawned one imports for seconds.
START_LEASE_MS = 60_000.0
#: The signal's wake-up ends a poll at once; this bounds the poll if a signal is lost.
_POLL_MS = 1000


def main(arguments: list[str]) -> None:
    """Run the template of a supervisor; never returns normally."""
    descriptor, supervisor_pid = int(arguments[0]), int(arguments[1])
    die_with_parent(supervisor_pid)
    name_process("ps-template")
    # Forking with the threads in SAFE_THREADS is tested; Python 3.12 warns about any thread.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    error = warm_up() or _import(tuple(arguments[2:]))
    _keep_kernels(error)
    Template(socket.socket(fileno=descriptor)).serve(error)


def warm_up() -> str:
    """Import and compile what any job needs; return the first error. A worker's control loop must never wait for it.

    A spawned worker calls it too, before it reports that it is ready.
    """
    error = _import(MODULES)
    if error:
        return error
    operators = importlib.import_module("penstock.operators.registry").OPERATORS.values()
    kernels = importlib.import_module("penstock.kernels.compiler.build")
    if kernels.unbundled([f"penstock.kernels.{name}" for name in kernels.MODULES]):
        sys.stderr.write("compiling the kernels, once for this installation (`penstock compile` does it in advance)\n")
        sys.stderr.flush()
    kernels.warm()
    return _import(tuple(sorted({path.partition(":")[0] for path in operators})))


class Template:
    """Forks processes on request, reaps them, and reports both."""

    def __init__(self, control: socket.socket) -> None:
        """Take the SOCK_SEQPACKET end shared with the supervisor."""
        self._control = control
        self._children: dict[int, str] = {}

    def serve(self, error: str = "") -> None:
        """Report the imports, then serve until the supervisor closes its end; exits the process."""
        unsafe = tuple(name for name in thread_names() if name not in SAFE_THREADS)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        gc.collect()
        gc.freeze()
        self._send_report(TemplateReady(pid=os.getpid(), unsafe_threads=unsafe, error=error))
        while True:
            for descriptor, _ in poller.poll(_POLL_MS):
                if descriptor == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif not self._request():
                    os._exit(0)
            self._reap()

    def _request(self) -> bool:
        """Serve one request; return False if the supervisor has closed its end."""
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 1)
        if not data:
            return False
        request = decode_request(data)
        name = request.spec.worker_id if isinstance(request, ForkWorker) else request.name
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send_report(Forked(name=name, pid=0, error=f"fork failed: {error}"))
            os.close(descriptors[0])
            return True
        if pid == 0:
            self._child(request, descriptors[0], parent)
        os.close(descriptors[0])
        self._children[pid] = name
        self._send_report(Forked(name=name, pid=pid))
        return True

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._children.pop(pid, "")
            self._send_report(Exited(name=name, pid=pid, returncode=os.waitstatus_to_exitcode(status)))

    def _send_report(self, report: TemplateReport) -> None:
        try:
            self._control.send(encode(report))
        except OSError:
            os._exit(0)  # the supervisor has ended

    def _child(self, request: ForkWorker | ForkTemplate, descriptor: int, parent: int) -> None:
        """Become the requested process; never returns."""
        code = 1
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            restore_default_signals()
            # Detach the socket object, so that it cannot later close a reused descriptor.
            self._control.detach()
            close_other_descriptors({descriptor})
            failpoints.reset()
            if isinstance(request, ForkTemplate):
                _become_template(request, descriptor)
            else:
                code = become_worker(request, descriptor)
        except BaseException:  # noqa: BLE001 - the last frame of a forked process: no error may reach the template code
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def become_worker(request: ForkWorker, descriptor: int) -> int:
    """Run a worker in this (forked or spawned) process; return its exit code."""
    from penstock.taskmanager.worker import run_worker

    spec = request.spec
    arm_lease(START_LEASE_MS)
    name_process(f"ps-worker-{spec.slot}")
    title_process(f"penstock worker {spec.job_name} {spec.worker_id}")
    redirect_output(Path(spec.log_path))
    # A crash in native code writes the lines of its thread to the log. The others could push them out of the tail.
    faulthandler.enable(all_threads=False)
    configure_logs(
        spec.log_format, process="worker", worker=spec.worker_id, taskmanager=spec.taskmanager_id, job=spec.job_id
    )
    sys.path[:0] = [path for path in spec.import_path if path not in sys.path]
    return run_worker(socket.socket(fileno=descriptor), spec)


def _become_template(request: ForkTemplate, descriptor: int) -> None:
    name_process("ps-job-templ")
    gc.unfreeze()
    sys.path[:0] = [path for path in request.import_path if path not in sys.path]
    error = _import(request.preload)
    _keep_kernels(error)
    Template(socket.socket(fileno=descriptor)).serve(error)


def _keep_kernels(error: str) -> None:
    if not error:
        importlib.import_module("penstock.kernels.compiler.build").keep()


def _import(modules: tuple[str, ...]) -> str:
    """Import all modules; return the first failure as one line."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - a user's module may raise anything at import
            traceback.print_exc()
            return f"import {module}: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
