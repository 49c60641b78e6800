"""Source and sink of the simulation: the real connector SPI over `SimKafka`.

The engine loads factories by name (`tests.sim.connectors:...`), so the broker and the committer's crash hook of the
running world are module-level; a world sets them with `use`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from tests.sim.kafka_log import SimKafka

from penstock.connector.sink import CommitOutcome, FileReader, SinkContext, SinkSpec, SinkWriter
from penstock.connector.source import PollResult, SourceBatch, SourceContext, SourceSpec, SourceSplit
from penstock.connector.staging import decode_chunk
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable

ORDER_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("amount", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
MARKER_STRIDE = 65_536
RECORDS_PER_POLL = 7


class _Current:
    """What the running world lends to factories made by name."""

    kafka: SimKafka
    #: Called before each step of a publish with its name; a world may crash the process here by raising.
    step: Callable[[str], None]


def use(kafka: SimKafka, step: Callable[[str], None]) -> None:
    """Make `kafka` the broker of all factories created from now on."""
    _Current.kafka, _Current.step = kafka, step


def source_spec(topic: str, *, ends: list[int] | None) -> SourceSpec:
    """A source of orders; `ends` are the bounded ends of its partitions, None = unbounded."""
    return SourceSpec(
        factory="tests.sim.connectors:SimSourceFactory",
        config={"topic": topic, "ends": ends},
        schema=schema_to_text(ORDER_SCHEMA),
        bounded=ends is not None,
        discovery_interval_ms=None,
    )


class SimSourceFactory:
    """Partitions of one topic."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SimEnumerator:
        return SimEnumerator(_Current.kafka, spec)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> SimReader:
        return SimReader(_Current.kafka, spec)

    def validate(self, spec: SourceSpec) -> None:
        return None


class SimEnumerator:
    """Lists the partitions."""

    def __init__(self, kafka: SimKafka, spec: SourceSpec) -> None:
        self._kafka, self._spec = kafka, spec

    def discover(self, known: frozenset[str]) -> tuple[SourceSplit, ...]:
        topic, ends = self._spec.config["topic"], self._spec.config["ends"]
        splits = [
            SourceSplit(id=f"{topic}-{p}", state={"partition": p, "offset": 0, "end": ends[p] if ends else None})
            for p in range(len(self._kafka.topics[topic]))
        ]
        return tuple(split for split in splits if split.id not in known)

    def close(self) -> None:
        return None


class SimReader:
    """Reads its partitions round robin, a few records a poll."""

    def __init__(self, kafka: SimKafka, spec: SourceSpec) -> None:
        self._kafka, self._topic = kafka, spec.config["topic"]
        self._splits: dict[str, SourceSplit] = {}
        self._turn = 0
        self._paused: set[str] = set()

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        self._paused = (self._paused | set(pause)) - set(resume)

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        self._splits.update({split.id: split for split in splits})

    def poll(self, max_rows: int) -> PollResult:
        active = [split for split in self._splits.values() if not split.finished and split.id not in self._paused]
        if not active or not self._kafka.up:
            return PollResult()
        self._turn += 1
        split = active[self._turn % len(active)]
        partition, offset, end = (split.state[name] for name in ("partition", "offset", "end"))
        limit = RECORDS_PER_POLL if end is None else min(RECORDS_PER_POLL, end - offset)
        values = self._kafka.fetch(self._topic, partition, offset, limit)
        finished = end is not None and offset + len(values) >= end
        state = {**split.state, "offset": offset + len(values)}
        self._splits[split.id] = SourceSplit(id=split.id, state=state, finished=finished)
        batches = (SourceBatch(self.batch(values), (split.id,)),) if values else ()
        return PollResult(
            batches, finished=(split.id,) if finished else (), caught_up=(split.id,) if not values else ()
        )  # fmt: skip

    def batch(self, values: list[Any]) -> pa.RecordBatch:
        """The records of a poll as rows."""
        return _orders(values)

    def snapshot(self) -> tuple[SourceSplit, ...]:
        return tuple(self._splits.values())

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        return None

    def close(self) -> None:
        return None


def _rows(table: pa.Table) -> list[tuple[int, ...]]:
    """Rows as plain numbers, so that the oracle compares values and nothing else."""
    return list(zip(*(column.cast(pa.int64()).to_pylist() for column in table.columns), strict=True))


def _orders(values: list[Any]) -> pa.RecordBatch:
    columns = [pa.array([v[i] for v in values], pa.int64()) for i in range(3)]
    columns[2] = columns[2].cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays(columns, schema=ORDER_SCHEMA)


class SimSinkFactory:
    """The staged exactly-once sink."""

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> SinkWriter | None:
        return None

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> SimCommitter:
        return SimCommitter(_Current.kafka, spec.config["topic"], _Current.step)

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        return None


class SimCommitter:
    """Publishes chunks, each in one transaction with its marker."""

    def __init__(self, kafka: SimKafka, topic: str, step: Callable[[str], None]) -> None:
        self._kafka, self._topic, self._step = kafka, topic, step

    def commit(
        self, permit: CommitPermit, committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        assert all(c.checkpoint_id <= permit.checkpoint_id or c.run_id != permit.run_id for c in committables)
        return self._publish(committables, read)

    def recover(
        self, permit: CommitPermit, prefixes: tuple[str, ...], committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        for prefix in prefixes:
            for name in self._kafka.list_transactional_ids(prefix):
                self._step("fence")
                self._kafka.init_transactions(name)
        return self._publish(committables, read)

    def _publish(self, committables: tuple[Committable, ...], read: FileReader) -> tuple[CommitOutcome, ...]:
        outcomes = []
        for committable in sorted(committables, key=lambda c: (c.run_id, c.subtask, c.checkpoint_id)):
            published = False
            for chunk, file in enumerate(committable.files):
                published |= self._publish_chunk(committable, chunk, read(file))
            resolution = "published" if published else "already-published"
            outcomes.append(CommitOutcome(committable.id, resolution, committable.rows))
        return tuple(outcomes)

    def _publish_chunk(self, committable: Committable, chunk: int, data: bytes) -> bool:
        marker = committable.checkpoint_id * MARKER_STRIDE + chunk + 1
        name = committable.transactional_id
        self._step("before-init")
        epoch = self._kafka.init_transactions(name)
        if (self._kafka.group_offset(committable.marker_group) or 0) >= marker:
            return False
        self._kafka.begin(name, epoch)
        partition = committable.subtask % len(self._kafka.topics[self._topic])
        for row in self.rows(decode_chunk(data)):
            self._kafka.produce(name, epoch, self._topic, partition, row)
        self._step("before-commit")
        self._kafka.send_offset(name, epoch, committable.marker_group, marker)
        self._kafka.commit(name, epoch)
        self._step("after-commit")
        return True

    def rows(self, table: pa.Table) -> list[Any]:
        """The rows of a chunk as records."""
        return _rows(table)

    def close(self) -> None:
        return None
