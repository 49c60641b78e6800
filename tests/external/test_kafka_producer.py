"""The producers' contract, on both implementations, and the administration of other processes' transactions."""

import gc
import random

import pyarrow as pa
import pytest
from tests.support.waiting import wait_until

from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.write.producer import ProducerError, RecordTooLargeError, UnknownTopicError
from penstock_connectors.kafka.write.producer_choice import open_producer
from penstock_connectors.kafka.write.transactions import NotEndableError, OpenTransaction, TransactionAdmin

pytestmark = pytest.mark.servers
WAIT_MS = 30_000


@pytest.fixture
def produce(kafka, implementation):
    """Open producers that are freed when the test ends."""
    opened = []

    def start(transactional_id=None, **properties):
        names = {key.replace("_", "."): str(value) for key, value in properties.items()}
        opened.append(open_producer({**kafka.resolved, **names}, transactional_id))
        if transactional_id is not None:
            opened[-1].init_transactions(WAIT_MS)
        return opened[-1]

    yield start
    for producer in opened:
        producer.close()


@pytest.fixture
def admin(kafka):
    admin = TransactionAdmin(kafka.resolved)
    yield admin
    admin.close()


def texts(n, prefix="v"):
    return pa.array([f"{prefix}{i}" for i in range(n)])


def test_values_and_keys_arrive_as_they_are(kafka, produce):
    topic = kafka.topic("out")
    values = [b"a\n\x00\xff", None, b"", "é".encode(), b"x" * 100_000] * 20
    keys = [b"k", None, b"", b"l", b"m"] * 20
    producer = produce()
    for kind in (pa.binary(), pa.large_binary()):
        producer.send(topic, pa.array([b"cut", *values], kind)[1:], pa.array([b"cut", *keys], kind)[1:])
    producer.send(topic, pa.array(["text", None], pa.string()))
    producer.flush(WAIT_MS)
    assert [(k, v) for _, _, k, v in kafka.read(topic)] == list(zip(keys, values, strict=True)) * 2 + [
        (None, b"text"),
        (None, None),
    ]


def test_equal_keys_share_a_partition_where_java_puts_them(kafka, produce):
    topic = kafka.topic("keyed", 8)
    producer = produce()
    keys = pa.array([f"key-{i}" for i in range(50)] * 2)
    producer.send(topic, texts(100), keys)
    producer.flush(WAIT_MS)
    placed = {}
    for partition, _, key, _ in kafka.read(topic):
        placed.setdefault(key, set()).add(partition)
    assert len(placed) == 50
    assert all(len(partitions) == 1 for partitions in placed.values())
    assert next(iter(placed[b"key-0"])) == (murmur2(b"key-0") & 0x7FFFFFFF) % 8


def murmur2(data):
    """Kafka's Java partitioner hash."""
    mask, length = 0xFFFFFFFF, len(data)
    h = (0x9747B28C ^ length) & mask
    for i in range(0, length - length % 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ ((k ^ k >> 24) * 0x5BD1E995 & mask)
    tail = data[length - length % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & mask
    h = (h ^ h >> 13) * 0x5BD1E995 & mask
    return h ^ h >> 15


def test_more_than_the_queue_holds(kafka, produce):
    topic = kafka.topic("small")
    producer = produce(queue_buffering_max_messages=500, linger_ms=1)
    producer.send(topic, texts(5_000))
    producer.flush(WAIT_MS)
    assert kafka.values(topic) == [f"v{i}".encode() for i in range(5_000)]


def test_undelivered_messages_are_reported(kafka, produce):
    producer = produce(topic_metadata_propagation_max_ms=1_000)  # how long the client hopes for a new topic
    nosuch = f"{kafka.prefix}nosuch"
    with pytest.raises(UnknownTopicError, match=f"{nosuch}.*does not exist") as caught:  # noqa: PT012 - either call
        producer.send(nosuch, texts(3))
        producer.flush(WAIT_MS)
    assert "create the topic again" in caught.value.hint
    with pytest.raises(RecordTooLargeError, match=r"[Ll]arge"):  # noqa: PT012
        producer.send(kafka.topic("big"), pa.array([random.Random(7).randbytes(3_000_000)]))
        producer.flush(WAIT_MS)


def test_a_message_too_large_is_the_cause_whatever_call_meets_the_broken_transaction(kafka, produce):
    topic = kafka.topic("narrow", **{"max.message.bytes": 2000})
    for last in ("send", "mark", "commit"):
        producer = produce(f"{kafka.prefix}{last}.r1.0")
        producer.begin()
        producer.send(topic, pa.array([random.Random(7).randbytes(9000)]))
        calls = {
            "send": lambda producer=producer: producer.send(topic, texts(10)),
            "mark": lambda producer=producer: producer.mark(f"{kafka.prefix}g", topic, 1, WAIT_MS),
            "commit": lambda producer=producer: producer.commit(WAIT_MS),
        }
        with pytest.raises(RecordTooLargeError, match=r"[Ll]arge"):
            wait_until(calls[last], f"a {last} that meets it")


def test_wrong_property_is_a_connector_error(kafka, implementation):
    with pytest.raises(ConnectorError, match=r"nonsense"):
        open_producer({**kafka.resolved, "nonsense": "1"})


def test_transaction_and_marker_are_one(kafka, produce, admin):
    topic, name = kafka.topic("txn"), f"{kafka.prefix}out.r1.0"
    producer = produce(name)
    for outcome, marker in (("commit", 10), ("abort", 11), ("commit", 12)):
        producer.begin()
        producer.send(topic, texts(100, f"{marker}-"))
        producer.mark(name, topic, marker, WAIT_MS)
        getattr(producer, outcome)(WAIT_MS)
        assert admin.markers({name: topic}) == {name: 12 if marker == 12 else 10}
    assert kafka.values(topic) == [f"{m}-{i}".encode() for m in (10, 12) for i in range(100)]
    assert admin.markers({f"{kafka.prefix}never": topic}) == {f"{kafka.prefix}never": -1}
    assert admin.markers({}) == {}


def test_close_leaves_the_transaction_open(kafka, produce, admin):
    topic, name = kafka.topic("txn"), f"{kafka.prefix}out.r1.0"
    producer = produce(name)
    producer.begin()
    producer.send(topic, texts(10))
    producer.flush(WAIT_MS)
    producer.close()
    producer.close()
    found = admin.describe(name)
    assert found.state.value == "Ongoing"
    admin.commit(OpenTransaction(name, found.producer_id, found.producer_epoch))
    admin.commit(OpenTransaction(name, found.producer_id, found.producer_epoch))
    assert len(kafka.values(topic)) == 10


def test_newer_owner_fences_the_older(kafka, produce):
    topic, name = kafka.topic("txn"), f"{kafka.prefix}out.r1.0"
    old = produce(name)
    old.begin()
    old.send(topic, texts(10, "old"))
    old.flush(WAIT_MS)
    new = produce(name)
    with pytest.raises(ProducerError) as caught:  # noqa: PT012 - which call finds out depends on timing
        old.send(topic, texts(1, "late"))
        old.commit(WAIT_MS)
    assert caught.value.fenced
    new.begin()
    new.send(topic, texts(2, "new"))
    new.commit(WAIT_MS)
    assert kafka.values(topic) == [b"new0", b"new1"]


def test_fence_aborts_what_lies_under_a_prefix_and_nothing_else(kafka, produce, admin):
    topic, stem = kafka.topic("txn", 2), f"{kafka.prefix}out.r1."
    names = [f"{stem}0", f"{stem}1.3", f"{stem}11", f"{kafka.prefix}out.r12.0", f"{stem}other.0x"]
    producers = [produce(name) for name in names]
    for producer in producers:
        producer.begin()
        producer.send(topic, texts(1))
        producer.flush(WAIT_MS)
    assert admin.ids_under([stem]) == sorted(names[:3])
    assert admin.ids_under([stem, stem.removesuffix(".")]) == sorted(names[:3])
    admin.fence(admin.ids_under([stem]))
    admin.fence([])
    for producer in producers[:3]:
        with pytest.raises(ProducerError) as caught:
            producer.commit(WAIT_MS)
        assert caught.value.fenced
    for producer in producers[3:]:
        producer.commit(WAIT_MS)
    assert len(kafka.values(topic)) == 2


def test_ended_transaction_is_told_from_a_lost_one_by_refusal(kafka, produce, admin):
    topic, name = kafka.topic("txn"), f"{kafka.prefix}out.r1.0"
    producer = produce(name)
    producer.begin()
    producer.send(topic, texts(1))
    producer.flush(WAIT_MS)
    found = admin.describe(name)
    admin.fence([name])
    with pytest.raises(NotEndableError, match=r"commit refused \(ProducerFencedError\); the coordinator says: Empty"):
        admin.commit(OpenTransaction(name, found.producer_id, found.producer_epoch))
    assert admin.describe(f"{kafka.prefix}nosuch") is None


def test_unreachable_cluster_leaves_no_socket_behind():
    with pytest.raises(ConnectorError, match=r"127.0.0.1:9 cannot be reached"):
        TransactionAdmin({"bootstrap.servers": "127.0.0.1:9"}, timeout_ms=1000)
    gc.collect()  # a socket left open would warn now, and a warning is an error
