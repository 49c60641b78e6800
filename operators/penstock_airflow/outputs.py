"""The content of an output by spans of event time, and the differences between two outputs.

Rows are counted and, unless counts are enough, compared by a sum of their hashes, which does not depend on their order.
Rows before the first span are compared one by one. An output is a Kafka topic (`kafka://HOST:PORT/TOPIC`, JSON values,
read committed) or a folder of part files as the file sink writes them. Used by `operators.verify`; nothing here depends
on Airflow.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from penstock.core.errors import PenstockError, UsageError

_SECONDS = 30.0
_BATCH = 10_000
_TOLD = 3
_MASK = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


@dataclass(slots=True)
class OutputContent:
    """The content of an output; spans by their start (ms since the epoch)."""

    #: Hashes of earlier rows to search for; None: all.
    wanted: Container[int] | None = None
    rows: Counter[int] = field(default_factory=Counter)
    #: Sums of the hashes of a span's rows, modulo 2**64.
    sums: Counter[int] = field(default_factory=Counter)
    #: Hashes of the rows before the first span.
    before: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Spans:
    """The rows that count: by the time in `column`, in spans of `span_ms`.

    Outputs have to be equal from `begin_ms` on.
    """

    column: str
    span_ms: int
    begin_ms: int

    def content_of(self, rows: Iterable[Row], wanted: Container[int] | None = None) -> OutputContent:
        """Return the content of the rows that have the column."""
        held = OutputContent(wanted)
        for row in rows:
            at, hashed = _millis(row[self.column]), _hash(row)
            if at < self.begin_ms:
                if wanted is None or hashed in wanted:
                    held.before[hashed] += 1
                continue
            start = self._start(at)
            held.rows[start] += 1
            held.sums[start] = held.sums[start] + hashed & _MASK
        return held

    def compared(self, until_ms: int) -> list[int]:
        """Return the spans that have to be equal: those that have ended at event time `until_ms`."""
        return list(range(self._start(self.begin_ms), until_ms - self.span_ms + 2, self.span_ms))

    def _start(self, at: int) -> int:
        return at // self.span_ms * self.span_ms


def spans_after(column: str, watermark: datetime, span_ms: int, window_ms: int = 0) -> Spans:
    """Return the spans without output before event time had passed `watermark`, that of a savepoint.

    With the length of windows that start at the time in `column`, they begin with the windows open then, else with the
    first whole span.
    """
    passed = (watermark - _EPOCH + timedelta(microseconds=1)) // timedelta(milliseconds=1) + 1
    begin = passed - window_ms if window_ms else -(-passed // span_ms) * span_ms
    return Spans(column, span_ms, begin)


def differences(
    live: OutputContent, scratch: OutputContent, spans: Iterable[int], *, counts_only: bool = False
) -> list[str]:
    """Return the differences, a text for each span.

    Before the first span, the live output also has rows from before the savepoint; it has to contain those of
    `scratch`, for whose hashes `live` was searched (`wanted`).
    """
    found = []
    missing = sum((scratch.before - live.before).values())
    if missing and not counts_only:
        found.append(f"before all spans: {missing} rows of the scratch job are not among the job's")
    for start in spans:
        if live.rows[start] != scratch.rows[start]:
            found.append(f"{_span_text(start)}: {live.rows[start]} rows, {scratch.rows[start]} of the scratch")
        elif live.sums[start] != scratch.sums[start] and not counts_only:
            found.append(f"{_span_text(start)}: {live.rows[start]} rows in both, but with different content")
    return found


def read_output(uri: str, spans: Spans, since_ms: int, wanted: Container[int] | None = None) -> OutputContent:
    """Return the content of an output that was published since then (wall-clock time); `wanted` as of `OutputContent`.

    Raises:
        UsageError: no output of that kind, or a row has no such column.
        PenstockError: it cannot be read.
    """
    rows = _of_topic(uri, spans.column, since_ms) if uri.startswith("kafka://") else _of_folder(uri, spans, since_ms)
    return spans.content_of(rows, wanted)


def first_differences(found: list[str]) -> str:
    """Return the first differences in one line."""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return "; ".join(found[:_TOLD]) + more


def _of_folder(path: str, spans: Spans, since_ms: int) -> Iterator[Row]:
    if "://" in path:
        raise UsageError(
            f"{path!r} is not an output that can be read", hint="kafka://HOST:PORT/TOPIC, or a local folder"
        )
    for part in sorted(Path(path).glob("part-*")):
        if part.stat().st_mtime * 1000 < since_ms:
            continue
        if part.suffix == ".jsonl":
            for line in part.read_text(encoding="utf-8").splitlines():
                yield _checked(json.loads(line), spans.column, path)
            continue
        with part.open("rb") as file:
            table = pa.ipc.open_file(file).read_all() if part.suffix == ".arrow" else pa.parquet.read_table(file)
        if spans.column not in table.column_names:
            raise _no_column(spans.column, path)
        for batch in table.to_batches(max_chunksize=_BATCH):
            yield from batch.to_pylist()


def _of_topic(uri: str, column: str, since_ms: int) -> Iterator[Row]:
    from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

    place = urlsplit(uri)
    topic = place.path.strip("/")
    consumer = Consumer(
        {
            "bootstrap.servers": place.netloc,
            "group.id": f"penstock-verify-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        from_then = consumer.offsets_for_times([TopicPartition(topic, p, since_ms) for p in partitions], _SECONDS)
        begins = [TopicPartition(topic, p.partition, p.offset) for p in from_then if p.offset != OFFSET_END]
        consumer.assign(begins)
        for message in _to_the_end(consumer, len(begins), uri):
            yield _checked(json.loads(message), column, uri)
    except KafkaException as error:
        raise PenstockError(f"{uri} cannot be read: {error}") from error
    finally:
        consumer.close()


def _to_the_end(consumer: Any, partitions: int, uri: str) -> Iterator[bytes]:
    ended: set[int] = set()
    silent = 0.0
    while len(ended) < partitions:
        messages = consumer.consume(_BATCH, timeout=1.0)
        silent = 0.0 if messages else silent + 1.0
        if silent > _SECONDS:
            raise PenstockError(f"{uri} could not be read to its end", hint="see whether its brokers answer")
        for message in messages:
            if message.error() is None:
                yield message.value()
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
            else:
                raise PenstockError(f"{uri} cannot be read: {message.error()}")


def _checked(row: Any, column: str, uri: str) -> Row:
    if not isinstance(row, dict) or column not in row:
        raise _no_column(column, uri)
    return row


def _hash(row: Row) -> int:
    text = json.dumps(row, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _span_text(start_ms: int) -> str:
    return datetime.fromtimestamp(start_ms / 1000, UTC).isoformat()


def _no_column(column: str, uri: str) -> UsageError:
    return UsageError(f"rows of {uri} have no column {column!r}", hint="name a column with a time")


def _millis(value: Any) -> int:
    """Return a time in ms since the epoch: from such a number, ISO 8601 (UTC by default), or a datetime."""
    if isinstance(value, int):
        return value
    stamp = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return ((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
