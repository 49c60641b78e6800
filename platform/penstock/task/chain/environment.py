"""What a worker (or the simulator) gives its subtasks: clock, network, stores, background threads, the way to report.

Everything that touches the outside comes in through here, so that the simulator drives the very same subtasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import open_store
from penstock.core.clock import Clock
from penstock.operators.registry import create_operator
from penstock.rpc.messages import WorkerMessage
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.remote.remote_log import Gather, one_by_one
from penstock.task.chain.background import Background
from penstock.task.chain.slow_calls import SlowCalls

if TYPE_CHECKING:
    from penstock.core.snapshot import FileRef
    from penstock.network.data_plane import DataPlane
    from penstock.operators.operator import Operator
    from penstock.task.chain.uploader import Uploader


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """One per worker."""

    worker_id: str
    clock: Clock
    network: DataPlane
    #: Hands a report to the supervisor; when it returns the report cannot be lost by a crash of this process.
    report: Callable[[WorkerMessage], None]
    #: Encoding and uploading.
    background: Background
    #: Publishing, recovery, savepoints: may block for as long as an outside system is down.
    blocking: Background
    #: Bound of all keyed state of this worker.
    managed_memory_bytes: int = 256 << 20
    #: Folder for spilled state.
    state_dir: Path = field(default_factory=lambda: Path("state"))
    open_store: Callable[[str], ObjectStore] = open_store
    create_operator: Callable[[str], Operator] = create_operator
    #: Reads of remote state, several at a time.
    gather: Gather = one_by_one
    #: Sizes of state and uploads of all subtasks.
    limits: StateLimits = PRODUCTION
    #: Calls to outside systems that are under way.
    slow_calls: SlowCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class JobServices:
    """What all subtasks of one job share in a worker."""

    uploader: Uploader
    #: Verified read of a file of the job.
    read_file: Callable[[FileRef], bytes]
    #: Each stateful subtask's share.
    managed_memory_bytes: int
