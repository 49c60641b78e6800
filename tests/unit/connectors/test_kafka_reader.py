"""The reader's own decisions, over a fetcher that says what the test wants: ends, leftovers, outages, lag."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from penstock.connector.source import SourceContext, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import BadRecordError, ConnectorError
from penstock_connectors.kafka.read import reader as reader_module
from penstock_connectors.kafka.read.fetch import Fetched, FetchProblem, FetchResult
from penstock_connectors.kafka.source import KafkaSource, KafkaSourceFactory

SCHEMA = pa.schema([pa.field("v", pa.int64(), nullable=False)])


class ScriptedFetcher:
    def __init__(self):
        self.results, self.added, self.removed, self.commits = [], {}, [], []
        self.commit_failures, self.closed, self.lags, self.behind = 0, 0, [], 7

    def add(self, starts):
        self.added |= starts

    def remove(self, places):
        self.removed += places

    def fetch(self, max_messages):
        return self.results.pop(0) if self.results else FetchResult()

    def lag(self, positions):
        self.lags.append(dict(positions))
        return self.behind

    def commit(self, offsets):
        self.commits.append(dict(offsets))

    def close(self):
        self.closed += 1

    def will_measure(self, sent, **more):
        broker = {"state": "UP", "waitresp_cnt": 1, "rxidle": 0, "txidle": 0, "req": {"Fetch": sent}}
        brokers = {"b": {**broker, "toppars": {"t-0": {}, "t-1": {}}, **more}}
        self.results.append(FetchResult(statistics=json.dumps({"brokers": brokers}).encode()))

    def will_give(self, *messages, ends=(), problems=(), drained=False):
        """`messages`: (partition, offset, value)."""
        places = [("t", 0), ("t", 1)]
        found = Fetched(
            value=pa.array([value for *_, value in messages], pa.large_binary()),
            slot=np.array([partition for partition, *_ in messages], np.int64),
            offset=np.array([offset for _, offset, _ in messages], np.int64),
            places=places,
        )
        positions = {("t", partition): offset + 1 for partition, offset, _ in messages}
        self.results.append(FetchResult(found if messages else None, positions, dict(ends), list(problems), drained))


@pytest.fixture
def fetcher(monkeypatch):
    scripted = ScriptedFetcher()
    monkeypatch.setattr(reader_module, "open_fetcher", lambda settings: scripted)
    return scripted


@pytest.fixture
def clock():
    return ManualClock()


def row(partition, offset, value=None):
    return (partition, offset, b'{"v":%d}' % (offset if value is None else value))


def split(partition, offset=0, stop=None, *, finished=False):
    state = {"topic": "t", "partition": partition, "offset": offset, "stop": stop}
    return SourceSplit(id=f"t-{partition}", state=state, finished=finished)


def open_reader(clock, *splits, **options):
    spec = KafkaSource("b:9", "t", SCHEMA, **options).spec()
    context = SourceContext(subtask=0, parallelism=1, job_name="j", uid="u", clock=clock)
    reader = KafkaSourceFactory().create_reader(spec, context)
    reader.add_splits(splits)
    return reader


def values(result):
    return [v for batch in result.batches for v in batch.data.column("v").to_pylist()]


def offsets(reader):
    return {s.id: (s.state["offset"], s.finished) for s in reader.snapshot()}


def test_rows_behind_the_bound_are_dropped_and_the_split_ends(fetcher, clock):
    reader = open_reader(clock, split(0, stop=2), split(1))
    fetcher.will_give(row(0, 0), row(1, 0), row(0, 1), row(0, 2), row(0, 3), row(1, 1))
    result = reader.poll(10)
    (batch,) = result.batches
    assert [(batch.split_ids[i], v) for i, v in zip(batch.split_index, values(result), strict=True)] == [
        ("t-0", 0),
        ("t-1", 0),
        ("t-0", 1),
        ("t-1", 1),
    ]
    assert result.finished == ("t-0",)
    assert fetcher.removed == [("t", 0)]
    assert offsets(reader) == {"t-0": (2, True), "t-1": (2, False)}


def test_leftovers_of_a_finished_split_are_dropped(fetcher, clock):
    reader = open_reader(clock, split(0, stop=1), split(1))
    fetcher.will_give(row(0, 0))
    assert reader.poll(10).finished == ("t-0",)
    fetcher.will_give(row(0, 1), row(1, 0), ends={("t", 0): 5})
    result = reader.poll(10)
    assert (values(result), result.finished) == ([0], ())
    assert offsets(reader)["t-0"] == (1, True)


def test_end_of_partition_ends_a_bound_that_no_record_reaches(fetcher, clock):
    reader = open_reader(clock, split(0, offset=3, stop=9))
    fetcher.will_give(row(0, 4), ends={("t", 0): 8})
    assert reader.poll(10).finished == ()
    assert offsets(reader) == {"t-0": (8, False)}
    fetcher.will_give(ends={("t", 0): 11})
    assert reader.poll(10).finished == ("t-0",)
    assert offsets(reader) == {"t-0": (9, True)}


def test_splits_that_are_at_their_end_when_assigned(fetcher, clock):
    reader = open_reader(clock, split(0, offset=5, stop=5), split(1, finished=True))
    assert reader.poll(10).finished == ("t-0", "t-1")
    assert reader.poll(10).finished == ()
    assert fetcher.added == {}
    assert offsets(reader) == {"t-0": (5, True), "t-1": (0, True)}


def test_caught_up_is_who_was_read_to_its_end_whatever_others_bring(fetcher, clock):
    reader = open_reader(clock, split(0), split(1))
    fetcher.will_give(row(0, 0), ends={("t", 0): 1})
    assert reader.poll(10).caught_up == ("t-0",)
    assert reader.poll(10).caught_up == ("t-0",)
    fetcher.will_give(row(1, 0))
    assert reader.poll(10).caught_up == ("t-0",), "a busy partition does not keep a quiet one from being idle"
    fetcher.will_give(row(0, 1))
    assert reader.poll(10).caught_up == ()
    assert reader.poll(10).caught_up == ()


def test_a_partition_whose_broker_does_not_answer_is_not_caught_up(fetcher, clock):
    reader = open_reader(clock, split(0), split(1))
    fetcher.will_give(row(0, 0), ends={("t", 0): 1, ("t", 1): 0})
    assert reader.poll(10).caught_up == ("t-0", "t-1")
    fetcher.will_measure(7, rxidle=3_000_000, txidle=3_000_000)
    assert reader.poll(10).caught_up == ()
    fetcher.will_give(row(0, 1), ends={("t", 0): 2})
    assert reader.poll(10).caught_up == (), "the fetch of t-1 may not have been answered"
    fetcher.will_measure(8)
    fetcher.will_measure(18)
    assert reader.poll(10).caught_up == ()
    assert reader.poll(10).caught_up == ("t-0", "t-1")


def test_drained_when_the_fetcher_has_nothing_left(fetcher, clock):
    reader = open_reader(clock, split(0))
    fetcher.will_give(row(0, 0), row(0, 1))
    assert not reader.poll(10).drained
    fetcher.will_give(row(0, 2), drained=True)
    assert reader.poll(10).drained


def test_failed_decode_moves_no_position(fetcher, clock):
    reader = open_reader(clock, split(0))
    fetcher.will_give(row(0, 0), (0, 1, b"x" * 200))
    with pytest.raises(BadRecordError, match="topic t partition 0 offset 1: not JSON") as raised:
        reader.poll(10)
    assert re.fullmatch(r"value: b'x{80}'\.\.\.", raised.value.values)
    assert offsets(reader) == {"t-0": (0, False)}


def test_all_bad_and_skipped(fetcher, clock):
    reader = open_reader(clock, split(0), on_bad_record="skip")
    fetcher.will_give((0, 0, b"x"), (0, 1, None))
    result = reader.poll(10)
    assert (result.batches, result.metrics["badRecords"]) == ((), 2)
    assert result.bad_record.where.startswith("topic t partition 0 offset 0: not JSON")
    assert result.bad_record.value == "value: b'x'"
    assert reader.poll(10).bad_record == result.bad_record
    assert offsets(reader) == {"t-0": (2, False)}


def test_errors_that_do_not_pass_are_raised(fetcher, clock):
    for code, words in (
        (1, "no longer exists"),
        (3, "check whether the topic was deleted"),
        (29, "topic t partition 1: text"),
        (-169, "text"),
    ):
        reader = open_reader(clock, split(1))
        fetcher.will_give(problems=[FetchProblem(code, "text", ("t", 1))])
        with pytest.raises(ConnectorError, match=words):
            reader.poll(10)


class Cluster:
    """Answers for its topics, or not."""

    away = True

    def __init__(self, resolved):
        assert resolved["bootstrap.servers"] == "b:9"

    def partitions(self, topics):
        if self.away:
            raise ConnectorError("cannot be reached")
        return {topic: [0] for topic in topics}


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr("penstock_connectors.kafka.client.metadata.ClusterMetadata", Cluster)
    return Cluster


def test_a_quiet_topic_whose_brokers_are_back_is_no_outage(fetcher, clock, cluster, monkeypatch):
    """There is nothing to read, and the end of the partitions was told before: silence says nothing."""
    reader = open_reader(clock, split(0))
    fetcher.will_give(ends={("t", 0): 0})
    fetcher.will_give(problems=[FetchProblem(-195, "broker down")])
    reader.poll(10)
    reader.poll(10)
    monkeypatch.setattr(cluster, "away", False)
    clock.advance(reader_module.OUTAGE_LIMIT_MS + 1)
    reader.poll(10)
    monkeypatch.setattr(cluster, "away", True)
    clock.advance(reader_module.OUTAGE_LIMIT_MS + 1)
    reader.poll(10)
    fetcher.will_give(problems=[FetchProblem(-195, "broker down")])
    reader.poll(10)
    clock.advance(reader_module.OUTAGE_LIMIT_MS + 1)
    with pytest.raises(ConnectorError, match="has not answered"):
        reader.poll(10)


def test_outage_is_waited_for_but_not_for_ever(fetcher, clock, cluster):
    reader = open_reader(clock, split(0))
    down = [FetchProblem(-187, "all brokers down")]
    fetcher.will_give(problems=down)
    reader.poll(10)
    clock.advance(reader_module.OUTAGE_LIMIT_MS - 1)
    reader.poll(10)
    fetcher.will_give(row(0, 0))
    reader.poll(10)
    fetcher.will_give(problems=down)
    reader.poll(10)
    clock.advance(reader_module.OUTAGE_LIMIT_MS + 1)
    with pytest.raises(ConnectorError, match="has not answered for 300 s"):
        reader.poll(10)


def test_offsets_are_committed_only_for_a_named_group(fetcher, clock):
    reader = open_reader(clock, split(0, offset=4), group="g")
    reader.notify_complete((split(0, offset=3), split(7, offset=1)))
    assert fetcher.commits == [{("t", 0): 3}]
    open_reader(clock, split(0)).notify_complete((split(0, offset=3),))
    assert len(fetcher.commits) == 1


def test_lag_is_asked_for_once_a_second(fetcher, clock):
    reader = open_reader(clock, split(0, offset=4), split(1, stop=0))
    assert reader.poll(10).metrics["recordsLag"] == 7
    reader.poll(10)
    assert fetcher.lags == [{("t", 0): 4}]
    clock.advance(reader_module.LAG_INTERVAL_MS)
    reader.poll(10)
    assert len(fetcher.lags) == 2


def test_a_lag_is_unknown_until_the_ends_are_known(fetcher, clock):
    fetcher.behind = None
    reader = open_reader(clock, split(0, offset=4))
    metrics = reader.poll(10).metrics
    assert metrics["recordsLagUnknown"]
    assert "recordsLag" not in metrics
    fetcher.behind = 3
    clock.advance(reader_module.LAG_UNKNOWN_INTERVAL_MS)
    metrics = reader.poll(10).metrics
    assert (metrics["recordsLag"], metrics["recordsLagUnknown"]) == (3, 0)


def test_reader_without_splits_connects_to_nothing(monkeypatch, clock):
    monkeypatch.setattr(reader_module, "open_fetcher", lambda settings: pytest.fail("connected"))
    reader = open_reader(clock)
    assert reader.poll(10).batches == ()
    assert reader.snapshot() == ()
    reader.notify_complete(())
    reader.close()


def test_close_twice(fetcher, clock):
    reader = open_reader(clock, split(0))
    reader.close()
    reader.close()
    assert fetcher.closed == 1
