"""What the task gives when it opens the keyed state of an operator (`state.store`)."""

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
    """What the task knows when it opens an operator's state."""

    uid: str
    #: Snapshots of this operator, clipped to `hash_range` by the job.
    snapshots: tuple[KeyedStateSnapshot, ...]
    hash_range: HashRange
    settings: JobSettings
    #: Reads a file of a snapshot or a part of it, verified where the reference has a checksum.
    read: Callable[[FileRef], bytes]
    #: A folder of this subtask attempt's own, for spilled and cold rows; made when needed.
    directory: Path
    #: `<run>/<vertex>/<subtask>/<attempt>`.
    writer: str
    budget: MemoryBudget
    #: Does several reads at a time.
    gather: Gather = one_by_one
    #: Sizes of tables, logs and files.
    limits: StateLimits = PRODUCTION
