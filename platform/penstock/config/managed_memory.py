"""The managed memory that a job wants per slot, against what a slot has; pure.

Asked by the JobManager when it gives slots to jobs, and by a TaskManager before it starts a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings

_MB = 1 << 20
WAY_OUT = (
    "lower the job's managed_memory, or raise taskmanager.memory or taskmanager.managed_memory,"
    " or start the TaskManager with fewer slots"
)


def with_granted(settings: JobSettings, managed_bytes: int) -> JobSettings:
    """Return the settings with the managed memory that a slot granted, if the job sets none."""
    if settings.managed_memory_bytes is not None:
        return settings
    return msgspec.structs.replace(settings, managed_memory_bytes=managed_bytes)


def managed_refusal(wanted_bytes: int, slot_bytes: int) -> str:
    """Return why a slot with `slot_bytes` of managed memory cannot run a job, with the way out; empty: it can."""
    if wanted_bytes <= slot_bytes:
        return ""
    return (
        f"the job wants {megabytes(wanted_bytes)} of managed memory per slot, but a slot has {whole(slot_bytes)}"
        f" ({WAY_OUT})"
    )


def megabytes(size: int) -> str:
    """Return a size that is needed in mebibytes, rounded up."""
    return f"{-(-size // _MB)} MB"


def whole(size: int) -> str:
    """Return a size that there is in mebibytes, rounded down: it differs from a larger one that is needed."""
    return f"{size // _MB} MB"
