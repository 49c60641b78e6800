"""How many rows an output has in each span of event time, and where two outputs differ.

An output is a Kafka topic (`kafka://HOST:PORT/TOPIC`, JSON values, read committed) or a folder of part files as the
file sink writes them. Used by `operators.verify`; nothing here knows Airflow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Spans:
    """Which rows count: by the time in `column`, in spans of `span_ms`."""

    column: str
    span_ms: int

    def count(self, values: Iterable[Any]) -> Counter[int]:
        """Return the number of rows by the beginning of their span (ms since the epoch)."""
        return Counter(_millis(value) // self.span_ms * self.span_ms for value in values)

    def compared(self, of: Counter[int], until_ms: int) -> list[int]:
        """Return the spans that have to be the same: behind the first one of `of`, over when event time is `until_ms`.

        The first one may have rows from before, which are not there twice.
        """
        first = min(of, default=until_ms)
        return list(range(first + self.span_ms, until_ms - self.span_ms + 2, self.span_ms))


def differences(live: Counter[int], scratch: Counter[int], spans: Iterable[int]) -> list[str]:
    """Return what is not the same, a text for each span."""
    return [
        f"{datetime.fromtimestamp(start / 1000, UTC).isoformat()}: {live[start]} rows, {scratch[start]} of the scratch"
        for start in spans
        if live[start] != scratch[start]
    ]


def rows_by_span(uri: str, spans: Spans, since_ms: int) -> Counter[int]:
    """Return the rows of an output that were published since then (wall-clock time).

    Raises:
        UsageError: no output of that kind, or a row has no such column. PenstockError: it cannot be read.
    """
    values = _of_topic(uri, spans.column, since_ms) if uri.startswith("kafka://") else _of_folder(uri, spans, since_ms)
    return spans.count(values)


def told(found: list[str]) -> str:
    """Return the first differences in one line."""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return "; ".join(found[:_TOLD]) + more


def _of_folder(path: str, spans: Spans, since_ms: int) -> Iterator[Any]:
    if "://" in path:
        raise UsageError(f"{path!r} is no output that can be read", hint="kafka://HOST:PORT/TOPIC, or a local folder")
    for part in sorted(Path(path).glob("part-*")):
        if part.stat().st_mtime * 1000 < since_ms:
            continue
        if part.suffix == ".jsonl":
            for line in part.read_text(encoding="utf-8").splitlines():
                yield _value(json.loads(line), spans.column, path)
            continue
        with part.open("rb") as file:
            table = pa.ipc.open_file(file).read_all() if part.suffix == ".arrow" else pa.parquet.read_table(file)
        if spans.column not in table.column_names:
            raise _no_column(spans.column, path)
        yield from table[spans.column].to_pylist()


def _of_topic(uri: str, column: str, since_ms: int) -> Iterator[Any]:
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
            yield _value(json.loads(message), column, uri)
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


def _value(row: Any, column: str, uri: str) -> Any:
    if not isinstance(row, dict) or column not in row:
        raise _no_column(column, uri)
    return row[column]


def _no_column(column: str, uri: str) -> UsageError:
    return UsageError(f"rows of {uri} have no column {column!r}", hint="name a column with a time")


def _millis(value: Any) -> int:
    """Return ms since the epoch of a time: such a number, ISO 8601 (UTC if it says nothing), or a datetime."""
    if isinstance(value, int):
        return value
    stamp = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return ((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )
