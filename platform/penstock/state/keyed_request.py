"""The task's request to open the keyed state of an operator (`state.store`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.remote.remote_log import Gather, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.config.settings import JobSettings
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, KeyedStateSnapshot
    from penstock.state.memory.budget import MemoryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStateRequest:
    """The data that the task passes to open an operator's state."""

    uid: str
    #: Snapshots of this operator, clipped to `hash_range` by the job.
    snapshots: tuple[KeyedStateSnapshot, ...]
    hash_range: HashRange
    settings: JobSettings
    #: Reads a file of a snapshot or a part of it, verified if the reference has a checksum.
    read: Callable[[FileRef], bytes]
    #: The folder of this subtask attempt for spilled and cold rows; created when needed.
    directory: Path
    #: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    budget: MemoryBudget
    #: Runs several reads in parallel.
    gather: Gather = one_by_one
    #: Size limits of tables, logs and files.
    limits: StateLimits = PRODUCTION
