"""The resources that a job wants of each slot, against those of a slot; pure.

Asked by the JobManager when it gives slots to jobs, and by a TaskManager before it starts a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.config.settings import ResourceProfile

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings

_MB = 1 << 20
#: Every slot is enough.
ANY = ResourceProfile(group="")
#: Memory of a profile: its name in messages, and how a slot gets more of it.
_MEMORY = {
    "task_memory_bytes": ("task memory", "raise taskmanager.memory"),
    "network_memory_bytes": ("network memory", "raise taskmanager.memory or taskmanager.network_memory_min"),
    "managed_memory_bytes": ("managed memory", "raise taskmanager.memory or taskmanager.managed_memory"),
}


def wanted_of(settings: JobSettings) -> ResourceProfile:
    """Return the resources that each slot of a job needs: the largest of its groups, and its managed memory."""
    profiles = settings.slot_resources
    managed = [settings.managed_memory_bytes or 0, *(profile.managed_memory_bytes for profile in profiles)]
    return ResourceProfile(
        group="",
        cpu_cores=max((profile.cpu_cores for profile in profiles), default=0.0),
        task_memory_bytes=max((profile.task_memory_bytes for profile in profiles), default=0),
        network_memory_bytes=max((profile.network_memory_bytes for profile in profiles), default=0),
        managed_memory_bytes=max(managed),
    )


def shortage(wanted: ResourceProfile, slot: ResourceProfile | None) -> str:
    """Return why a slot cannot run a job, with the way out; empty: it can. None: the slot's resources are unknown."""
    if slot is None:
        return ""
    if 0 < slot.cpu_cores < wanted.cpu_cores:
        return (
            f"the job wants {wanted.cpu_cores:g} CPU cores per slot, but a slot has {slot.cpu_cores:.2g}"
            " (lower cpu_cores of its slot_resources, or start the TaskManager with fewer slots)"
        )
    for field, (name, more) in _MEMORY.items():
        needed, there = getattr(wanted, field), getattr(slot, field)
        if needed > there:
            less = "managed_memory" if field == "managed_memory_bytes" else f"slot_resources ({field})"
            return (
                f"the job wants {megabytes(needed)} of {name} per slot, but a slot has {whole(there)}"
                f" (lower the job's {less}, or {more}, or start the TaskManager with fewer slots)"
            )
    return ""


def with_granted(settings: JobSettings, managed_bytes: int) -> JobSettings:
    """Return the settings with the managed memory that a slot granted."""
    return msgspec.structs.replace(settings, managed_memory_bytes=managed_bytes)


def managed_refusal(wanted_bytes: int, slot_bytes: int) -> str:
    """Return why a slot with `slot_bytes` of managed memory cannot run a job, with the way out; empty: it can."""
    wanted = msgspec.structs.replace(ANY, managed_memory_bytes=wanted_bytes)
    return shortage(wanted, msgspec.structs.replace(ANY, managed_memory_bytes=slot_bytes))


def megabytes(size: int) -> str:
    """Return a size that is needed in mebibytes, rounded up."""
    return f"{-(-size // _MB)} MB"


def whole(size: int) -> str:
    """Return a size that there is in mebibytes, rounded down: it differs from a larger one that is needed."""
    return f"{size // _MB} MB"
