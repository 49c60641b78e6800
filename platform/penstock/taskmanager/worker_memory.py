"""The memory of a TaskManager's workers: its division among slots, and the limit above which a worker is killed.

Pure; used by `taskmanager.supervisor`.
"""

from __future__ import annotations

from dataclasses import dataclass

_MB = 1 << 20
#: Memory beyond the managed memory that a worker may use without a given total: libraries, user code, batches.
UNMANAGED_ALLOWANCE_BYTES = 2 << 30
#: The least of it that a worker needs.
LEAST_UNMANAGED_BYTES = 256 * _MB


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """The options of a TaskManager about memory, in bytes without mapped files."""

    #: Memory of all workers; None: no total.
    total_bytes: int | None = None
    #: Limit of each worker; None: the share of its slot, else by its managed memory.
    limit_bytes: int | None = None

    def slot_bytes(self, slots: int) -> int:
        """Return the share of one slot; 0: there is no total."""
        return 0 if self.total_bytes is None else self.total_bytes // max(1, slots)

    def limit(self, managed_bytes: int, slots: int) -> int:
        """Return the memory above which a worker with this managed memory is killed."""
        default = 2 * managed_bytes + UNMANAGED_ALLOWANCE_BYTES
        return self.limit_bytes or self.slot_bytes(slots) or default

    def refusal(self, managed_bytes: int, slots: int) -> str:
        """Return why a worker with this managed memory cannot run, and the way out; empty: it can."""
        limit = self.limit(managed_bytes, slots)
        if managed_bytes + LEAST_UNMANAGED_BYTES <= limit:
            return ""
        least = (managed_bytes + LEAST_UNMANAGED_BYTES) // _MB
        return (
            f"the job needs at least {least} MB of memory per slot ({managed_bytes // _MB} MB managed), "
            f"but a slot has {limit // _MB} MB (lower managed_memory, or start the TaskManager with more --memory or "
            "fewer slots)"
        )


UNLIMITED = WorkerMemory()


def excess_text(held: int, limit: int) -> str:
    """Return why a worker was ended that holds so many bytes, and the ways out; the worker's job is not asked."""
    return (
        f"it used {held // _MB} MB of memory, its limit is {limit // _MB} MB, and was ended (a function: let it keep"
        " and yield fewer rows a call, because the rows of a call are held until it returns; large state:"
        " state_backend=rocksdb; else start the TaskManager with more --memory or --worker-memory)"
    )
