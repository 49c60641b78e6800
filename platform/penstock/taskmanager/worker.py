"""A worker: one job's subtasks in one process, forked from the template, or spawned if forking is not safe.

The main thread runs the control loop of `worker_control`. A worker has no orderly shutdown, because its effects are
fenced or repeatable. It exits when its supervisor closes the socket, is killed when its slot is released, and dies by
its lease without contact to the JobManager.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.security import Tls
from penstock.core.clock import Clock, SystemClock
from penstock.rpc.messages import WorkerReady
from penstock.taskmanager.process_control import (
    arm_lease,
    keep_freed_memory,
    lower_priority,
    raise_descriptor_limit,
)
from penstock.taskmanager.template_messages import WorkerSpec
from penstock.taskmanager.told_exit import tell_exits
from penstock.taskmanager.worker_control import ControlClosedError, ControlLoop, WorkerControl

if TYPE_CHECKING:
    from penstock.task.drive.runtime import TaskRuntime
    from penstock.task.drive.stack_sampler import StackSampler

#: With Python's default of 5 ms, a round trip beside a busy Python thread takes 5 ms; with this a tenth.
SWITCH_INTERVAL_SECONDS = 0.0005
#: For encoding and uploading; two, so that one slow PUT does not block the other subtasks of the slot.
BACKGROUND_THREADS = 2
READING_THREADS = 8
#: Publishing and recovery may block while a broker is down: one thread per sink, up to this number.
BLOCKING_THREADS = 16
#: A worker keeps at most one part in this many of its memory after it was freed.
_KEPT_PART = 8
#: Exit code of a worker that cannot continue.
BROKEN = 70


def run_worker(control_socket: socket.socket, spec: WorkerSpec) -> int:
    """Serve until the supervisor closes the control socket; return the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    lower_priority()
    keep_freed_memory(spec.memory_limit_bytes // _KEPT_PART)
    raise_descriptor_limit()
    threading.excepthook = _exit_on_thread_failure
    tell_exits()
    clock = SystemClock()
    control = WorkerControl(control_socket)
    runtime, sampler, endpoint = _start_runtime(spec, clock, control)
    arm_lease(spec.lease_ms)
    control.report(WorkerReady(worker_id=spec.worker_id, endpoint=endpoint, pid=os.getpid()))
    try:
        ControlLoop(spec, clock, control, runtime, sampler).run()
    except ControlClosedError:
        return 0


def _start_runtime(spec: WorkerSpec, clock: Clock, control: WorkerControl) -> tuple[TaskRuntime, StackSampler, str]:
    # Imported here: the supervisor imports neighbouring modules and must not load the data path.
    from penstock.network.connection import WorkerNetwork
    from penstock.network.handshake import Trust
    from penstock.task.chain.background import SlowCalls
    from penstock.task.chain.environment import TaskEnvironment
    from penstock.task.drive.runtime import TaskRuntime
    from penstock.task.drive.slow_steps import SlowSteps
    from penstock.task.drive.stack_sampler import StackSampler
    from penstock.task.drive.threads import ParallelReads, ThreadBackground, ThreadDriver
    from penstock.taskmanager.checkpoint_root import require_writable

    tls = Tls(*map(Path, spec.certificates)) if spec.certificates else None
    trust = Trust(spec.key, tls)
    network = WorkerNetwork(spec.worker_id, spec.listen, clock, on_connection_lost=_log_lost_connection, trust=trust)
    environment = TaskEnvironment(
        worker_id=spec.worker_id,
        clock=clock,
        network=network,
        report=control.report,
        slow_calls=SlowCalls(clock),
        background=ThreadBackground("ps-background", BACKGROUND_THREADS),
        blocking=ThreadBackground("ps-blocking", BLOCKING_THREADS),
        gather=ParallelReads(ThreadBackground("ps-reads", READING_THREADS)),
        managed_memory_bytes=spec.managed_memory_bytes,
        network_memory_bytes=spec.network_memory_bytes,
        tell_need=control.tell_need,
        state_dir=Path(spec.state_dir),
        copies_dir=Path(spec.copies_dir),
        beside=spec.beside,
        require_writable=lambda folder: require_writable(folder, spec.worker_id, spec.taskmanager_id),
    )
    driver = ThreadDriver(clock)
    sampler = StackSampler(lambda: driver.loops, clock, control.report)
    steps = SlowSteps(lambda: driver.loops, clock, environment.slow_calls)
    return TaskRuntime(environment, driver, steps.look), sampler, network.endpoint


def _log_lost_connection(peer: str, reason: str) -> None:
    """Log the first lost connection; the affected tasks fail separately."""
    sys.stderr.write(f"connection to worker {peer} lost: {reason}\n")
    sys.stderr.flush()


def _exit_on_thread_failure(arguments: threading.ExceptHookArgs) -> None:
    """End the worker after an unhandled exception in one of its threads: it must not continue without the thread."""
    traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
    sys.stderr.flush()
    os._exit(BROKEN)
