"""The source and the sink that a harness puts in the place of a job's own: rows come from the test and stay in lists.

Their specs name a feed of this process by number, because a connector is made from its spec alone. Used by
`testing.in_process`.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.schema import schema_from_text

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.sink import Committer, SinkContext, SinkSpec, SinkWriter
    from penstock.connector.source import SourceContext, SplitEnumerator
    from penstock.core.snapshot import Committable

_numbers = itertools.count(1)
_INPUTS: dict[int, PushedRows] = {}
_OUTPUTS: dict[int, CollectedRows] = {}


@dataclass(slots=True)
class PushedRows:
    """The rows of one source that its reader has not taken yet."""

    schema: pa.Schema
    partitions: int
    number: int = field(default_factory=lambda: next(_numbers))
    waiting: dict[str, deque[pa.RecordBatch]] = field(default_factory=dict)
    ended: bool = False

    def clear(self) -> None:
        """Drop waiting rows, as a crash does; they are pushed again."""
        self.waiting.clear()
        self.ended = False

    def push(self, partition: int, rows: pa.RecordBatch) -> None:
        """Add rows; one call is one batch."""
        self.waiting.setdefault(str(partition), deque()).append(rows)


@dataclass(slots=True)
class CollectedRows:
    """The rows that one sink has received, over restarts."""

    schema: pa.Schema
    number: int = field(default_factory=lambda: next(_numbers))
    batches: list[pa.RecordBatch] = field(default_factory=list)


Feed = PushedRows | CollectedRows


def register(feed: Feed) -> None:
    """Make a feed known to the connectors of this module."""
    if isinstance(feed, PushedRows):
        _INPUTS[feed.number] = feed
    else:
        _OUTPUTS[feed.number] = feed


def unregister(feed: Feed) -> None:
    """Forget a feed; idempotent."""
    if isinstance(feed, PushedRows):
        _INPUTS.pop(feed.number, None)
    else:
        _OUTPUTS.pop(feed.number, None)


def pushed_source(spec: dict[str, Any], partitions: int) -> tuple[dict[str, Any], PushedRows]:
    """Return a source in the place of `spec` (a `SourceSpec` as builtins), and its rows."""
    given = msgspec.convert(spec, SourceSpec)
    rows = PushedRows(schema_from_text(given.schema), partitions)
    config = {"feed": rows.number} | {k: v for k, v in given.config.items() if k == "on_bad_record"}
    new = SourceSpec(factory=f"{__name__}:PushedSourceFactory", config=config, schema=given.schema, bounded=False)
    return msgspec.to_builtins(new), rows


def collected_sink(spec: dict[str, Any]) -> tuple[dict[str, Any], CollectedRows]:
    """Return a sink in the place of `spec` (a `SinkSpec` as builtins), and its rows."""
    rows = CollectedRows(schema_from_text(spec["schema"]))
    place = {"factory": f"{__name__}:CollectedSinkFactory", "config": {"feed": rows.number}, "delivery": "none"}
    return {**place, "schema": spec["schema"]}, rows


class PushedSourceFactory:
    """Makes readers of pushed rows."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator of the partitions."""
        del first_run
        return _Partitions(_INPUTS[spec.config["feed"]].partitions)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> PushedReader:
        """Return a reader for one subtask."""
        del context
        return PushedReader(_INPUTS[spec.config["feed"]])

    def validate(self, spec: SourceSpec) -> None:
        """Accept every spec: it was made here."""


class _Partitions:
    def __init__(self, count: int) -> None:
        self._count = count

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        """Return the partitions that are not known yet."""
        return tuple(SourceSplit(id=str(n)) for n in range(self._count) if str(n) not in known)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class PushedReader:
    """Reads the pushed rows of its partitions, one batch a poll."""

    def __init__(self, rows: PushedRows) -> None:
        """Read `rows`."""
        self._rows = rows
        self._splits: dict[str, SourceSplit] = {}

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start reading these partitions."""
        self._splits |= {split.id: split for split in splits}

    def poll(self, max_rows: int) -> PollResult:
        """Return the next batch of some partition, of any size."""
        del max_rows
        open_splits = tuple(split.id for split in self._splits.values() if not split.finished)
        quiet = tuple(split_id for split_id in open_splits if not self._rows.waiting.get(split_id))
        for split_id in self._splits:
            waiting = self._rows.waiting.get(split_id)
            if waiting:
                batch = SourceBatch(waiting.popleft(), (split_id,))
                return PollResult(batches=(batch,), caught_up=quiet, drained=True)
        if self._rows.ended and open_splits:
            self._splits = {name: msgspec.structs.replace(s, finished=True) for name, s in self._splits.items()}
            return PollResult(finished=open_splits, drained=True)
        return PollResult(caught_up=open_splits, drained=True)

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Ignore alignment: the test decides which rows come when."""

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return the partitions; they have no position, because the harness pushes rows again after a crash."""
        return tuple(self._splits.values())

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Do nothing: no system follows the positions."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class CollectedSinkFactory:
    """Makes writers that keep rows in a list."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> SinkWriter:
        """Return a writer for one subtask."""
        del context
        return _ListWriter(_OUTPUTS[spec.config["feed"]])

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> Committer | None:
        """Return None: there is nothing to commit."""
        del spec, context
        return None

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Accept every spec: it was made here."""


class _ListWriter:
    def __init__(self, rows: CollectedRows) -> None:
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep the rows."""
        self._rows.batches.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Return nothing to commit."""
        del checkpoint_id
        return ()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
