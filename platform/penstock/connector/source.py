"""Source SPI: a value that travels in the job graph, an enumerator in the JobManager, a reader in each source subtask.

Assignment is the coordinator's (never the broker's): the enumerator lists splits, the job hands them to subtasks,
readers read them and say in `snapshot()` how far they are. Called by `penstock.operators.sources.source_operator` and
`penstock.jobmanager.deploy.split_assignment`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from penstock.core.clock import Clock


class SourceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the input with its position: what is assigned, snapshotted and restored."""

    #: Stable identity within the source: `topic-partition`, a file path.
    id: str
    #: JSON-able position and bounds; only the connector reads it.
    state: dict[str, Any] = {}
    #: Read to its bounded end; stays in the snapshot so that it is not discovered anew.
    finished: bool = False
    #: Largest watermark emitted for this split (us), for exact lateness after a restore; None before the first.
    watermark: int | None = None


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A source as a value: `factory` is `module:attribute` of a `SourceFactory`.

    `config` is JSON-able and holds no secret.
    """

    factory: str
    config: dict[str, Any]
    #: Schema of the rows as text (core.schema.schema_to_text), without `__ts`.
    schema: str
    bounded: bool
    #: Milliseconds between look-ups of new splits; None = only at the start.
    discovery_interval_ms: int | None = None
    #: Modules the workers' template imports before it forks, so that workers start at once; none may start a thread.
    preload: list[str] = []


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a reader is given when it is opened."""

    subtask: int
    parallelism: int
    job_name: str
    uid: str
    clock: Clock
    #: Called from any thread when the reader has something after `poll` returned nothing; may be called too often.
    wake: Any = None


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows from one or several splits, in read order within each split."""

    #: Columns may be views (`string_view`, `binary_view`) where the schema says so; those of nulls are all zeros.
    data: pa.RecordBatch
    #: Splits present; row i comes from `split_ids[split_index[i]]`, or all from `split_ids[0]` when `split_index` is
    #: None.
    split_ids: tuple[str, ...]
    split_index: np.ndarray[Any, Any] | None = None
    #: Rows that could not be decoded and are to be routed to the dead letter sink: raw value, topic/partition/offset,
    #: error.
    dead_letters: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one non-blocking poll gave."""

    batches: tuple[SourceBatch, ...] = ()
    #: Splits that have reached their bounded end.
    finished: tuple[str, ...] = ()
    #: Splits known to have nothing right now (end of partition), for idleness; never those with a fetch pending.
    caught_up: tuple[str, ...] = ()
    #: Counters to publish, e.g. recordsLag, badRecords.
    metrics: dict[str, float] = field(default_factory=dict)
    #: Whether this was all there is, so that the next rows come with time: the next poll may wait a moment for company.
    drained: bool = False


class SourceReader(Protocol):
    """Reads assigned splits; lives in the subtask's thread, never blocks it."""

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start reading these splits from their positions."""

    def poll(self, max_rows: int) -> PollResult:
        """Return what is there, at most about `max_rows` rows; empty when nothing is."""

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Give no more rows of some splits, and again those of others; what has been fetched already may still come.

        Only asked of sources with watermark alignment. A split that is paused is not reported as caught up.
        """

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return all splits with positions just behind what `poll` returned (finished ones too)."""

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """The checkpoint that holds these positions is durable.

        Publish them for monitoring, best effort and counted.
        """

    def close(self) -> None:
        """Free everything; idempotent."""


class SplitEnumerator(Protocol):
    """Lists splits; lives in the JobManager, called in a helper thread, so it may block up to its own time-out."""

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return splits not in `known`.

        Those of the very first call start where the user said, later ones at the earliest.

        Raises:
            ConnectorError: the outside system cannot be reached or the topic does not exist.
        """

    def close(self) -> None:
        """Free everything."""


class SourceFactory(Protocol):
    """Made from `SourceSpec.factory` without arguments."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator; `first_run` is False when the job was restored."""

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> SourceReader:
        """Return a reader for one subtask."""

    def validate(self, spec: SourceSpec) -> None:
        """Check what can be checked before the job starts (reachable, topic exists).

        Raises:
            ConnectorError: with the way out.
        """


@dataclass(frozen=True, slots=True)
class HistorySplit:
    """What there is of one split up to a cut."""

    #: Each is read until it is finished, which is where the next one begins.
    pieces: tuple[SourceSplit, ...]
    #: How the live job goes on with it.
    rest: SourceSplit
    #: The position at which the pieces begin, as the connector counts; the cut where that is before it.
    begin: int = 0
    #: The one at which they were to begin, also where the cut is before it.
    start: int = 0


class HistoryFactory(SourceFactory, Protocol):
    """A source whose past a backfill can read: each split from where the job would start up to a cut."""

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return all splits in the order that ties in event time are settled by.

        `until` is `{}` (all there is now), `{"timestamp": ms}`, `{"positions": {split id: position}}`, where a
        position is one that the connector counts by, or `{"begin": True}`: nothing behind `begin`, or without one
        where the job would start. With `piece_rows` splits may be read in pieces of about so many rows. `begin`,
        `{"timestamp": ms}` or `{"positions": ...}`, is where splits begin when a table holds what was before, in place
        of where the job would start.

        Raises:
            UsageError: the source has no such cut, or not all rows from `begin` on.
            ConnectorError: the outside system cannot be reached.
        """
