"""The staged Kafka sink: exactly once over crashes, zombies and rescale; and the sinks without transactions."""

import json
import os
import random
import string
import subprocess
import sys
import textwrap

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.connector.sink import SinkContext
from penstock.connector.staging import encode_chunk
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.errors import Cause, ConnectorError, UndecidedOutputError, cause_of
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, FileRef
from penstock_connectors.kafka.sink import KafkaSink, KafkaSinkFactory
from penstock_connectors.kafka.write import committer as committer_module
from penstock_connectors.kafka.write.committer import StagedCommitter
from penstock_connectors.kafka.write.producer import RecordTooLargeError
from penstock_connectors.kafka.write.producer_choice import open_producer

pytestmark = pytest.mark.servers
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
WAIT_MS = 30_000


def rows(start, stop):
    return pa.record_batch(
        [pa.array(range(start, stop), pa.int64()), pa.array([f"n{i}" for i in range(start, stop)])], schema=SCHEMA
    )


def permit(checkpoint, run="r1"):
    return CommitPermit("job", run, 1, checkpoint, checkpoint)


def read(file):
    return file.inline


class SinkStage:
    """Stages epochs as the sink operator does, and publishes them through committers of its own."""

    def __init__(self, kafka, sink, clock=None):
        self.kafka, self.clock, self.job = kafka, clock or SystemClock(), f"{kafka.prefix}job"
        self.spec = sink.spec(SCHEMA)
        self.opened = []

    def context(self, subtask=0, run="r1"):
        return SinkContext(self.job, "out", run, subtask, 2, 1, self.clock)

    def committable(self, checkpoint, *chunks, subtask=0, run="r1"):
        context = self.context(subtask, run)
        return Committable(
            id=f"out/{run}/{subtask}/{checkpoint}",
            uid="out",
            run_id=run,
            subtask=subtask,
            checkpoint_id=checkpoint,
            transactional_id=context.transactional_id,
            marker_group=context.transactional_id,
            files=tuple(FileRef(inline=encode_chunk(SCHEMA, [rows(*chunk)])) for chunk in chunks),
            rows=sum(stop - start for start, stop in chunks),
            created_ms=self.clock.now_ms(),
        )

    @property
    def prefix(self):
        return f"{self.job}.out.r1."

    def committer(self, subtask=None, run="r1"):
        factory = KafkaSinkFactory()
        if subtask is not None:
            assert factory.create_writer(self.spec, self.context(subtask, run)) is None
        self.opened.append(factory.create_committer(self.spec, self.context(subtask or 0, run)))
        return self.opened[-1]

    def ids(self, *, committed=True):
        return [json.loads(value)["id"] for value in self.kafka.values(self.spec.config["topic"], committed=committed)]

    def crash(self, failpoints, checkpoint, committables, tmp_path):
        """Commit in a process that dies at a failpoint; returns its evidence."""
        work = {
            "spec": msgspec.to_builtins(self.spec),
            "committables": [msgspec.json.encode(c).decode() for c in committables],
        }
        (tmp_path / "work.json").write_text(json.dumps(work))
        code = """
            import json, sys, msgspec
            from penstock.connector.sink import SinkSpec
            from penstock.core.clock import SystemClock
            from penstock.core.permits import CommitPermit
            from penstock.core.snapshot import Committable
            from penstock_connectors.kafka.write.committer import StagedCommitter
            work = json.load(open(sys.argv[1]))
            items = tuple(msgspec.json.decode(c, type=Committable) for c in work["committables"])
            committer = StagedCommitter(msgspec.convert(work["spec"], SinkSpec).config, SystemClock())
            committer.commit(CommitPermit("job", "r1", 1, int(sys.argv[2]), 1), items, lambda f: f.inline)
            print("not killed")
        """
        env = {**os.environ, "PENSTOCK_FAILPOINTS": failpoints, "PENSTOCK_FAILPOINT_DIR": str(tmp_path)}
        argv = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "work.json"), str(checkpoint)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == -9, done.stdout + done.stderr
        name = failpoints.partition("=")[0]
        return [json.loads(line) for line in (tmp_path / f"{name}.hit").read_text().splitlines()]


@pytest.fixture
def open_sink(kafka):
    stages = []

    def start(clock=None, partitions=2, **options):
        sink = KafkaSink(kafka.bootstrap, kafka.topic(f"out{len(stages)}", partitions), **options)
        stages.append(SinkStage(kafka, sink, clock))
        return stages[-1]

    yield start
    for stage in stages:
        for committer in stage.opened:
            committer.close()
            committer.close()


def resolutions(outcomes):
    return [(o.committable_id, o.resolution) for o in outcomes]


def test_epochs_are_published_in_order_and_once(open_sink, implementation):
    stage = open_sink(key="name", partitions=1)
    committer = stage.committer(subtask=0)
    first, second = stage.committable(1, (0, 50), (50, 80)), stage.committable(2, (80, 90))
    assert resolutions(committer.commit(permit(2), (second, first), read)) == [
        ("out/r1/0/1", "published"),
        ("out/r1/0/2", "published"),
    ]
    assert resolutions(committer.commit(permit(2), (first, second), read)) == [
        ("out/r1/0/1", "already-published"),
        ("out/r1/0/2", "already-published"),
    ]
    assert stage.ids() == list(range(90))
    assert stage.kafka.read(stage.spec.config["topic"])[7][2:] == (b"n7", b'{"id":7,"name":"n7"}')


def test_output_beyond_the_permit_is_refused(open_sink):
    stage = open_sink()
    with pytest.raises(ValueError, match="checkpoint 3 under a permit for 2"):
        stage.committer().commit(permit(2), (stage.committable(3, (0, 1)),), read)
    assert stage.ids() == []


@pytest.mark.parametrize(
    ("failpoint", "visible"),
    [
        ("sink.before_publish=kill", 0),
        ("sink.between_chunks=kill", 100),
        ("sink.between_chunks=kill@2", 200),
        ("sink.after_commit=kill", 300),
    ],
)
def test_crash_while_publishing_and_recovery(open_sink, tmp_path, failpoint, visible):
    stage = open_sink()
    owed = stage.committable(7, (0, 100), (100, 200), (200, 300))
    (evidence,) = stage.crash(failpoint, 7, [owed], tmp_path)
    assert evidence["checkpoint"] == "7"
    assert len(stage.ids()) == visible
    outcomes = stage.committer().recover(permit(7), (stage.prefix,), (owed,), read)
    assert resolutions(outcomes) == [("out/r1/0/7", "already-published" if visible == 300 else "published")]
    assert sorted(stage.ids()) == list(range(300))
    again = stage.committer().recover(permit(7), (stage.prefix,), (owed,), read)
    assert resolutions(again) == [("out/r1/0/7", "already-published")]
    assert len(stage.ids()) == 300


def test_half_written_transaction_is_aborted_by_recovery(open_sink, kafka):
    stage = open_sink()
    owed = stage.committable(1, (0, 10))
    dead = open_producer(kafka.resolved, owed.transactional_id)
    dead.init_transactions(WAIT_MS)
    dead.begin()
    dead.send(stage.spec.config["topic"], pa.array([b'{"id":99}']))
    dead.flush(WAIT_MS)
    dead.close()
    stage.committer().recover(permit(1), (stage.prefix,), (owed,), read)
    assert sorted(stage.ids()) == list(range(10))


def test_zombie_is_fenced_and_its_failure_is_told(open_sink):
    stage = open_sink()
    zombie = stage.committer(subtask=0)
    first = stage.committable(1, (0, 10))
    zombie.commit(permit(1), (first,), read)
    stage.committer().recover(permit(1), (stage.prefix,), (first,), read)
    newer = stage.committer(subtask=0)
    second = stage.committable(2, (10, 20))
    newer.commit(permit(2), (second,), read)
    with pytest.raises(ConnectorError, match="newer attempt of the same sink subtask has taken over"):
        zombie.commit(permit(2), (second,), read)
    assert sorted(stage.ids()) == list(range(20))


def test_subtask_that_starts_by_itself_takes_over_its_id(open_sink):
    stage = open_sink()
    owed = stage.committable(1, (0, 10))
    stage.committer(subtask=0).commit(permit(1), (owed,), read)
    second = stage.committer(subtask=0)
    assert resolutions(second.commit(permit(1), (owed,), read)) == [("out/r1/0/1", "already-published")]
    assert sorted(stage.ids()) == list(range(10))


def test_recovery_publishes_for_all_old_subtasks(open_sink):
    stage = open_sink()
    owed = [stage.committable(5, (i * 10, i * 10 + 10), subtask=i) for i in range(6)]
    stage.committer().commit(permit(5), (owed[2],), read)
    outcomes = stage.committer().recover(permit(5), (stage.prefix,), tuple(reversed(owed)), read)
    assert [o.resolution for o in outcomes] == ["already-published" if i == 2 else "published" for i in range(6)]
    assert sorted(stage.ids()) == list(range(60))


def test_output_of_an_older_run_is_resolved_under_its_own_id(open_sink):
    stage = open_sink()
    old = stage.committable(9, (0, 10), run="r0")
    stage.committer().commit(permit(9, "r0"), (old,), read)
    new = stage.committable(1, (10, 20), run="r1")
    prefixes = (f"{stage.job}.out.r0.", stage.prefix)
    outcomes = stage.committer().recover(permit(1), prefixes, (old, new), read)
    assert resolutions(outcomes) == [("out/r0/0/9", "already-published"), ("out/r1/0/1", "published")]
    assert sorted(stage.ids()) == list(range(20))


def test_recovery_without_output_fences_only(open_sink, kafka):
    stage = open_sink()
    open_one = open_producer(kafka.resolved, stage.prefix + "3")
    open_one.init_transactions(WAIT_MS)
    open_one.begin()
    open_one.send(stage.spec.config["topic"], pa.array([b'{"id":1}']))
    open_one.flush(WAIT_MS)
    assert stage.committer().recover(permit(1), (stage.prefix,), (), read) == ()
    with pytest.raises(ConnectorError):
        open_one.commit(WAIT_MS)
    open_one.close()
    assert stage.ids() == []


def test_old_output_without_marker_is_undecided(open_sink):
    clock = ManualClock(SystemClock().now_ms() - 8 * 86_400_000)
    stage = open_sink(clock)
    owed = stage.committable(1, (0, 10))
    clock.advance(8 * 86_400_000)
    with pytest.raises(UndecidedOutputError, match=r"10 records of checkpoint 1 .*192 h old .*168 h only"):
        stage.committer().recover(permit(1), (stage.prefix,), (owed,), read)
    assert stage.ids() == []


def test_publishing_to_a_missing_topic_names_the_output(kafka):
    properties = {"topic.metadata.propagation.max.ms": 1000}  # how long the client hopes for a new topic
    stage = SinkStage(kafka, KafkaSink(kafka.bootstrap, f"{kafka.prefix}nosuch", properties=properties))
    committer = StagedCommitter(stage.spec.config, ManualClock())
    with pytest.raises(ConnectorError, match=r"publishing 10 records of checkpoint 1 to .*nosuch.*Unknown topic"):
        committer.commit(permit(1), (stage.committable(1, (0, 10)),), read)
    committer.close()


def test_a_row_larger_than_the_topic_takes_is_no_case_for_another_attempt(kafka, implementation):
    topic = kafka.topic("narrow", **{"max.message.bytes": 2000})
    noise = "".join(random.Random(7).choices(string.ascii_letters, k=8000))  # so that it cannot be compressed
    large = pa.record_batch([pa.array([1]), pa.array([noise])], schema=SCHEMA)
    for delivery in ("exactly-once", "exactly-once-2pc", "at-least-once"):
        stage = SinkStage(kafka, KafkaSink(kafka.bootstrap, topic, delivery=delivery))
        writer = KafkaSinkFactory().create_writer(stage.spec, stage.context())
        owed = replace(stage.committable(1), files=(FileRef(inline=encode_chunk(SCHEMA, [large])),), rows=1)
        with pytest.raises(RecordTooLargeError, match=r"narrow.*size too large.*max\.message\.bytes") as caught:  # noqa: PT012 - the first call that can tell
            if writer is None:
                stage.committer().commit(permit(1), (owed,), read)
            else:
                writer.write(large)
                writer.prepare_commit(1)
        assert cause_of(f"{type(caught.value).__name__}: {caught.value}") is Cause.PERMANENT
        for part in (writer, *stage.opened):
            if part is not None:
                part.close()


def test_rows_that_cannot_be_encoded_hold_up_no_reader(open_sink, implementation, monkeypatch):
    stage = open_sink(partitions=1)
    encode, calls = committer_module.encode, []

    def fail_second(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no such text")
        return encode(*arguments)

    monkeypatch.setattr(committer_module, "encode", fail_second)
    committer, owed = StagedCommitter(stage.spec.config, SystemClock(), piece_rows=10), stage.committable(1, (0, 30))
    stage.opened.append(committer)
    with pytest.raises(ValueError, match="no such text"):
        committer.commit(permit(1), (owed,), read)
    other = stage.committable(1, (30, 40), subtask=1)
    stage.committer().commit(permit(1), (other,), read)
    assert stage.ids() == list(range(30, 40))  # the broker shows nothing behind an open transaction
    assert resolutions(committer.commit(permit(1), (owed,), read)) == [("out/r1/0/1", "published")]
    assert sorted(stage.ids()) == list(range(40))


def test_writers_without_transactions(open_sink, implementation):
    for delivery in ("at-least-once", "none"):
        stage = open_sink(delivery=delivery, key="id", partitions=1)
        factory = KafkaSinkFactory()
        writer = factory.create_writer(stage.spec, stage.context())
        assert factory.create_committer(stage.spec, stage.context()) is None
        writer.write(rows(0, 1000))
        assert writer.prepare_commit(1) == ()
        if delivery == "at-least-once":
            assert stage.ids() == list(range(1000))
        writer.close()
        writer.close()
        assert stage.ids() == list(range(1000))
        assert stage.kafka.read(stage.spec.config["topic"])[41][2] == b"41"


def test_at_least_once_says_what_was_not_delivered(kafka):
    sink = KafkaSink(
        kafka.bootstrap, f"{kafka.prefix}nosuch", delivery="at-least-once", properties={"message.timeout.ms": 2000}
    )
    stage = SinkStage(kafka, sink)
    writer = KafkaSinkFactory().create_writer(stage.spec, stage.context())
    with pytest.raises(ConnectorError, match=r"not delivered|Unknown topic"):  # noqa: PT012 - either call may tell
        writer.write(rows(0, 3))
        writer.prepare_commit(1)
    writer.close()


def test_arrow_and_raw_formats(open_sink, kafka):
    from penstock_connectors.formats.arrow_stream import decode_arrow

    stage = open_sink(format="arrow", partitions=1)
    stage.committer().commit(permit(1), (stage.committable(1, (0, 25_000)),), read)
    messages = pa.array(kafka.values(stage.spec.config["topic"]), pa.large_binary())
    assert len(messages) == 3
    assert decode_arrow(messages, SCHEMA).rows.equals(rows(0, 25_000))


def test_validation(kafka):
    factory = KafkaSinkFactory()

    def validate(interval=5_000, topic=None, **options):
        sink = KafkaSink(kafka.bootstrap, topic or kafka.topic(f"v{len(options)}-{interval}"), **options)
        factory.validate(sink.spec(SCHEMA), interval)

    validate()
    with pytest.raises(ConnectorError, match="no topic 'nosuch'"):
        validate(topic="nosuch")
    validate(delivery="exactly-once-2pc", transaction_timeout="1m")
    with pytest.raises(ConnectorError, match=r"the broker allows 3600 s.*delivery='exactly-once'"):
        validate(6_000, delivery="exactly-once-2pc", transaction_timeout="2h")
    with pytest.raises(ConnectorError, match="60 s with a checkpoint every 40 s"):
        validate(40_000, delivery="exactly-once-2pc", transaction_timeout="1m")
