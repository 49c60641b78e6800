"""Messages to rows: the format's decoder, and the policy for undecodable messages.

Called by `reader` with the columns of one fetch; uses formats and the bad-record policy, no client library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.connector.staging import dead_letters
from penstock.core.errors import BadRecordError
from penstock_connectors.formats.arrow_stream import decode_arrow
from penstock_connectors.formats.decoded import Decoded
from penstock_connectors.formats.json_decode import JsonDecoder

if TYPE_CHECKING:
    from penstock_connectors.kafka.read.fetch import Fetched


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one fetch, the message index of each, and the undecodable messages."""

    data: pa.RecordBatch
    slot: np.ndarray[Any, Any]
    bad: int = 0
    dead_letters: pa.RecordBatch | None = None


class RecordDecoder:
    """Applies one source's format and policy."""

    def __init__(self, schema: pa.Schema, config: dict[str, Any]) -> None:
        """Decode by `config` of the source."""
        self._schema = schema
        self._format = config["format"]
        self._policy = config["on_bad_record"]
        self._json = JsonDecoder(schema, config["timestamp_unit"]) if self._format == "json" else None

    def decode(self, found: Fetched) -> Rows:
        """Return the rows.

        Raises:
            BadRecordError: a message is not a row and the policy is to fail.
        """
        if self._format == "raw":
            return Rows(_raw(found, self._schema), found.slot)
        decoded = self._json.decode(found.value) if self._json is not None else decode_arrow(found.value, self._schema)
        slot = found.slot if decoded.payload_index is None else found.slot[decoded.payload_index]
        if not decoded.bad:
            return Rows(decoded.rows, slot)
        if self._policy == "fail":
            raise self._failure(found, decoded)
        letters = _dead_letters(found, decoded) if self._policy == "dead-letter" else None
        return Rows(decoded.rows, slot, len(decoded.bad), letters)

    def _failure(self, found: Fetched, decoded: Decoded) -> BadRecordError:
        first = decoded.bad[0]
        topic, partition = found.places[int(found.slot[first.index])]
        payload = found.value[first.index].as_py()
        shown = "null" if payload is None else repr(payload[:80]) + ("..." if len(payload) > 80 else "")
        more = f" ({len(decoded.bad) - 1} more in the same fetch)" if len(decoded.bad) > 1 else ""
        return BadRecordError(
            f"topic {topic} partition {partition} offset {int(found.offset[first.index])}: "
            f"{first.reason}; value {shown}{more}",
            hint="set on_bad_record='skip' or 'dead-letter' on the KafkaSource, or correct the schema",
        )


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
