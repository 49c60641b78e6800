"""`KafkaSource`: the value that a user adds to a job, and the factory of its parts.

Imported by user code and by the control plane: client library and Arrow are loaded only by the part that needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from penstock.config.settings import parse_duration_ms
from penstock.connector.arguments import known_arguments
from penstock.connector.source import HistorySplit, SourceContext, SourceReader, SourceSpec, SplitEnumerator
from penstock.core.errors import ConnectorError, UsageError, call_site
from penstock.core.schema import arrow_schema_of, schema_to_text
from penstock_connectors.formats.timestamps import TimestampUnit
from penstock_connectors.kafka.client.addresses import require_address, require_group, require_topic
from penstock_connectors.kafka.client.positions import check_bounded, check_start, require_positions, require_range
from penstock_connectors.kafka.client.properties import check_properties, resolve

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["json", "arrow", "raw"]
BadRecordPolicy = Literal["fail", "skip", "dead-letter"]
FORMATS = ("json", "arrow", "raw")
POLICIES = ("fail", "skip", "dead-letter")
FACTORY = "penstock_connectors.kafka.source:KafkaSourceFactory"
PRELOAD = ("penstock_connectors.kafka.read.reader", "penstock_connectors.kafka.preload")


class SourceOptions(TypedDict, total=False):
    """Keyword arguments of `KafkaSource`."""

    start: Any
    bounded: Any
    group: str | None
    on_bad_record: BadRecordPolicy
    dead_letter_topic: str | None
    discovery_interval: str | float | None
    timestamp_unit: TimestampUnit
    properties: Mapping[str, Any]


_DEFAULTS = SourceOptions(
    start="earliest",
    bounded=False,
    group=None,
    on_bad_record="fail",
    dead_letter_topic=None,
    discovery_interval="30s",
    timestamp_unit="auto",
    properties={},
)


class KafkaSource:
    """Records of one or several Kafka topics as rows.

    Args:
        bootstrap: `host:port[,host:port...]`.
        topic: one topic or several.
        schema: the rows: a `ps.Schema` class, a dataclass or an Arrow schema; not with `format="raw"`, whose columns
            are `key, value, timestamp, topic, partition, offset`.
        format: `json` (one object a message), `arrow` (one Arrow IPC stream a message) or `raw`.
        start: `earliest`, `latest`, `group` (the group's committed offsets), `{"timestamp": ...}` or
            `{(topic, partition): offset}`; used when the job first starts, later its checkpoints decide.
        bounded: False, `latest` (the end when the job starts), `{"timestamp": ...}` or `{(topic, partition): offset}`.
        group: offsets of completed checkpoints are committed under this name, for monitoring only.
        on_bad_record: what becomes of a message that is no row: `fail` the job, `skip` and count it, or `dead-letter`:
            hand it to the dead letter output, and write it to `dead_letter_topic` if that is given: at least once, with
            its key, timestamp and headers.
        dead_letter_topic: see `on_bad_record`; it must exist.
        discovery_interval: how often new partitions are looked for; None = never.
        timestamp_unit: unit of integer times in JSON; `auto` takes the magnitude (see `formats.timestamps`).
        properties: librdkafka properties; secrets as `${ENV:NAME}`.
    """

    @known_arguments(_DEFAULTS)
    def __init__(
        self,
        bootstrap: str,
        topic: str | Sequence[str],
        schema: Any = None,
        format: Format = "json",  # noqa: A002 - the name every connector uses
        **options: Unpack[SourceOptions],
    ) -> None:
        """Check all that is possible without a broker.

        Raises:
            UsageError: an argument is wrong; names it and the accepted values.
        """
        chosen = SourceOptions(**{**_DEFAULTS, **options})
        require_address(bootstrap, "KafkaSource")
        topics = _topics_of(topic)
        if not bootstrap or not topics or not all(topics):
            raise UsageError(
                "KafkaSource needs an address and a topic",
                hint="KafkaSource('host:9092', topic='orders', schema=Order)",
            )
        if len(set(topics)) < len(topics):
            raise UsageError(f"KafkaSource: a topic is named twice in {topics}", hint="name each topic once")
        for name in topics:
            require_topic(name, "KafkaSource")
        require_group(chosen["group"])
        _one_of("format", format, FORMATS, "; for another one use raw and decode the column value in .map(f)")
        _one_of("on_bad_record", chosen["on_bad_record"], POLICIES)
        _one_of("timestamp_unit", chosen["timestamp_unit"], ("auto", "s", "ms", "us"))
        if (schema is None) != (format == "raw"):
            if format == "raw":
                msg = "KafkaSource: format='raw' has the columns key, value, timestamp, topic, partition, offset"
                raise UsageError(msg, hint="leave schema out")
            raise UsageError(f"KafkaSource: format={format!r} needs schema=", hint="give the row type: schema=Order")
        if chosen["dead_letter_topic"] is not None and chosen["on_bad_record"] != "dead-letter":
            raise UsageError(
                "KafkaSource: dead_letter_topic is set but not used", hint="add on_bad_record='dead-letter'"
            )
        if chosen["dead_letter_topic"] in topics:
            msg = f"KafkaSource: it reads dead_letter_topic={chosen['dead_letter_topic']!r} itself"
            raise UsageError(msg, hint="write bad records to a topic of their own")
        self.row_schema: pa.Schema = _raw_schema() if format == "raw" else _as_arrow(schema)
        if format == "json":
            from penstock_connectors.formats.json_rows import JsonRowDecoder

            JsonRowDecoder(self.row_schema)
        interval = chosen["discovery_interval"]
        self._discovery = None if interval is None else parse_duration_ms(interval, "discovery_interval")
        begin = check_start(chosen["start"], chosen["group"], topics)
        end = check_bounded(chosen["bounded"], topics)
        require_range(begin, end)
        self.created_at = call_site()
        self._config: dict[str, Any] = {
            "bootstrap": bootstrap,
            "topics": topics,
            "format": format,
            "start": begin,
            "bounded": end,
            "group": chosen["group"],
            "on_bad_record": chosen["on_bad_record"],
            "dead_letter_topic": chosen["dead_letter_topic"],
            "timestamp_unit": chosen["timestamp_unit"],
            "properties": check_properties(chosen["properties"], "KafkaSource"),
        }

    def spec(self) -> SourceSpec:
        """Return the source as a value for the job graph."""
        bounded = self._config["bounded"] is not None
        return SourceSpec(
            factory=FACTORY,
            config=self._config,
            schema=schema_to_text(self.row_schema),
            bounded=bounded,
            discovery_interval_ms=None if bounded else self._discovery,
            preload=list(PRELOAD),
            place=f"topic {', '.join(self._config['topics'])} at {self._config['bootstrap']}",
            split_ids=[f"{topic}-[0-9]*" for topic in self._config["topics"]],
        )


class KafkaSourceFactory:
    """Creates the parts of a `KafkaSource` where they run."""

    def create_enumerator(self, spec: SourceSpec, *, first_run: bool) -> SplitEnumerator:
        """Return the enumerator for the JobManager."""
        from penstock_connectors.kafka.read.kafka_enumerator import KafkaEnumerator

        return KafkaEnumerator(spec.config, first_run=first_run)

    def create_reader(self, spec: SourceSpec, context: SourceContext) -> SourceReader:
        """Return the reader of one subtask."""
        from penstock_connectors.kafka.read.reader import KafkaReader

        return KafkaReader(spec, context)

    def history(
        self,
        spec: SourceSpec,
        until: dict[str, Any],
        piece_rows: int | None,
        begin: dict[str, Any] | None = None,
    ) -> tuple[HistorySplit, ...]:
        """Return the partitions up to a position, which is an offset; see `HistoryFactory`."""
        from penstock_connectors.kafka.read.history import history

        return history(spec.config, until, piece_rows, begin)

    def validate(self, spec: SourceSpec) -> None:
        """Check that the broker answers and has the topics, with the offsets that `start` and `bounded` name.

        Raises:
            ConnectorError: it does not.
        """
        from penstock_connectors.kafka.client.metadata import ClusterMetadata
        from penstock_connectors.kafka.client.property_check import require_known

        resolved = resolve(spec.config["bootstrap"], spec.config["properties"])
        require_known(resolved, "KafkaSource")
        cluster = ClusterMetadata(resolved)
        topics = [*spec.config["topics"], *filter(None, [spec.config["dead_letter_topic"]])]
        found = cluster.partitions(topics)
        empty = [topic for topic, partitions in found.items() if not partitions]
        if empty:
            raise ConnectorError(f"Kafka at {cluster.bootstrap}: {', '.join(empty)} has no partitions")
        require_positions(spec.config, {topic: found[topic] for topic in spec.config["topics"]}, cluster)


def _one_of(name: str, value: str, allowed: Sequence[str], other: str = "") -> None:
    if value not in allowed:
        raise UsageError(f"KafkaSource: {name}={value!r} is not known", hint=f"one of {', '.join(allowed)}{other}")


def _topics_of(given: object) -> list[str]:
    """Return the topics of an argument, which may be of any type."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        msg = f"KafkaSource: topic={given!r} is neither a topic's name nor several"
        raise UsageError(msg, hint="write topic='orders' or topic=['orders', 'refunds']")
    return list(given)


def _as_arrow(schema: Any) -> pa.Schema:
    import pyarrow as pa

    return schema if isinstance(schema, pa.Schema) else arrow_schema_of(schema)


def _raw_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("key", pa.large_binary()),
            pa.field("value", pa.large_binary()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("topic", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
        ]
    )
