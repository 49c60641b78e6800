"""The Kafka source against a real broker: positions, ends, discovery, bad records, both fetchers."""

import json

import pyarrow as pa
import pytest
from tests.support.waiting import DEADLINE_S, wait_until

from penstock.core.errors import BadRecordError, ConnectorError
from penstock_connectors.kafka.read.fetch import FetchSettings
from penstock_connectors.kafka.read.kafka_enumerator import KafkaEnumerator
from penstock_connectors.kafka.read.outage import Outage
from penstock_connectors.kafka.read.reader import open_fetcher
from penstock_connectors.kafka.source import KafkaSource, KafkaSourceFactory

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("implementation")]


def orders(start, stop):
    return [
        json.dumps({"user_id": i, "amount": i * 2, "ts": 1_700_000_000_000 + i}).encode() for i in range(start, stop)
    ]


def ids(rows):
    return [row["user_id"] for row in rows]


def positions(splits):
    return {split.id: split.state["offset"] for split in splits}


def test_fetcher_gives_messages_as_they_were_written(kafka):
    topic = kafka.topic("raw", 2)
    n = 2000
    values = [None if i % 97 == 0 else b"" if i % 89 == 0 else b"v%d\n\x00\xff" % i * (i % 5) for i in range(n)]
    keys = [None if i % 5 == 0 else b"" if i % 7 == 0 else b"k%d" % i for i in range(n)]
    stamps = [1_700_000_000_000 + i for i in range(n)]
    for partition in (0, 1):
        kafka.produce(topic, values[partition::2], partition, keys=keys[partition::2], timestamps=stamps[partition::2])
    fetcher = open_fetcher(FetchSettings({**kafka.resolved, "group.id": "g"}, lambda: None, keys=True, timestamps=True))
    try:
        fetcher.add({(topic, 0): 0, (topic, 1): 10})
        found, ends = {}, {}

        def both_ends():
            result = fetcher.fetch(333)
            assert result.problems == []
            for place in result.positions:
                ends.pop(place, None)
            ends.update(result.ends)
            m = result.messages
            if m is not None:
                rows = zip(
                    m.slot.tolist(),
                    m.offset.tolist(),
                    m.key.to_pylist(),
                    m.value.to_pylist(),
                    m.timestamp.tolist(),
                    strict=True,
                )
                for slot, *rest in rows:
                    found.setdefault(m.places[slot], []).append(tuple(rest))
            return len(ends) == 2

        wait_until(both_ends, lambda: f"two ends: {ends}", step=0)
        for partition, start in ((0, 0), (1, 10)):
            expected = list(
                zip(range(n // 2), keys[partition::2], values[partition::2], stamps[partition::2], strict=True)
            )
            assert found[topic, partition] == expected[start:]
        assert ends == {(topic, 0): n // 2, (topic, 1): n // 2}
        assert fetcher.lag({(topic, 0): 10, (topic, 1): n // 2}) == n // 2 - 10
    finally:
        fetcher.close()
        fetcher.close()


def test_a_lag_is_unknown_until_the_brokers_answer_and_then_known_of_an_empty_partition_too(kafka):
    topic = kafka.topic("quiet", 2)
    kafka.produce(topic, [b"v"] * 5)
    fetcher = open_fetcher(FetchSettings({**kafka.resolved, "group.id": "g"}, lambda: None))
    try:
        positions = {(topic, 0): 2, (topic, 1): 0}
        fetcher.add(positions)
        assert fetcher.lag(positions) is None
        fetcher.fetch(1)
        wait_until(lambda: fetcher.lag(positions) is not None, "a known lag")
        assert fetcher.lag(positions) == 3
    finally:
        fetcher.close()


def test_a_fetcher_that_gave_all_it_may_give_is_not_drained(kafka):
    """Else a source behind a backlog would wait for company after every fetch."""
    topic = kafka.topic("backlog")
    n = 1000
    kafka.produce(topic, [b"v"] * n)
    fetcher = open_fetcher(FetchSettings({**kafka.resolved, "group.id": "g"}, lambda: None, most_messages=10))
    try:
        fetcher.add({(topic, 0): 0})
        sizes = []

        def whole():
            result = fetcher.fetch(60_000)
            sizes.append(0 if result.messages is None else len(result.messages.slot))
            assert not (result.drained and sizes[-1] >= 10)
            return sum(sizes) >= n

        wait_until(whole, lambda: f"{n} messages: {sum(sizes)}", step=0)
        assert max(sizes) >= 10
    finally:
        fetcher.close()


def test_bounded_read_of_two_partitions_in_order(kafka, open_reader):
    topic = kafka.topic("in", 2)
    kafka.produce(topic, orders(0, 1000), 0)
    kafka.produce(topic, orders(1000, 1500), 1)
    stage = open_reader(topic, bounded="latest")
    kafka.produce(topic, orders(9000, 9100), 0)  # behind the end that was fixed at the start
    stage.to_end(max_rows=300)
    assert ids(stage.by_split()[f"{topic}-0"]) == list(range(1000))
    assert ids(stage.by_split()[f"{topic}-1"]) == list(range(1000, 1500))
    snapshot = stage.reader.snapshot()
    assert positions(snapshot) == {f"{topic}-0": 1000, f"{topic}-1": 500}
    assert all(split.finished for split in snapshot)


def test_positions_are_exact_at_every_step_and_replay_gives_the_rest(kafka, open_reader):
    topic = kafka.topic("in", 2)
    kafka.produce(topic, orders(0, 500), 0)
    kafka.produce(topic, orders(500, 1000), 1)
    stage = open_reader(topic, bounded="latest")
    stage.until(lambda s: len(s.rows()) >= 100, max_rows=70)
    seen, snapshot = stage.rows(), stage.reader.snapshot()
    by_split = stage.by_split()
    assert positions(snapshot) == {name: len(by_split.get(name, [])) for name in (f"{topic}-0", f"{topic}-1")}
    again = open_reader(topic, bounded="latest", splits=snapshot).to_end()
    assert sorted(ids(seen) + ids(again.rows())) == list(range(1000))


def test_bounded_end_lies_in_the_gap_of_a_transaction(kafka, open_reader):
    topic = kafka.topic("gaps", 3)
    kafka.produce(topic, orders(0, 10), 0, transaction="commit")
    kafka.produce(
        topic, orders(10, 20), 0, transaction="abort"
    )  # the end is behind aborted records and a control record
    kafka.produce(topic, orders(20, 30), 1, transaction="abort")  # nothing but aborted records
    kafka.produce(topic, orders(30, 40), 2)
    holder = kafka.produce(topic, orders(40, 50), 2, transaction="open")
    kafka.produce(topic, orders(50, 60), 2)  # committed, but behind the open transaction
    stage = open_reader(topic, bounded="latest").to_end()
    assert sorted(ids(stage.rows())) == [*range(10), *range(30, 40)]
    assert positions(stage.reader.snapshot()) == {f"{topic}-0": 22, f"{topic}-1": 11, f"{topic}-2": 10}
    holder.abort_transaction(30)


def test_unbounded_read_follows_the_end_and_says_when_it_is_there(kafka, open_reader):
    topic = kafka.topic("tail", 2)
    kafka.produce(topic, orders(0, 10), 0)
    stage = open_reader(topic)
    stage.until(lambda s: s.caught_up == {f"{topic}-0", f"{topic}-1"})
    assert len(stage.rows()) == 10
    kafka.produce(topic, orders(10, 20), 1)
    stage.until(lambda s: len(s.rows()) == 20 and s.caught_up == {f"{topic}-0", f"{topic}-1"})
    assert stage.finished == set()


def test_wake_up_comes_without_polling(kafka, open_reader):
    topic = kafka.topic("wake")
    stage = open_reader(topic)
    stage.until(lambda s: s.caught_up)
    assert not stage.poll().batches
    stage.woken.clear()
    kafka.produce(topic, orders(0, 1))
    assert stage.woken.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(100)),
        ("latest", range(0)),
        ({"timestamp": 1_700_000_000_060}, range(60, 100)),
        ({"timestamp": "2023-11-14T22:13:20.060+00:00"}, range(60, 100)),
        ({"timestamp": 1_900_000_000_000}, range(0)),
        ("offsets", range(70, 100)),
        ("group", range(30, 100)),
    ],
)
def test_start_positions(kafka, open_reader, start, expected):
    topic = kafka.topic("start")
    kafka.produce(topic, orders(0, 100), timestamps=[1_700_000_000_000 + i for i in range(100)])
    group = f"{kafka.prefix}group"
    if start == "group":
        first = open_reader(topic, group=group)
        first.until(lambda s: len(s.rows()) >= 30, max_rows=30)
        first.reader.notify_complete(first.reader.snapshot())
        offsets = lambda: first.enumerator._cluster.group_offsets(group, [(topic, 0)])
        wait_until(lambda: first.reader._fetcher.fetch(0) and offsets() == {(topic, 0): 30}, offsets)
    stage = open_reader(topic, start={(topic, 0): 70} if start == "offsets" else start, group=group, bounded="latest")
    assert ids(stage.to_end().rows()) == list(expected)


def test_bounds_by_offset_and_time(kafka, open_reader):
    topic = kafka.topic("bound", 2)
    kafka.produce(topic, orders(0, 100), 0, timestamps=[1_700_000_000_000 + i for i in range(100)])
    kafka.produce(topic, orders(100, 200), 1, timestamps=[1_700_000_000_000 + i for i in range(100)])
    assert ids(open_reader(topic, bounded={(topic, 0): 7}).to_end().rows()) == list(range(7))
    stage = open_reader(topic, bounded={"timestamp": 1_700_000_000_005}).to_end()
    assert sorted(ids(stage.rows())) == [*range(5), *range(100, 105)]


def test_new_partitions_are_read_from_their_beginning(kafka, open_reader):
    topic = kafka.topic("grow")
    kafka.produce(topic, orders(0, 10))
    stage = open_reader(topic, start="latest")
    stage.until(lambda s: s.caught_up)
    kafka.grow(topic, 2)
    kafka.produce(topic, orders(10, 20), 1)
    new = wait_until(lambda: stage.enumerator.discover(frozenset(stage.splits)), "a new partition")
    assert [split.id for split in new] == [f"{topic}-1"]
    stage.reader.add_splits(new)
    stage.until(lambda s: len(s.rows()) == 10)
    assert ids(stage.rows()) == list(range(10, 20))


BAD = [b'{"user_id":1,"amount":1}', b"{broken", None, b'{"user_id":"x","amount":1}', b'{"user_id":2,"amount":2}']


def test_bad_record_fails_the_job_and_names_the_place(kafka, open_reader):
    topic = kafka.topic("bad")
    kafka.produce(topic, BAD)
    stage = open_reader(topic)
    with pytest.raises(BadRecordError, match=f"topic {topic} partition 0 offset 1: not JSON.*2 more.*on_bad_record="):
        stage.until(lambda s: s.caught_up)
    assert positions(stage.reader.snapshot()) == {f"{topic}-0": 0}


def test_bad_records_are_skipped_and_counted(kafka, open_reader):
    topic = kafka.topic("bad")
    kafka.produce(topic, BAD)
    stage = open_reader(topic, on_bad_record="skip", bounded="latest").to_end()
    assert ids(stage.rows()) == [1, 2]
    assert stage.metrics["badRecords"] == 3
    assert positions(stage.reader.snapshot()) == {f"{topic}-0": 5}


def test_bad_records_go_to_the_dead_letters_with_all_that_they_had(kafka, open_reader):
    topic, letters = kafka.topic("bad"), kafka.topic("letters")
    keys = [None if i == 2 else f"k{i}".encode() for i in range(len(BAD))]
    headers = [
        [("trace", f"t{i}".encode()), ("trace", None), ("empty", b"")] if i != 3 else None for i in range(len(BAD))
    ]
    times = [1_700_000_000_000 + i for i in range(len(BAD))]
    kafka.produce(topic, BAD, keys=keys, headers=headers, timestamps=times)
    stage = open_reader(topic, on_bad_record="dead-letter", dead_letter_topic=letters, bounded="latest").to_end()
    assert ids(stage.rows()) == [1, 2]
    rows = pa.Table.from_batches([b.dead_letters for b in stage.batches if b.dead_letters is not None]).to_pylist()
    assert [(r["value"], r["topic"], r["partition"], r["offset"]) for r in rows] == [
        (BAD[i], topic, 0, i) for i in (1, 2, 3)
    ]
    assert "not JSON" in rows[0]["error"]
    assert [r["key"] for r in rows] == keys[1:4]
    assert [round(r["timestamp"].timestamp() * 1000) for r in rows] == times[1:4]
    assert [[(h["name"], h["value"]) for h in r["headers"]] for r in rows] == [headers[1], headers[2], []]
    stage.reader.snapshot()
    written = kafka.messages(letters)
    assert [(m.value(), m.key(), m.timestamp()[1]) for m in written] == [(BAD[i], keys[i], times[i]) for i in (1, 2, 3)]
    for message, row, index in zip(written, rows, (1, 2, 3), strict=True):
        place = [(f"penstock.{name}", str(row[name]).encode()) for name in ("topic", "partition", "offset", "error")]
        assert message.headers() == [*(headers[index] or []), *place]


def test_dead_letters_before_the_end_of_a_split_alone(kafka, open_reader):
    topic = kafka.topic("bad")
    kafka.produce(topic, [b"x", b"y", b"z"], keys=[b"a", b"b", b"c"])
    stage = open_reader(topic, on_bad_record="dead-letter", bounded={(topic, 0): 2}).to_end()
    rows = pa.Table.from_batches([b.dead_letters for b in stage.batches if b.dead_letters is not None]).to_pylist()
    assert [(r["value"], r["key"]) for r in rows] == [(b"x", b"a"), (b"y", b"b")]


def test_only_bad_records_still_move_the_position(kafka, open_reader):
    topic = kafka.topic("bad")
    kafka.produce(topic, [b"x"] * 5)
    stage = open_reader(topic, on_bad_record="dead-letter", bounded="latest").to_end()
    assert sum(b.dead_letters.num_rows for b in stage.batches) == 5
    assert positions(stage.reader.snapshot()) == {f"{topic}-0": 5}


def test_raw_and_arrow_formats(kafka, open_reader):
    from penstock_connectors.formats.arrow_stream import encode_arrow

    topic = kafka.topic("raw")
    kafka.produce(topic, [b"\xff\n", None, b""], keys=[b"k", None, b""], timestamps=[1_700_000_000_000] * 3)
    rows = open_reader(topic, schema=None, format="raw", bounded="latest").to_end().rows()
    assert [(r["key"], r["value"], r["offset"]) for r in rows] == [(b"k", b"\xff\n", 0), (None, None, 1), (b"", b"", 2)]
    assert {r["topic"] for r in rows} == {topic}
    assert rows[0]["timestamp"].timestamp() == 1_700_000_000
    topic = kafka.topic("arrow")
    batch = pa.RecordBatch.from_pydict({"a": list(range(25_000))})
    kafka.produce(topic, [*encode_arrow(batch).to_pylist(), b"junk"])
    stage = open_reader(topic, schema=batch.schema, format="arrow", bounded="latest", on_bad_record="skip").to_end()
    assert [r["a"] for r in stage.rows()] == list(range(25_000))
    assert stage.metrics["badRecords"] == 1


def test_position_that_is_gone_is_a_loud_error(kafka, open_reader):
    topic = kafka.topic("gone")
    kafka.produce(topic, orders(0, 10))
    stage = open_reader(topic)
    splits = stage.reader.snapshot()
    stage.close()
    kafka.delete_before(topic, 0, 5)
    late = open_reader(topic, splits=splits)
    with pytest.raises(ConnectorError, match=r"no longer exists.*retention"):
        late.until(lambda s: len(s.rows()) > 0)


def test_several_topics(kafka, open_reader):
    topics = [kafka.topic("a", 2), kafka.topic("b")]
    kafka.produce(topics[0], orders(0, 5), 1)
    kafka.produce(topics[1], orders(5, 10), 0)
    stage = open_reader(topics, bounded="latest").to_end()
    assert {name: ids(rows) for name, rows in stage.by_split().items()} == {
        f"{topics[0]}-1": list(range(5)),
        f"{topics[1]}-0": list(range(5, 10)),
    }


def test_missing_topic_and_unreachable_broker(kafka, order):
    factory = KafkaSourceFactory()
    with pytest.raises(ConnectorError, match=r"has no topic 'nosuch'.*create it"):
        factory.validate(KafkaSource(kafka.bootstrap, "nosuch", order).spec())
    spec = KafkaSource("127.0.0.1:9", "orders", order).spec()
    with pytest.raises(ConnectorError, match=r"127.0.0.1:9 cannot be reached within 1 s"):
        KafkaEnumerator(spec.config, first_run=True, timeout_ms=1000).discover(frozenset())


def test_a_paused_partition_goes_on_where_it_stood(kafka, open_reader):
    topic = kafka.topic("pause", 2)
    kafka.produce(topic, orders(0, 30_000), 0)
    kafka.produce(topic, orders(50_000, 50_100), 1)
    first, second = f"{topic}-0", f"{topic}-1"
    stage = open_reader(topic)
    stage.until(lambda s: len(s.by_split().get(first, [])) >= 1000, max_rows=700)
    for _ in range(3):  # fetched rows are waiting in the client each time
        stage.reader.pause_or_resume_splits((first,), ())
        stood = len(stage.by_split()[first])
        kafka.produce(topic, orders(0, 50), 1)
        seen = len(stage.by_split().get(second, []))
        stage.until(lambda s, seen=seen: len(s.by_split().get(second, [])) >= seen + 50)
        assert len(stage.by_split()[first]) < 30_000, "nothing was left to pause"
        at = positions(stage.reader.snapshot())[first]
        assert at == len(stage.by_split()[first]) >= stood
        stage.reader.pause_or_resume_splits((), (first,))
        stage.until(lambda s, at=at: len(s.by_split()[first]) >= at + 1000, max_rows=700)
    stage.until(lambda s: len(s.by_split()[first]) >= 30_000)
    assert ids(stage.by_split()[first]) == list(range(30_000))
    assert positions(stage.reader.snapshot())[first] == 30_000


def test_the_statistics_name_the_broker_that_leads_a_partition(kafka):
    topic = kafka.topic("measured", 1)
    fetcher = open_fetcher(FetchSettings({**kafka.resolved, "group.id": "g"}, lambda: None))
    outage = Outage()
    outage.failed(0.0)
    try:
        fetcher.add({(topic, 0): 0})

        def over():
            if statistics := fetcher.fetch(10).statistics:
                outage.measured(statistics, {f"{topic}-0"}, 1_000.0)
            return outage.since_ms is None

        wait_until(over, "statistics of a broker that answers")
    finally:
        fetcher.close()
