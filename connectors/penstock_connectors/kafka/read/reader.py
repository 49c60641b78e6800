"""The source reader of one subtask: positions, bounded ends and idleness over a fetcher and a decoder.

It uses the compiled fetcher (`fetch_fast`) or, where that cannot work, `fetch_plain`; undecodable messages follow
the user's policy. Runs in the subtask's thread and never blocks it. Positions are exact, also across the gaps that
transactions leave.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.source import BadRecord, PollResult, SourceBatch, SourceContext, SourceSpec, SourceSplit
from penstock.connector.staging import dead_letters
from penstock.core.errors import BadRecordError, ConnectorError
from penstock.core.schema import schema_from_text
from penstock_connectors.formats.arrow_stream import decode_arrow
from penstock_connectors.formats.decoded import Decoded, excerpt
from penstock_connectors.formats.json_decode import JsonDecoder
from penstock_connectors.kafka.client.properties import PartitionId, resolve
from penstock_connectors.kafka.read.fetch import (
    Fetched,
    Fetcher,
    FetchProblem,
    FetchResult,
    FetchSettings,
    client_properties,
)
from penstock_connectors.kafka.read.outage import Outage


def open_fetcher(settings: FetchSettings) -> Fetcher:
    """Return the compiled fetcher, or the plain one where that cannot work (or `PENSTOCK_KAFKA_PLAIN=1` says so)."""
    if os.environ.get("PENSTOCK_KAFKA_PLAIN") != "1":
        try:
            from penstock_connectors.kafka.read.fetch_fast import FastFetcher

            return FastFetcher(settings)
        except ImportError as error:
            logging.getLogger(__name__).warning(
                "messages are read through Python objects, about 3 times slower: %s", error
            )
    from penstock_connectors.kafka.read.fetch_plain import PlainFetcher

    return PlainFetcher(settings)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one fetch, the message index of each, and the undecodable messages."""

    data: pa.RecordBatch
    slot: np.ndarray[Any, Any]
    bad: int = 0
    dead_letters: pa.RecordBatch | None = None
    #: The first undecodable message.
    bad_record: BadRecord | None = None


class RecordDecoder:
    """Applies one source's format and policy."""

    def __init__(self, schema: pa.Schema, config: dict[str, Any]) -> None:
        """Decode by `config` of the source."""
        self._schema = schema
        self._format = config["format"]
        self._policy = config["on_bad_record"]
        self._json = JsonDecoder(schema, config["timestamp_unit"]) if self._format == "json" else None

    def decode(self, found: Fetched) -> DecodedRows:
        """Return the rows.

        Raises:
            BadRecordError: a message is not a row and the policy is to fail.
        """
        if self._format == "raw":
            return DecodedRows(_raw(found, self._schema), found.slot)
        decoded = self._json.decode(found.value) if self._json is not None else decode_arrow(found.value, self._schema)
        slot = found.slot if decoded.payload_index is None else found.slot[decoded.payload_index]
        if not decoded.bad:
            return DecodedRows(decoded.rows, slot)
        if self._policy == "fail":
            raise self._failure(found, decoded)
        letters = _dead_letters(found, decoded) if self._policy == "dead-letter" else None
        return DecodedRows(decoded.rows, slot, len(decoded.bad), letters, _first_bad(found, decoded))

    def _failure(self, found: Fetched, decoded: Decoded) -> BadRecordError:
        more = f" ({len(decoded.bad) - 1} more in the same fetch)" if len(decoded.bad) > 1 else ""
        bad = _first_bad(found, decoded)
        return BadRecordError(
            f"{bad.where}{more}",
            hint="set on_bad_record='skip' or 'dead-letter' on the KafkaSource, or correct the schema",
            values=bad.value,
            where=bad.where,
            records=len(decoded.bad),
        )


def _first_bad(found: Fetched, decoded: Decoded) -> BadRecord:
    first = decoded.bad[0]
    topic, partition = found.places[int(found.slot[first.index])]
    place = f"topic {topic} partition {partition} offset {int(found.offset[first.index])}"
    return BadRecord(f"{place}: {first.reason}", f"value: {excerpt(found.value[first.index].as_py())}")


def _raw(found: Fetched, schema: pa.Schema) -> pa.RecordBatch:
    topics = pa.array([topic for topic, _ in found.places], pa.string())
    partitions = np.array([partition for _, partition in found.places], np.int32)
    times = np.asarray(found.timestamp) * 1000
    columns = {
        "key": found.key,
        "value": found.value,
        "timestamp": pa.array(times, mask=times < 0).cast(pa.timestamp("us", tz="UTC")),
        "topic": topics.take(pa.array(found.slot)),
        "partition": pa.array(partitions[found.slot]),
        "offset": pa.array(found.offset),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _dead_letters(found: Fetched, decoded: Decoded) -> pa.RecordBatch:
    index = [bad.index for bad in decoded.bad]
    places = [found.places[slot] for slot in found.slot[index].tolist()]
    envelopes = found.envelopes(index) if found.envelopes is not None else []
    times = [None if e.timestamp_ms is None else e.timestamp_ms * 1000 for e in envelopes]
    headers = [[{"name": name, "value": value} for name, value in e.headers] for e in envelopes]
    more: dict[str, list[Any]] = {"key": [e.key for e in envelopes], "timestamp": times, "headers": headers}
    return dead_letters(
        value=found.value.take(pa.array(index)).cast(pa.binary()),
        topic=[topic for topic, _ in places],
        partition=[partition for _, partition in places],
        offset=found.offset[index].tolist(),
        error=[bad.reason for bad in decoded.bad],
        **(more if envelopes else {}),
    )


#: Lag is summed up at most this often, and this often until it is known.
LAG_INTERVAL_MS = 1_000
LAG_UNKNOWN_INTERVAL_MS = 100
#: If all brokers are unreachable for this long without a message, the job fails and its restart strategy decides.
OUTAGE_LIMIT_MS = 300_000
_TRANSIENT = frozenset({-187, -195, -193, -185, -167, -181, 5, 6, 7, 13, 72, 74, 75, 76})
_OFFSET_GONE = frozenset({1, -140})
_TOPIC_GONE = frozenset({3, -188, -190, 100})


class _Position(msgspec.Struct):
    """One split being read."""

    split: SourceSplit
    place: PartitionId
    offset: int
    stop: int | None
    finished: bool = False
    at_end: bool = False


def _statistics_name(place: PartitionId) -> str:
    """Return a partition's name in the client's statistics."""
    return f"{place[0]}-{place[1]}"


class KafkaReader:
    """A `SourceReader`."""

    def __init__(self, spec: SourceSpec, context: SourceContext) -> None:
        """Connect; nothing is fetched before `add_splits`."""
        self._config, self._context = spec.config, context
        self._decoder = RecordDecoder(schema_from_text(spec.schema), spec.config)
        self._resolved = resolve(spec.config["bootstrap"], spec.config["properties"])
        self._fetcher: Fetcher | None = None
        self._splits: dict[str, _Position] = {}
        self._by_place: dict[PartitionId, _Position] = {}
        self._newly_finished: list[str] = []
        self._bad_records = 0
        self._bad_record: BadRecord | None = None
        self._outage = Outage(float(client_properties(self._resolved)["fetch.wait.max.ms"]))
        self._lag_at: float | None = None
        self._lag: int | None = 0
        self._letters = self._dead_letter_writer()

    def add_splits(self, splits: tuple[SourceSplit, ...]) -> None:
        """Start reading these partitions from their positions."""
        starts = {}
        for split in splits:
            state = split.state
            place = (str(state["topic"]), int(state["partition"]))
            position = _Position(split, place, int(state["offset"]), state["stop"], split.finished)
            if position.stop is not None and position.offset >= position.stop:
                position.finished = True
            self._splits[split.id] = position
            self._by_place[place] = position
            if position.finished:
                self._newly_finished.append(split.id)
            else:
                starts[place] = position.offset
        if starts:
            self._open().add(starts)

    def poll(self, max_rows: int) -> PollResult:
        """Return available rows.

        Raises:
            BadRecordError: a message is not a row and the policy is to fail.
            ConnectorError: positions or a topic no longer exist, or the brokers are unreachable for too long.
        """
        finished, self._newly_finished = self._newly_finished, []
        if self._fetcher is None:
            return PollResult(finished=tuple(finished), metrics=self._metrics())
        result = self._fetcher.fetch(max_rows)
        self._check_brokers(result)
        batches = self._batches(result.messages, result.positions)
        for place, offset in result.positions.items():
            self._advance(place, offset, at_end=False)
        for place, offset in result.ends.items():
            self._advance(place, offset, at_end=True)
        finished += self._finish()
        at_end = self._at_end()
        return PollResult(
            batches=batches,
            finished=tuple(finished),
            caught_up=at_end,
            drained=result.drained,
            metrics=self._metrics(),
            bad_record=self._bad_record,
        )

    def pause_or_resume_splits(self, pause: tuple[str, ...], resume: tuple[str, ...]) -> None:
        """Pause and resume partitions; positions stay exact, also for messages that still arrive."""
        if self._fetcher is None:
            return
        for split_ids, tell in ((pause, self._fetcher.pause), (resume, self._fetcher.resume)):
            places = [self._splits[split_id].place for split_id in split_ids]
            if places:
                tell(places)

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return all splits with their positions; dead letters are acknowledged when this returns."""
        if self._letters is not None:
            self._letters.flush()
        out = []
        for p in self._splits.values():
            offset = p.offset if p.stop is None else min(p.offset, p.stop)
            state = {"topic": p.place[0], "partition": p.place[1], "offset": offset, "stop": p.stop}
            out.append(msgspec.structs.replace(p.split, state=state, finished=p.finished))
        return tuple(out)

    def notify_complete(self, splits: tuple[SourceSplit, ...]) -> None:
        """Commit the positions of a durable checkpoint to the group, if the user named one."""
        if self._config["group"] is None or self._fetcher is None:
            return
        mine = [split for split in splits if split.id in self._splits]
        if mine:
            self._fetcher.commit({self._splits[split.id].place: int(split.state["offset"]) for split in mine})

    def close(self) -> None:
        """Free everything."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        if self._letters is not None:
            self._letters.close()
            self._letters = None

    def _open(self) -> Fetcher:
        if self._fetcher is None:
            wake: Callable[[], None] = self._context.wake or (lambda: None)
            raw = self._config["format"] == "raw"
            group = self._config["group"] or f"penstock.{self._context.job_name}.{self._context.uid}"
            properties = {**self._resolved, "group.id": group}
            letters = self._config["on_bad_record"] == "dead-letter"
            settings = FetchSettings(properties, wake, keys=raw, timestamps=raw, envelopes=letters)
            self._fetcher = open_fetcher(settings)
        return self._fetcher

    def _dead_letter_writer(self) -> Any:
        if self._config["dead_letter_topic"] is None:
            return None
        from penstock_connectors.kafka.write.producer_plain import DeadLetterWriter

        context = self._context
        where = f"source {context.uid!r} ({context.subtask})"
        return DeadLetterWriter(self._resolved, self._config["dead_letter_topic"], where, context.run_waiting)

    def _batches(self, found: Fetched | None, positions: dict[PartitionId, int]) -> tuple[SourceBatch, ...]:
        if found is None:
            return ()
        if not all(self._inside(place, offset) for place, offset in positions.items()):
            found = self._wanted(found)
        if len(found.slot) == 0:
            return ()
        rows = self._decoder.decode(found)
        self._bad_records += rows.bad
        self._bad_record = self._bad_record or rows.bad_record
        if rows.dead_letters is not None and self._letters is not None:
            self._letters.write(rows.dead_letters)
        if rows.data.num_rows == 0 and rows.dead_letters is None:
            return ()
        return (self._source_batch(found, rows),)

    def _inside(self, place: PartitionId, offset: int) -> bool:
        """Return whether all messages before `offset` are wanted, so that the rows of a batch need no check."""
        position = self._by_place.get(place)
        if position is None or position.finished:
            return False
        return position.stop is None or offset <= position.stop

    def _wanted(self, found: Fetched) -> Fetched:
        """Drop messages at or after a split's end, and leftovers of splits that are no longer read."""
        limits = np.full(len(found.places), np.iinfo(np.int64).max)
        for slot, place in enumerate(found.places):
            position = self._by_place.get(place)
            if position is None or position.finished:
                limits[slot] = 0
            elif position.stop is not None:
                limits[slot] = position.stop
        keep = found.offset < limits[found.slot]
        return found if keep.all() else found.where(keep)

    def _source_batch(self, found: Fetched, rows: DecodedRows) -> SourceBatch:
        counts = np.bincount(rows.slot, minlength=len(found.places))
        present = np.flatnonzero(counts)
        ids = tuple(self._by_place[found.places[slot]].split.id for slot in present.tolist())
        if len(ids) == 0:  # dead letters only: use the splits of the messages
            ids = tuple(self._by_place[found.places[slot]].split.id for slot in np.unique(found.slot).tolist())
        index = (np.cumsum(counts > 0) - 1)[rows.slot] if len(present) > 1 else None
        return SourceBatch(rows.data, ids, index, rows.dead_letters)

    def _advance(self, place: PartitionId, offset: int, *, at_end: bool) -> None:
        position = self._by_place.get(place)
        if position is None or position.finished:
            return
        position.offset = max(position.offset, offset)
        position.at_end = at_end

    def _at_end(self) -> tuple[str, ...]:
        """Return the splits that are known to be read to their end; not those whose broker does not answer."""
        unanswered = self._outage.unanswered
        at_end = [(name, p.place) for name, p in self._splits.items() if p.at_end and not p.finished]
        # asked at each poll: names of the statistics are made during an outage only
        return tuple(name for name, place in at_end if not unanswered or _statistics_name(place) not in unanswered)

    def _finish(self) -> list[str]:
        done = [p for p in self._splits.values() if not p.finished and p.stop is not None and p.offset >= p.stop]
        for position in done:
            position.finished = True
        if done and self._fetcher is not None:
            self._fetcher.remove([p.place for p in done])
        return [p.split.id for p in done]

    def _check_brokers(self, result: FetchResult) -> None:
        """Fail on lasting problems; measure how long brokers are unreachable."""
        now = self._context.clock.monotonic_ms()
        if alive := bool(result.positions or result.ends):
            self._outage.received()
        if result.statistics:
            read = {_statistics_name(p.place) for p in self._splits.values() if not p.finished}
            self._outage.measured(result.statistics, read, now)
        self._check_problems(result.problems)
        if result.problems and not alive:
            self._outage.failed(now)
        since = self._outage.since_ms
        if since is not None and now - since > OUTAGE_LIMIT_MS:
            if self._brokers_answer():
                self._outage.over()
                return
            raise ConnectorError(
                f"Kafka at {self._config['bootstrap']} has not answered for {OUTAGE_LIMIT_MS // 1000} s",
                hint="check that the broker runs",
            )

    def _check_problems(self, problems: list[FetchProblem]) -> None:
        for problem in problems:
            where = f"topic {problem.place[0]} partition {problem.place[1]}: " if problem.place else ""
            if problem.place is not None and problem.code in _OFFSET_GONE:
                raise ConnectorError(
                    f"{where}the position to read from no longer exists: {problem.text}",
                    hint="records were deleted before they were read; raise the topic's retention, or start elsewhere",
                )
            if problem.place is not None and problem.code in _TOPIC_GONE:
                raise ConnectorError(
                    f"{where}{problem.text}", hint="check whether the topic was deleted while the job runs"
                )
            if problem.code not in _TRANSIENT:
                raise ConnectorError(f"Kafka at {self._config['bootstrap']}: {where}{problem.text}")

    def _brokers_answer(self) -> bool:
        """Return whether the brokers answer: for a quiet topic the client does not report that they are back."""
        from penstock_connectors.kafka.client.metadata import ClusterMetadata

        try:
            ClusterMetadata(self._resolved).partitions(self._config["topics"])
        except ConnectorError:
            return False
        return True

    def _metrics(self) -> dict[str, float]:
        now = self._context.clock.monotonic_ms()
        interval_ms = LAG_UNKNOWN_INTERVAL_MS if self._lag is None else LAG_INTERVAL_MS
        if self._fetcher is not None and (self._lag_at is None or now - self._lag_at >= interval_ms):
            self._lag_at = now
            self._lag = self._fetcher.lag({p.place: p.offset for p in self._splits.values() if not p.finished})
        failures = self._fetcher.commit_failures if self._fetcher is not None else 0
        since = self._outage.since_ms
        away_ms = 0.0 if since is None else now - since
        return {
            **({} if self._lag is None else {"recordsLag": float(self._lag)}),
            # a lag that was known before stays beside it
            "recordsLagUnknown": float(self._lag is None),
            "badRecords": float(self._bad_records),
            "commitsFailed": float(failures),
            "sourceUnreachableMs": away_ms,
            "sourceUnreachableSince": self._context.clock.now_ms() - away_ms if away_ms else 0.0,
        }
