"""Source SPI: a value that travels in the job graph, an enumerator in the JobManager, a reader in each source subtask.

The coordinator assigns splits, never the broker: the enumerator lists them, the job assigns them to subtasks, and
readers return their positions in `snapshot()`. Called by `penstock.operators.sources.source_operator` and
`penstock.jobmanager.deploy.deployment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from penstock.core.structs import prepare

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from penstock.core.clock import Clock


class SourceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the input with its position, which is assigned, snapshotted and restored."""

    #: Stable identity within the source: `topic-partition`, a file path.
    id: str
    #: JSON-able position and bounds; only the connector reads it.
    state: dict[str, Any] = {}
    #: Read to its bounded end; stays in the snapshot so that it is not discovered again.
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
    #: Milliseconds between discoveries of new splits; None = only at the start.
    discovery_interval_ms: int | None = None
    #: Modules the workers' template imports before it forks, so that workers start at once; none may start a thread.
    preload: list[str] = []
    #: Where the rows come from, for messages: `topic orders at broker:9092`.
    place: str = ""
    #: Patterns (`fnmatch`) of the ids of its splits: restored ones that match none are of another place. Empty: any.
    split_ids: list[str] = []
    #: Its splits are listed only at the job's first start; `factory` is then a `ListedOnceFactory`.
    listed_once: bool = False


prepare(SourceSplit, SourceSpec)


#: Work, and a text about it.
RunWaiting = Callable[[Callable[[], Any], str], Any]


def _run(work: Callable[[], Any], _what: str) -> Any:
    return work()


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The arguments of a reader when it is opened."""

    subtask: int
    parallelism: int
    job_name: str
    uid: str
    clock: Clock
    #: Called from any thread when the reader has rows after `poll` returned nothing; extra calls are harmless.
    wake: Any = None
    #: Runs work that may wait for an external system, and returns its result; the text describes the work and its
    #: target, and a long wait is reported with it.
    run_waiting: RunWaiting = _run


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows from one or several splits, in read order within each split."""

    #: Columns may be views (`string_view`, `binary_view`) if the schema says so; views of nulls are all zeros.
    data: pa.RecordBatch
    #: Splits present; row i comes from `split_ids[split_index[i]]`, or all from `split_ids[0]` when `split_index` is
    #: None.
    split_ids: tuple[str, ...]
    split_index: np.ndarray[Any, Any] | None = None
    #: Undecodable rows for the dead letter sink: raw value, topic/partition/offset, error.
    dead_letters: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no row."""

    #: Its place, and why.
    where: str
    #: Its beginning, after a word for it.
    value: str


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of one non-blocking poll."""

    batches: tuple[SourceBatch, ...] = ()
    #: Splits that have reached their bounded end.
    finished: tuple[str, ...] = ()
    #: Splits known to have no rows now (end of partition), for idleness, also while others have rows; never those with
    #: a fetch pending, or whose external system does not answer.
    caught_up: tuple[str, ...] = ()
    #: Counters to publish, e.g. recordsLag, badRecords.
    metrics: dict[str, float] = field(default_factory=dict)
    #: The first bad record that the reader skipped or sent to the dead letters.
    bad_record: BadRecord | None = None
    #: Whether the source is drained, so that new rows come with time: the next poll may wait a moment for more.
    drained: bool = False


class SourceReader(Protocol):
    """Reads assigned splits; used by the subtask's thread, which it never blocks."""

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start reading these splits from their positions."""

    def poll(self, max_rows: int) -> PollResult:
        """Return available rows, at most about `max_rows`; empty if there are none."""

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return all splits, finished ones too, with positions directly after the rows that `poll` returned."""

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Handle that the checkpoint with these positions is durable.

        Publish them for monitoring, best effort and counted.
        """

    def close(self) -> None:
        """Free everything; idempotent."""


@runtime_checkable
class SplitPausingReader(SourceReader, Protocol):
    """A reader that can pause a split; with watermark alignment, any other one waits as a whole."""

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Pause some splits and resume others; rows that were already fetched may still come.

        A paused split is not reported as caught up.
        """


class SplitEnumerator(Protocol):
    """Lists splits; used in the JobManager by a helper thread, so it may block up to its own time-out."""

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return splits not in `known`.

        Those of the first call start at the configured position, later ones at the earliest.

        Raises:
            ConnectorError: the outside system cannot be reached or the topic does not exist.
        """

    def close(self) -> None:
        """Free everything."""


class SourceFactory(Protocol):
    """Creates enumerators and readers; made from `SourceSpec.factory` without arguments."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator; `first_run` is False when the job was restored."""

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> SourceReader:
        """Return a reader for one subtask."""

    def validate(self, spec: SourceSpec) -> None:
        """Check all that is possible before the job starts (reachable, topic exists).

        Raises:
            ConnectorError: with a hint to the solution.
        """


class ListedOnceFactory(SourceFactory, Protocol):
    """A source whose resumed runs read only the splits of the first start."""

    def unread(self, spec: SourceSpec, splits: tuple[SourceSplit, ...]) -> str:
        """Return the input that appeared after `splits` were listed, as text for a message; empty if there is none."""


@dataclass(frozen=True, slots=True)
class HistorySplit:
    """The history of one split up to an end position."""

    #: Each part is read until it is finished, where the next one begins.
    pieces: tuple[SourceSplit, ...]
    #: The split from which the live job continues.
    rest: SourceSplit
    #: The position at which the history begins, as the connector counts; the end position if that is earlier.
    begin: int = 0
    #: The requested begin, also if the end position is before it.
    start: int = 0


class HistoryFactory(SourceFactory, Protocol):
    """A source whose history a backfill can read: each split from the job's start position to an end position."""

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return all splits in the order that decides ties in event time.

        `until` is the end: `{}` (everything available now), `{"timestamp": ms}`, `{"positions": {split id: position}}`
        in the connector's positions, or `{"begin": True}`, which reads nothing after `begin` (or after the job's start
        position). With `piece_rows`, splits may be read in parts of about that many rows. `begin`, `{"timestamp": ms}`
        or `{"positions": ...}`, replaces the job's start position if a table holds the earlier rows.

        Raises:
            UsageError: the source has no such position, or not all rows from `begin` on.
            ConnectorError: the outside system cannot be reached.
        """
