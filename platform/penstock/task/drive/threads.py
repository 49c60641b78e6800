"""Production drivers of subtasks and background work: the only threads of the task layer.

Subtasks with a Python function anywhere in their chain share one run loop per worker, batch by batch (two threads that
both need the GIL only take it from each other); each other subtask has a separate thread, since it spends its time in
compiled code and blocking clients. A loop waits for one event, at most until the next deadline of its subtasks; there
is no polling.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.task.drive.subtask import StepResult, Subtask

if TYPE_CHECKING:
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.task.chain.background import Done

#: Upper bound of each wait, in case a wake-up is lost.
_MAX_WAIT_MS = 1000.0
_MIN_WAIT_MS = 0.1
#: Maximum number of waiting background tasks.
_BACKGROUND_QUEUE = 10_000
#: Fewer reads than this are done by the calling thread.
_MIN_PARALLEL = 2


class RunLoop:
    """One thread that steps its subtasks in turn; it ends with the last one and starts again with a new one."""

    def __init__(self, name: str, clock: Clock) -> None:
        """Start without a thread."""
        self._name = name
        self._clock = clock
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._incoming: list[Subtask] = []
        self._running = False
        #: For the sampler (`task.drive.stack_sampler`), from any thread: the thread, its subtasks, the one that steps.
        self.thread: threading.Thread | None = None
        self.subtasks: tuple[Subtask, ...] = ()
        self.current_subtask: Subtask | None = None
        #: When the newest step began (monotonic), for `task.drive.slow_steps`.
        self.step_begun_ms = 0.0

    def wake(self) -> None:
        """Let the loop check its subtasks; callable from any thread, cheap if the loop is awake."""
        if not self._event.is_set():
            self._event.set()

    def run(self, subtask: Subtask) -> None:
        """Add a subtask to step."""
        with self._lock:
            self._incoming.append(subtask)
            start, self._running = not self._running, True
        if start:
            self.thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self.thread.start()
        self.wake()

    def _loop(self) -> None:
        subtasks: list[Subtask] = []
        while True:
            # Cleared before the check: a wake-up during the check ends the next wait.
            self._event.clear()
            with self._lock:
                if self._incoming:
                    subtasks += self._incoming
                    self._incoming.clear()
                    self.subtasks = tuple(subtasks)
                if not subtasks:
                    self._running = False
                    self.subtasks = ()
                    return
            results = [self._step(subtask) for subtask in subtasks]
            self.current_subtask = None
            if StepResult.DONE in results:
                subtasks = [subtask for subtask in subtasks if not subtask.has_ended]
                self.subtasks = tuple(subtasks)
                continue
            if StepResult.BUSY not in results:
                self._wait(subtasks)

    def _step(self, subtask: Subtask) -> StepResult:
        self.step_begun_ms = self._clock.monotonic_ms()
        self.current_subtask = subtask
        return subtask.step()

    def _wait(self, subtasks: list[Subtask]) -> None:
        deadline = min(subtask.next_deadline_ms() for subtask in subtasks)
        remaining = min(deadline - self._clock.monotonic_ms(), _MAX_WAIT_MS)
        if remaining > 0:
            self._event.wait(max(remaining, _MIN_WAIT_MS) / 1000)


class ThreadDriver:
    """The loops of a worker's subtasks."""

    def __init__(self, clock: Clock) -> None:
        """Start without threads."""
        self._clock = clock
        self._python = RunLoop("ps-python", clock)
        self._loops: weakref.WeakSet[RunLoop] = weakref.WeakSet((self._python,))

    def loop(self, deployment: TaskDeployment) -> RunLoop:
        """Return the shared loop for chains with Python functions, a separate loop for any other."""
        if any(operator.python for operator in deployment.operators):
            return self._python
        loop = RunLoop(f"ps-{deployment.vertex_name}-{deployment.execution.subtask}"[:15], self._clock)
        self._loops.add(loop)
        return loop

    @property
    def loops(self) -> tuple[RunLoop, ...]:
        """Return the loops in use; called by the control thread, which also assigns subtasks."""
        return tuple(self._loops)


class BackgroundFullError(PenstockError):
    """Too much background work is waiting."""


class ThreadBackground:
    """A few threads, started as needed, that run background work in order of submission."""

    def __init__(self, name: str, threads: int) -> None:
        """Make a pool of at most `threads` threads."""
        self._name = name
        self._limit = threads
        self._queue: queue.Queue[tuple[Callable[[], Any], Done]] = queue.Queue(_BACKGROUND_QUEUE)
        self._lock = threading.Lock()
        #: Waiting and running tasks.
        self._open = 0
        self._threads = 0

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work`, then `done`, in one of the threads.

        Raises:
            BackgroundFullError: thousands of pieces wait already.
        """
        try:
            self._queue.put_nowait((work, done))
        except queue.Full as error:
            msg = f"{_BACKGROUND_QUEUE} pieces of background work wait in {self._name}"
            raise BackgroundFullError(msg) from error
        with self._lock:
            self._open += 1
            start = self._threads < min(self._open, self._limit)
            self._threads += start
        if start:
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()

    def _loop(self) -> None:
        while True:
            work, done = self._queue.get()
            try:
                result, failure = work(), None
            except Exception as error:  # noqa: BLE001 - passed to the submitter of the work
                result, failure = None, error
            # An error in `done` is a defect of the engine and ends the process (threading.excepthook of the worker).
            done(result, failure)
            del work, done, result, failure
            with self._lock:
                self._open -= 1


class ParallelReads:
    """Runs tasks in the threads of a separate background, and waits for all of them."""

    def __init__(self, background: ThreadBackground) -> None:
        """Make a runner; no other work uses `background`, so that no task waits for it."""
        self._background = background

    def __call__(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the result of each task, in order; raise the error of the first failed one."""
        if len(work) < _MIN_PARALLEL:
            return [task() for task in work]
        ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        for number, task in enumerate(work):
            self._background.submit(task, lambda result, error, n=number: ended.put((n, result, error)))  # type: ignore[misc]
        found = sorted((ended.get() for _ in work), key=lambda end: end[0])
        for _, _, error in found:
            if error is not None:
                raise error
        return [result for _, result, _ in found]
