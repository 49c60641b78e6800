"""`ps.snapshots.write`: a savepoint made of tables, which a job starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.checkpoint.manifest import Manifest
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError
from penstock.core.keygroup import hash_range_of
from penstock.core.rand import SystemRand
from penstock.core.snapshot import KeyedStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobGraph, JobVertex
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_target
from penstock.snapshots.rewrite.given_rows import state_rows
from penstock.state.log.segment_columns import KEY_HASH
from penstock.task.checkpoint.savepoint_copy import SavepointWriter

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange

#: The job name of a snapshot that no job took; no job's folder has the name of a run.
_ORIGIN = "bootstrap"


class Job(Protocol):
    """Builds a job: a `ps.Environment`."""

    def job_graph(self) -> JobGraph:
        """Return the job as it is submitted."""


def write(
    uri: str, states: Mapping[tuple[str, str], pl.DataFrame | pl.LazyFrame | pa.Table], *, job: Job | JobGraph
) -> str:
    """Write a savepoint whose states are tables, and return its URI; `penstock run --from` starts the job from it.

    `states` maps (uid, state) to its rows, with the columns of `ps.snapshots.read`: key columns, `__namespace` (of
    windows and timers: the pane's start or the timer's time in microseconds; otherwise optional), value columns. For a
    running aggregate or a window these are the accumulators (`__rows`, `sum_amount`...), for a process function's value
    its fields. `job` (a `ps.Environment` with the job built on it) defines the states: columns are cast to its types if
    nothing is lost. Every other state begins empty, and sources begin at their start.

    Raises:
        UsageError: `uri` is not empty; the job has no such state; a column is missing, unknown or of another type; or
        two rows have one key.
        StorageError: `uri` cannot be written.
    """
    graph = with_states(job if isinstance(job, JobGraph) else job.job_graph())
    tables = {}
    for (uid, state), rows in states.items():
        wanted = state_rows(graph, uid, state, "snapshots.write")
        tables[uid, state] = wanted.text, wanted.prepared(_table(rows))
    target = open_target(uri)
    writer = SavepointWriter(target, target)
    subtasks = []
    for vertex in graph.vertices:
        own = [(uid, state) for uid, state in tables if any(o.uid == uid for o in vertex.operators)]
        for subtask in range(vertex.parallelism if own else 0):
            part = _Part(vertex, subtask, hash_range_of(subtask, vertex.parallelism, graph.settings.key_groups))
            keyed = tuple(_cut(writer, part, place, tables[place]) for place in own)
            subtasks.append(SubtaskSnapshot(vertex_id=vertex.id, subtask=subtask, keyed=keyed))
    writer.manifest(bootstrap_manifest(graph, target.uri, tuple(subtasks)))
    return target.uri


def bootstrap_manifest(graph: JobGraph, uri: str, subtasks: tuple[SubtaskSnapshot, ...] = ()) -> Manifest:
    """Return the manifest of a savepoint at `uri` that no job took: state that is not in `subtasks` begins empty."""
    run = f"{_ORIGIN}-{SystemRand().token(12)}"
    return Manifest(
        kind="savepoint",
        sequence=0,
        job_id="0" * 32,
        job_name=run,
        run_id=run,
        generation=0,
        nonce=run,
        created_ms=SystemClock().now_ms(),
        checkpoint_id=0,
        graph_fingerprint=graph.fingerprint,
        key_groups=graph.settings.key_groups,
        operators={o.uid: (v.parallelism, v.id) for v in graph.vertices for o in v.operators if o.stateful},
        subtasks=subtasks,
        barrier="savepoint",
        note=uri,
        origin=uri,
    )


class _Part:
    """One subtask of a vertex and its hash range."""

    def __init__(self, vertex: JobVertex, subtask: int, hashes: HashRange) -> None:
        self.vertex, self.subtask, self.hashes = vertex, subtask, hashes


def _cut(
    writer: SavepointWriter, part: _Part, place: tuple[str, str], prepared: tuple[str, pa.Table]
) -> KeyedStateSnapshot:
    """Write the rows of one state for one subtask."""
    schema, table = prepared
    hashes = table.column(KEY_HASH).to_numpy()
    first = int(np.searchsorted(hashes, part.hashes.low, side="left"))
    stop = int(np.searchsorted(hashes, part.hashes.high, side="right"))
    state = KeyedStateSnapshot(
        uid=place[0], state=place[1], schema=schema, hash_low=part.hashes.low, hash_high=part.hashes.high
    )
    return writer.rows(state, iter([table.slice(first, stop - first)] if stop > first else []))


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    if isinstance(rows, pa.Table):
        return rows
    msg = f"snapshots.write: {type(rows).__name__} is not a table"
    raise UsageError(msg, hint="pass a Polars frame or a pyarrow.Table")
