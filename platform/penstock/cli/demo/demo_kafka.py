"""The demo with a real Kafka and a real MinIO.

Starts or finds them, produces orders while the job runs, and reads the output back.
"""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cli.demo.demo_scenario import (
    DISORDER_SECONDS,
    KILLS,
    PARALLELISM,
    WINDOW_SECONDS,
    OutputRow,
    Windows,
    expected_windows,
)
from penstock.client.kernels import has_lab
from penstock.core.clock import SystemClock
from penstock.core.errors import ConnectorError, PenstockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.api.environment import Environment
    from penstock_lab.servers import KafkaServer, MinioServer

_PARTITIONS = 4
_USERS = 1_000
_START_MS = 1_700_000_000_000
_EVENTS_PER_EVENT_TIME_MS = 5
_RATE_PER_SECOND = 50_000
_CHUNK = 1_000
_READ_IDLE_SECONDS = 5.0
_WAIT_SECONDS = 0.5
_BUCKET = "penstock-demo"


def _servers() -> Any:
    """Return the package that starts Kafka and MinIO."""
    if not has_lab():
        raise UsageError(
            "the installed package starts no Kafka and no MinIO",
            hint="give --bootstrap and --s3-endpoint, or run the demo in a checkout of the repository",
        )
    import penstock_lab.servers

    return penstock_lab.servers


class KafkaScenario:
    """Orders in four partitions, five seconds of disorder, ten-second windows per user."""

    def __init__(
        self,
        folder: Path,
        events: int,
        note: Callable[[str], None],
        *,
        bootstrap: str | None = None,
        s3_endpoint: str | None = None,
    ) -> None:
        """Prepare names; `prepare` starts the servers."""
        self.events = events - events % _PARTITIONS
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._note = note
        self._bootstrap = bootstrap
        self._s3_endpoint = s3_endpoint
        self._servers: list[KafkaServer | MinioServer] = []
        self._producer_error: BaseException | None = None
        self._producer: threading.Thread | None = None
        self._closing, self._killed = threading.Event(), threading.Event()
        self._kills = 0
        run = os.urandom(3).hex() if bootstrap else ""
        self._orders, self._totals = f"orders{run}", f"totals{run}"

    @property
    def bootstrap(self) -> str:
        """The broker's address; known after `prepare`."""
        return self._bootstrap or ""

    def prepare(self) -> None:
        """Start or find Kafka and MinIO; create topics and bucket.

        Raises:
            UsageError: a server has to be started, and this installation has no `penstock_lab`.
        """
        if self._bootstrap is None:
            self._note("starting Kafka (installing it first if missing)")
            kafka = _servers().start_kafka(self._folder / "kafka", progress=self._note)
            self._servers.append(kafka)
            self._bootstrap = kafka.bootstrap
        if self._s3_endpoint is None:
            self._note("starting MinIO (building it first if missing, which takes minutes)")
            minio = _servers().start_minio(self._folder / "minio", progress=self._note)
            self._servers.append(minio)
            minio.make_bucket(_BUCKET)
            self.environment = {
                "PENSTOCK_S3_ENDPOINT": minio.url,
                "PENSTOCK_S3_ACCESS_KEY": minio.access_key,
                "PENSTOCK_S3_SECRET_KEY": minio.secret_key,
            }
        else:
            self.environment = {"PENSTOCK_S3_ENDPOINT": self._s3_endpoint}
        os.environ.update(self.environment)
        self._create_topics()

    def build(self) -> Environment:
        """Return the nine-line job."""
        import penstock as ps
        from penstock.cli.demo.demo_files import Order
        from penstock_connectors.kafka import KafkaSink, KafkaSource

        env = ps.Environment(
            parallelism=PARALLELISM, checkpoint_interval="1s", checkpoint_root=f"s3://{_BUCKET}/checkpoints"
        )
        stops = {(self._orders, p): self.events // _PARTITIONS for p in range(_PARTITIONS)}
        orders = env.from_source(
            KafkaSource(self.bootstrap, topic=self._orders, schema=Order, start="earliest", bounded=stops),
            watermarks=ps.WatermarkStrategy.bounded_out_of_orderness(f"{DISORDER_SECONDS}s", timestamp="ts"),
            uid="orders",
        )
        (
            orders.key_by("user_id")
            .window(ps.Tumbling(f"{WINDOW_SECONDS}s"))
            .aggregate(n=ps.count(), total=ps.sum("amount"))
            .uid("totals")
            .sink_to(KafkaSink(self.bootstrap, topic=self._totals, delivery="exactly-once"), uid="out")
        )
        return env

    def begin(self) -> None:
        """Produce orders in the background, at a steady rate."""
        self._producer = threading.Thread(target=self._produce, name="demo-producer", daemon=True)
        self._producer.start()

    def killed(self, kills: int) -> None:
        """Produce the next part: a kill must come before all input has been read."""
        self._kills = kills
        self._killed.set()

    def expected(self) -> Windows:
        """Read the input topic back with a plain consumer and compute its windows."""
        if self._producer is not None:
            self._producer.join()
        if self._producer_error is not None:
            msg = f"producing the demo's input failed: {self._producer_error}"
            raise ConnectorError(msg) from self._producer_error
        rows = [json.loads(value) for value in self._read(self._orders)]
        if len(rows) != self.events:
            msg = f"the input topic has {len(rows)} of {self.events} orders"
            raise PenstockError(msg)
        columns = [np.array([row[name] for row in rows], np.int64) for name in ("user_id", "amount", "ts")]
        return expected_windows(columns[0], columns[1], columns[2] * 1000, WINDOW_SECONDS * 1_000_000)

    def output(self) -> Iterable[OutputRow]:
        """Read the output topic as a read-committed consumer sees it."""
        for value in self._read(self._totals):
            row = json.loads(value)
            start_us = int(
                np.datetime64(str(row["window_start"]).rstrip("Z").replace("+00:00", ""), "us").astype(np.int64)
            )
            yield int(row["user_id"]), start_us, int(row["n"]), int(row["total"])

    def close(self) -> None:
        """Stop the producer and the servers that were started."""
        self._closing.set()
        if self._producer is not None:
            self._producer.join(timeout=10)
        for server in self._servers:
            server.remove()

    def _create_topics(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(self._orders, _PARTITIONS, 1), NewTopic(self._totals, PARALLELISM, 1)]
        for topic, future in admin.create_topics(topics, operation_timeout=20).items():
            try:
                future.result(timeout=30)
            except Exception as error:
                msg = f"cannot create topic {topic} at {self.bootstrap}: {error}"
                raise ConnectorError(msg, hint="check that it is a reachable Kafka broker") from error

    def _produce(self) -> None:
        from confluent_kafka import Producer

        clock = SystemClock()
        try:
            producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "enable.idempotence": True})
            started_ms = clock.monotonic_ms()
            for low in range(0, self.events, _CHUNK):
                while self._kills < low * (KILLS + 1) // self.events:
                    if self._closing.is_set():
                        return
                    self._killed.wait(_WAIT_SECONDS)
                    self._killed.clear()
                for index, value in _orders(low, min(low + _CHUNK, self.events)):
                    producer.produce(self._orders, value, partition=index % _PARTITIONS)
                producer.poll(0)
                ahead_ms = low / _RATE_PER_SECOND * 1000 - (clock.monotonic_ms() - started_ms)
                if self._closing.wait(max(0.0, ahead_ms) / 1000):
                    return
            if producer.flush(60):
                raise ConnectorError("the broker did not accept all of the demo's orders within 60 s")  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 - kept for `expected`, which raises it
            self._producer_error = error

    def _read(self, topic: str) -> Iterator[bytes]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "demo-check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        ended: set[int] = set()
        try:
            while len(ended) < len(partitions):
                messages = consumer.consume(10_000, timeout=_READ_IDLE_SECONDS)
                if not messages:
                    msg = f"reading {topic} back stalled"
                    raise ConnectorError(msg, hint="check that the broker is running")
                for message in messages:
                    error = message.error()
                    if error is None:
                        yield message.value() or b""
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public constant
                        ended.add(message.partition() or 0)
                    else:
                        msg = f"reading {topic} back failed: {error}"
                        raise ConnectorError(msg)
        finally:
            consumer.close()


def _orders(low: int, high: int) -> Iterator[tuple[int, bytes]]:
    """Yield the orders `low..high` with scattered users.

    Amounts are 1-1000, event time advances with up to five seconds of disorder.
    """
    for index in range(low, high):
        mixed: Any = (index * 2654435761) & 0xFFFFFFFF
        user, amount = (mixed >> 7) % _USERS, 1 + (mixed >> 3) % 1000
        ts_ms = _START_MS + index // _EVENTS_PER_EVENT_TIME_MS - (mixed >> 11) % (DISORDER_SECONDS * 1000)
        yield index, b'{"user_id":%d,"amount":%d,"ts":%d}' % (user, amount, ts_ms)
