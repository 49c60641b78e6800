"""The memory of a TaskManager: its division into parts and slots, what a job is granted, when a worker is killed.

Pure. `taskmanager.main` divides the total of `host_memory`; `taskmanager.supervisor` grants and checks. One process is
one slot, so that a slot's parts bound one worker:

    total = framework + slots x (managed + network + task)
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.config_file import TaskManagerSettings
from penstock.config.settings import DEFAULT_MANAGED_BYTES
from penstock.config.slot_resources import managed_refusal, megabytes, whole
from penstock.core.errors import UsageError

_MB = 1 << 20
#: Framework memory without a setting: one part in this many of the total, within these bounds.
_FRAMEWORK_PART, _LEAST_FRAMEWORK, _MOST_FRAMEWORK = 10, 128 * _MB, 1024 * _MB
#: A worker's interpreter, libraries and batches need this much of its slot.
LEAST_TASK_BYTES = 128 * _MB
#: A worker is expected to take at most this much memory in a millisecond (4 GB/s): clearing pages takes that long.
_GROWTH_BYTES_PER_MS = 4 * _MB
#: The least time between two checks of a worker; a check costs about 0.025 ms.
_LEAST_CHECK_MS = 10.0
#: The least managed memory of a slot when its size is not set.
_LEAST_MANAGED_BYTES = 8 * _MB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDivision:
    """The parts of one TaskManager's memory, in bytes; they add up to `total_bytes`."""

    slots: int
    total_bytes: int
    #: The supervisor, its template, and what the system needs.
    framework_bytes: int
    #: Code and batches of all workers.
    task_bytes: int
    #: Rows in flight to all workers.
    network_bytes: int
    #: State of all workers.
    managed_bytes: int
    #: `taskmanager.worker_memory`; 0: a worker's limit is its slot's part.
    worker_limit_bytes: int = 0

    @property
    def slot_managed_bytes(self) -> int:
        """The managed memory of one slot."""
        return self.managed_bytes // self.slots

    @property
    def limit_bytes(self) -> int:
        """The memory above which a worker is killed."""
        return self.worker_limit_bytes or (self.total_bytes - self.framework_bytes) // self.slots

    def granted(self, wanted_bytes: int | None) -> int:
        """Return the managed memory of a worker whose job wants this much; None: the default."""
        if wanted_bytes is not None:
            return wanted_bytes
        return min(DEFAULT_MANAGED_BYTES, self.slot_managed_bytes, max(_LEAST_MANAGED_BYTES, self._limit_less_task))

    def refusal(self, wanted_bytes: int | None) -> str:
        """Return why a worker cannot have this managed memory, with the way out; empty: it can."""
        granted = self.granted(wanted_bytes)
        if why := managed_refusal(granted, self.slot_managed_bytes):
            return why
        if granted > self._limit_less_task:
            return (
                f"the job wants {megabytes(granted)} of managed memory per slot, but a worker may use"
                f" {whole(self.limit_bytes)}, of which tasks need {megabytes(LEAST_TASK_BYTES)}"
                " (lower the job's managed_memory, or raise taskmanager.worker_memory)"
            )
        return ""

    @staticmethod
    def needed(managed_bytes: int) -> int:
        """Return the memory that a worker with this managed memory needs at least."""
        return managed_bytes + LEAST_TASK_BYTES

    def refusal_beside(self, held_bytes: int, wanted_bytes: int | None) -> str:
        """Return why one more worker cannot run beside those that hold so many bytes; empty: it can."""
        needed = self.needed(self.granted(wanted_bytes))
        free = self.total_bytes - self.framework_bytes - held_bytes
        if needed <= free:
            return ""
        return (
            f"one more worker needs {megabytes(needed)} of memory, but {megabytes(max(0, free))} are free beside the"
            " running ones and for the free slots (for a rescale without a long stop, raise taskmanager.memory)"
        )

    @property
    def _limit_less_task(self) -> int:
        return self.limit_bytes - LEAST_TASK_BYTES

    def excess(self, held_bytes: int) -> str:
        """Return why a worker that holds so many bytes is killed, with the ways out; empty: it is not."""
        limit = self.limit_bytes
        if held_bytes <= limit:
            return ""
        more = (
            "a higher --worker-memory" if self.worker_limit_bytes else "more --memory, fewer slots or --worker-memory"
        )
        return (
            f"it used {held_bytes // _MB} MB of memory, its limit is {limit // _MB} MB, and was killed (a function:"
            " let it keep and yield fewer rows a call, because the rows of a call are held until it returns; large"
            f" state: state_backend=rocksdb; else start the TaskManager with {more})"
        )

    def check_after_ms(self, held_bytes: int) -> float:
        """Return the time in which a worker that holds so many bytes may reach its limit."""
        return max(_LEAST_CHECK_MS, (self.limit_bytes - held_bytes) / _GROWTH_BYTES_PER_MS)


def divided(settings: TaskManagerSettings, slots: int, total_bytes: int, origin: str) -> MemoryDivision:
    """Divide the total of a TaskManager with at least one slot; `origin` says where the total comes from.

    A part without a setting gives way to the least of the others; a part with one keeps its size.

    Raises:
        UsageError: the parts exceed the total.
    """
    framework, network = _framework(settings, total_bytes), _network(settings, total_bytes)
    least_task = slots * LEAST_TASK_BYTES
    if settings.managed_memory_bytes is not None:
        managed = settings.managed_memory_bytes
    else:
        room = total_bytes - framework - network - least_task
        managed = max(slots * _LEAST_MANAGED_BYTES, min(int(total_bytes * settings.managed_memory_fraction), room))
    needed = framework + network + managed + least_task
    if needed > total_bytes:
        raise UsageError(
            f"a TaskManager with {_count(slots)} needs {megabytes(needed)} of memory: framework"
            f" {megabytes(framework)}, network {megabytes(network)}, managed {megabytes(managed)}, tasks"
            f" {megabytes(LEAST_TASK_BYTES)} per slot; but it has {whole(total_bytes)} ({origin})",
            hint="raise taskmanager.memory, or lower the slots, taskmanager.managed_memory or another part",
        )
    return MemoryDivision(
        slots=slots,
        total_bytes=total_bytes,
        framework_bytes=framework,
        task_bytes=total_bytes - framework - network - managed,
        network_bytes=network,
        managed_bytes=managed,
        worker_limit_bytes=settings.worker_memory_bytes or 0,
    )


def _framework(settings: TaskManagerSettings, total_bytes: int) -> int:
    if settings.framework_memory_bytes is not None:
        return settings.framework_memory_bytes
    return min(max(total_bytes // _FRAMEWORK_PART, _LEAST_FRAMEWORK), _MOST_FRAMEWORK)


def _network(settings: TaskManagerSettings, total_bytes: int) -> int:
    wanted = max(int(total_bytes * settings.network_memory_fraction), settings.network_memory_min_bytes)
    most = settings.network_memory_max_bytes
    return wanted if most is None else min(wanted, most)


def _count(slots: int) -> str:
    return "1 slot" if slots == 1 else f"{slots} slots"
