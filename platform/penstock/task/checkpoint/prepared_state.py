"""The state of subtasks, loaded before they start: the worker's part of a rescale with a short stop.

While the old subtasks of a job run, the workers of the new ones load its newest checkpoint. At the stop they load only
what the last checkpoint adds. `PreparedState` belongs to one subtask; `task.drive.runtime` makes it, loads it in a
background thread, and passes it to the subtask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.core.errors import StateMismatchError
from penstock.state.memory.budget import MemoryBudget
from penstock.state.store import no_pause
from penstock.task.chain.chain import ChainLink
from penstock.task.checkpoint.restore import ChainServices, keyed_contexts

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.snapshot import KeyedStateSnapshot
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.state.store import KeyedState
    from penstock.task.chain.environment import JobServices, TaskEnvironment


#: A pause is this many times as long as the work before it, up to the longest; all together take at most this long.
_PAUSE_PART = 3
_LONGEST_PAUSE_MS = 5_000.0
_MOST_PAUSES_MS = 60_000.0


class Pauses:
    """Leaves most of the disk to the subtasks that run, while state of a later checkpoint is loaded beside them.

    What the checkpoint adds changes records all over the files of large state. Without pauses that takes the whole disk
    for seconds, and the checkpoints of the running job wait.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin the first piece of work."""
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._left_ms = _MOST_PAUSES_MS

    def __call__(self) -> None:
        """Pause after a piece of work."""
        work_ms = self._clock.monotonic_ms() - self._begun_ms
        pause_ms = min(_PAUSE_PART * work_ms, _LONGEST_PAUSE_MS, self._left_ms)
        self._left_ms -= pause_ms
        self._clock.sleep_ms(pause_ms)
        self._begun_ms = self._clock.monotonic_ms()


class PreparedState:
    """The keyed state of one subtask that has not started; owned by one thread at a time."""

    def __init__(self, deployment: TaskDeployment, environment: TaskEnvironment, services: JobServices) -> None:
        """Load nothing yet."""
        self.services = services
        self.budget = MemoryBudget(services.managed_memory_bytes)
        self._first = deployment
        self._environment = environment
        self._stores: dict[str, KeyedState] = {}
        #: How often state was advanced to a later checkpoint.
        self.advanced = 0
        #: Called after each piece of rows of a later checkpoint.
        self._pause: Callable[[], None] = no_pause

    def load(self, deployment: TaskDeployment) -> None:
        """Load the state of a checkpoint, or what it adds to the one before.

        Each operator with keyed state is opened, so that it declares its state, and closed again.

        Raises:
            PenstockError: as `task.checkpoint.restore.open_chain`; the prepared state is of no use then.
            StateMismatchError: a state has a migration function, so that no later checkpoint can be added.
        """
        services = ChainServices(
            wake=_no_wake,
            run_async=_no_work,
            run_waiting=_no_work,
            report_published=_no_work,
            read_file=self.services.read_file,
            read_state=self.services.state_files.read,
            budget=self.budget,
        )
        self._pause = Pauses(self._environment.clock)
        links = [ChainLink(spec, self._environment.create_operator(spec.kind)) for spec in deployment.operators]
        for link, context in keyed_contexts(links, deployment, self._environment, services, self):
            assert context.keyed_state is not None  # noqa: S101 - the operator is keyed
            self._stores[link.spec.uid] = context.keyed_state
            link.operator.open(context)
            link.operator.close()
            if not context.keyed_state.advances:
                raise StateMismatchError(f"the state of {link.spec.uid!r} has a migration function")
        self._pause = no_pause

    def fits(self, deployment: TaskDeployment) -> bool:
        """Return whether the state was prepared for this subtask: the same attempt of the same operators."""
        ours = self._first
        return (
            ours.run_id == deployment.run_id
            and ours.execution == deployment.execution
            and ours.operators == deployment.operators
            and (ours.hash_low, ours.hash_high) == (deployment.hash_low, deployment.hash_high)
        )

    def take(self, uid: str, snapshots: tuple[KeyedStateSnapshot, ...]) -> KeyedState | None:
        """Return the state of one operator at a later checkpoint; None: it has to be read as a whole.

        Raises:
            PenstockError: a file of the checkpoint is missing or damaged.
        """
        store = self._stores.pop(uid, None)
        if store is None:
            return None
        try:
            taken = store.advance(snapshots, self._pause)
        except BaseException:
            store.close()
            raise
        if not taken:
            store.close()
            return None
        self.advanced += 1
        return store

    def close(self) -> None:
        """Free the state that was not taken."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()


class PreparedStates:
    """The prepared state of all subtasks of one deployment in a worker.

    `load` runs in a background thread while no other method is called; `close` waits for its end.
    """

    def __init__(self) -> None:
        """Start without subtasks."""
        self._states: dict[tuple[str, int], PreparedState] = {}
        self._loading = threading.Lock()
        self._closed = False

    def of(self, deployment: TaskDeployment) -> PreparedState | None:
        """Return the state of a subtask; None if none is prepared."""
        return self._states.get((deployment.execution.vertex_id, deployment.execution.subtask))

    def add(self, deployment: TaskDeployment, state: PreparedState) -> None:
        """Prepare the state of one more subtask."""
        self._states[deployment.execution.vertex_id, deployment.execution.subtask] = state

    def load(self, deployments: Iterable[TaskDeployment]) -> None:
        """Load the state of a checkpoint for these subtasks, one after the other.

        Raises:
            PenstockError: as `PreparedState.load`; no state is prepared then.
        """
        with self._loading:
            try:
                for deployment in deployments:
                    state = self.of(deployment)
                    if state is not None:
                        state.load(deployment)
            except BaseException:
                self._close()
                raise
        if self._closed:
            self.close()

    def take(self, deployment: TaskDeployment) -> PreparedState | None:
        """Return and remove the state of a subtask, if it was prepared for exactly this deployment."""
        if self._loading.locked():
            return None
        state = self.of(deployment)
        if state is None or not state.fits(deployment):
            return None
        del self._states[deployment.execution.vertex_id, deployment.execution.subtask]
        return state

    def close(self) -> None:
        """Free the state that was not taken; if it is being loaded, after that."""
        self._closed = True
        if self._loading.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._loading.release()

    def _close(self) -> None:
        states, self._states = self._states, {}
        for state in states.values():
            state.close()


def _no_wake() -> None:
    """Do nothing: no subtask runs."""


def _no_work(*_: Any, **__: Any) -> Any:
    msg = "an operator starts work when it is opened, so that its state cannot be prepared"
    raise RuntimeError(msg)
