"""`KafkaSink`: the value at the end of a user's stream, and the factory of its writers and committers.

Imported by user code and by the control plane: client library and Arrow are loaded only by the part that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from penstock.config.settings import parse_duration_ms
from penstock.connector.arguments import known_arguments
from penstock.connector.sink import Committer, Delivery, SinkContext, SinkSpec, SinkWriter
from penstock.core.errors import ConnectorError, UsageError, argument_text, call_site
from penstock.core.schema import schema_to_text
from penstock_connectors.kafka.client.addresses import require_address, require_topic
from penstock_connectors.kafka.client.properties import check_properties, resolve

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["json", "arrow", "raw"]
FORMATS = ("json", "arrow", "raw")
DELIVERIES = ("exactly-once", "exactly-once-2pc", "at-least-once", "none")
FACTORY = "penstock_connectors.kafka.sink:KafkaSinkFactory"
#: Modules that each delivery mode needs; committers are needed by every worker that may recover.
PRELOAD = {
    "exactly-once": ("penstock_connectors.kafka.write.committer",),
    "exactly-once-2pc": (
        "penstock_connectors.kafka.write.two_phase",
        "penstock_connectors.kafka.write.two_phase_committer",
    ),
    "at-least-once": ("penstock_connectors.kafka.write.writer",),
    "none": ("penstock_connectors.kafka.write.writer",),
}
#: Kafka's default of `transaction.max.timeout.ms`, if the broker does not return it.
DEFAULT_MAX_TIMEOUT_MS = 900_000
#: Upper bound of one staged chunk, which is published in one transaction.
CHUNK_BYTES = 64 << 20


class SinkOptions(TypedDict, total=False):
    """Keyword arguments of `KafkaSink`."""

    key: str | None
    delivery: Delivery
    transaction_timeout: str | float
    chunk_bytes: int
    properties: Mapping[str, Any]


_DEFAULTS = SinkOptions(
    key=None, delivery="exactly-once", transaction_timeout="15m", chunk_bytes=CHUNK_BYTES, properties={}
)


class KafkaSink:
    """Rows to messages of one Kafka topic.

    Args:
        bootstrap: `host:port[,host:port...]`.
        topic: the topic; it must exist.
        format: `json` (one object a message), `arrow` (up to 10 000 rows a message, one Arrow IPC stream) or
            `raw` (the column `value`, and `key` if there is one).
        key: column whose value becomes the message's key: text in UTF-8, binary as it is, integers in decimal
            digits, everything else as its JSON text.
        delivery: `exactly-once` (rows are stored with the checkpoint and published in one transaction a chunk once
            it is complete), `exactly-once-2pc` (one transaction from the first row to the completed checkpoint:
            shorter delay, and output lost, loudly, when an outage outlasts `transaction_timeout`),
            `at-least-once` or `none`.
        chunk_bytes: for `exactly-once`: bytes of rows in one transaction; an epoch with more takes several.
        transaction_timeout: only for `exactly-once-2pc`; at most the broker's `transaction.max.timeout.ms`.
        properties: librdkafka properties; secrets as `${ENV:NAME}`.
    """

    @known_arguments(_DEFAULTS)
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        format: Format = "json",  # noqa: A002 - the name every connector uses
        **options: Unpack[SinkOptions],
    ) -> None:
        """Check all that is possible without a broker.

        Raises:
            UsageError: an argument is wrong; names it and the accepted values.
        """
        chosen = SinkOptions(**{**_DEFAULTS, **options})
        if not isinstance(topic, str):
            msg = f"KafkaSink: topic={argument_text(topic)} is not a topic's name"
            raise UsageError(
                msg, hint="a sink has one topic: split the stream with .filter(...), and use one sink for each"
            )
        require_address(bootstrap, "KafkaSink")
        if not bootstrap or not topic:
            raise UsageError("KafkaSink needs an address and a topic", hint="KafkaSink('host:9092', topic='totals')")
        require_topic(topic, "KafkaSink")
        if not isinstance(chosen["key"], str | None):
            msg = f"KafkaSink: key={argument_text(chosen['key'])} is not a column's name"
            raise UsageError(msg, hint="compute the key with .with_columns(key=...) and write key='key'")
        if not isinstance(chosen["chunk_bytes"], int):
            msg = f"KafkaSink: chunk_bytes={argument_text(chosen['chunk_bytes'])} is not a number of bytes"
            raise UsageError(msg, hint=f"between 1 and {CHUNK_BYTES}")
        for name, value, allowed in (("format", format, FORMATS), ("delivery", chosen["delivery"], DELIVERIES)):
            if value not in allowed:
                other = "; for another one make the bytes in .map(f) and use raw" if name == "format" else ""
                raise UsageError(
                    f"KafkaSink: {name}={value!r} is not known", hint=f"one of {', '.join(allowed)}{other}"
                )
        if not 0 < chosen["chunk_bytes"] <= CHUNK_BYTES:
            wrong = f"KafkaSink: chunk_bytes={chosen['chunk_bytes']!r}"
            raise UsageError(wrong, hint=f"between 1 and {CHUNK_BYTES}")
        for name, delivery in (("transaction_timeout", "exactly-once-2pc"), ("chunk_bytes", "exactly-once")):
            if name in options and chosen["delivery"] != delivery:
                wrong = f"KafkaSink: delivery={chosen['delivery']!r} does not use {name}"
                raise UsageError(wrong, hint=f"leave it out, or write delivery={delivery!r}")
        self._delivery: Delivery = chosen["delivery"]
        self.created_at = call_site()
        self._config: dict[str, Any] = {
            "bootstrap": bootstrap,
            "topic": topic,
            "format": format,
            "key": chosen["key"],
            "transaction_timeout_ms": parse_duration_ms(chosen["transaction_timeout"], "transaction_timeout"),
            "chunk_bytes": chosen["chunk_bytes"],
            "properties": check_properties(chosen["properties"], "KafkaSink"),
        }

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value for the job graph.

        Raises:
            GraphError: rows of `input_schema` cannot be written.
        """
        from penstock_connectors.kafka.write.payloads import check_rows

        check_rows(input_schema, self._config)
        return SinkSpec(
            factory=FACTORY,
            config=self._config,
            delivery=self._delivery,
            schema=schema_to_text(input_schema),
            preload=[*PRELOAD[self._delivery], "penstock_connectors.kafka.preload"],
            place=f"topic {self._config['topic']} at {self._config['bootstrap']}",
        )


class KafkaSinkFactory:
    """Creates the parts of a `KafkaSink` where they run."""

    def __init__(self) -> None:
        """Start without a writer.

        A factory that has made a writer belongs to a running subtask: its committer then prepares a producer at once.
        """
        self._in_subtask = False

    def create_writer(self, spec: SinkSpec, context: SinkContext) -> SinkWriter | None:
        """Return the writer, or None for staged delivery."""
        self._in_subtask = True
        if spec.delivery == "exactly-once":
            return None
        if spec.delivery == "exactly-once-2pc":
            from penstock_connectors.kafka.write.two_phase import TransactionWriter

            return TransactionWriter(spec.config, context)
        from penstock_connectors.kafka.write.writer import PlainWriter

        return PlainWriter(spec.config, context.uid, flush_at_barrier=spec.delivery == "at-least-once")

    def create_committer(self, spec: SinkSpec, context: SinkContext) -> Committer | None:
        """Return the committer, or None if nothing is committed."""
        if spec.delivery == "exactly-once":
            from penstock_connectors.kafka.write.committer import StagedCommitter

            return StagedCommitter(spec.config, context.clock, context.transactional_id if self._in_subtask else None)
        if spec.delivery == "exactly-once-2pc":
            from penstock_connectors.kafka.write.two_phase_committer import TransactionCommitter

            return TransactionCommitter(spec.config, context.clock)
        return None

    def validate(self, spec: SinkSpec, checkpoint_interval_ms: int | None) -> None:
        """Check that the broker answers, has the topic, and lets transactions live long enough.

        Raises:
            ConnectorError: with a hint to the solution.
        """
        from penstock_connectors.kafka.client.metadata import ClusterMetadata
        from penstock_connectors.kafka.client.property_check import require_known

        config = spec.config
        resolved = resolve(config["bootstrap"], config["properties"])
        require_known(resolved, "KafkaSink")
        cluster = ClusterMetadata(resolved)
        cluster.partitions([config["topic"]])
        if spec.delivery != "exactly-once-2pc":
            return
        timeout, interval = config["transaction_timeout_ms"], checkpoint_interval_ms or 0
        limit = cluster.broker_setting("transaction.max.timeout.ms") or DEFAULT_MAX_TIMEOUT_MS
        where = f"KafkaSink to {config['topic']!r}"
        if timeout > limit:
            raise ConnectorError(
                f"{where}: transaction_timeout is {timeout / 1000:.0f} s, but the broker allows {limit / 1000:.0f} s",
                hint="lower it, raise the broker's transaction.max.timeout.ms, or use delivery='exactly-once' "
                "(it has no such limit)",
            )
        if timeout <= 2 * interval:
            raise ConnectorError(
                f"{where}: transaction_timeout is {timeout / 1000:.0f} s with a checkpoint every "
                f"{interval / 1000:.0f} s; it has to cover the interval, the checkpoint and every outage "
                "that the job should survive",
                hint="raise transaction_timeout, checkpoint more often, or use delivery='exactly-once'",
            )
