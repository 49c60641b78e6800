"""The two-phase Kafka sink: prepared transactions end exactly once from any process, or their loss is told exactly."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import msgspec
import pyarrow as pa
import pytest

from penstock.connector.sink import SinkContext
from penstock.core.clock import SystemClock
from penstock.core.errors import ConnectorError, LostTransactionError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.sink import KafkaSink, KafkaSinkFactory

pytestmark = pytest.mark.servers
SCHEMA = pa.schema([("id", pa.int64())])


def rows(start, stop):
    return pa.record_batch([pa.array(range(start, stop), pa.int64())], schema=SCHEMA)


def permit(checkpoint):
    return CommitPermit("job", "r1", 1, checkpoint, checkpoint)


def never(_file):
    raise AssertionError("nothing is staged")


class TwoPhaseStage:
    def __init__(self, kafka, partitions=2, timeout="60s"):
        self.kafka = kafka
        self.topic = kafka.topic("out", partitions)
        sink = KafkaSink(kafka.bootstrap, self.topic, delivery="exactly-once-2pc", transaction_timeout=timeout)
        self.spec = sink.spec(SCHEMA)
        self.job = f"{kafka.prefix}job"
        self.opened = []

    def parts(self, subtask=0):
        context = SinkContext(self.job, "out", "r1", subtask, 1, 1, SystemClock())
        factory = KafkaSinkFactory()
        writer, committer = factory.create_writer(self.spec, context), factory.create_committer(self.spec, context)
        self.opened += [writer, committer]
        return writer, committer

    def committer(self):
        return self.parts_of_recovery()

    def parts_of_recovery(self):
        context = SinkContext(self.job, "out", "r1", 0, 1, 0, SystemClock())
        self.opened.append(KafkaSinkFactory().create_committer(self.spec, context))
        return self.opened[-1]

    def recover(self, checkpoint, *committables):
        outcomes = self.committer().recover(permit(checkpoint), (f"{self.job}.out.r1.",), committables, never)
        return [o.resolution for o in outcomes]

    def ids(self):
        return sorted(json.loads(v)["id"] for v in self.kafka.values(self.topic))

    def dead_writer(self, code):
        """Run a writer in a process that is killed once it has printed what it prepared."""
        source = f"""
            import sys, time, msgspec, pyarrow as pa
            from penstock.connector.sink import SinkContext, SinkSpec
            from penstock.core.clock import SystemClock
            from penstock_connectors.kafka.sink import KafkaSinkFactory
            spec = msgspec.json.decode(sys.argv[1], type=SinkSpec)
            context = SinkContext({self.job!r}, "out", "r1", 0, 1, 1, SystemClock())
            writer = KafkaSinkFactory().create_writer(spec, context)
            def write(a, b): writer.write(pa.record_batch([pa.array(range(a, b), pa.int64())], names=["id"]))
            prepared = []
            {code}
            print(msgspec.json.encode(prepared).decode(), flush=True)
            time.sleep(600)
        """
        argv = [sys.executable, "-c", textwrap.dedent(source), msgspec.json.encode(self.spec).decode()]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            line = process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        return msgspec.json.decode(line, type=list[Committable])


@pytest.fixture
def stage(kafka):
    stage = TwoPhaseStage(kafka)
    yield stage
    for part in stage.opened:
        part.close()
        part.close()


def test_epochs_appear_at_their_commit_and_ids_are_used_again(stage, implementation):
    writer, committer = stage.parts()
    names = []
    for checkpoint in range(1, 6):
        writer.write(rows(checkpoint * 10, checkpoint * 10 + 5))
        writer.write(rows(checkpoint * 10 + 5, checkpoint * 10 + 10))
        (item,) = writer.prepare_commit(checkpoint)
        names.append(item.transactional_id)
        assert item.rows == 10
        assert stage.ids() == list(range(10, checkpoint * 10))
        (outcome,) = committer.commit(permit(checkpoint), (item,), never)
        assert outcome.resolution == "published"
        assert stage.ids() == list(range(10, checkpoint * 10 + 10))
        (again,) = committer.commit(permit(checkpoint), (item,), never)
        assert again.resolution in {"published", "already-published"}
    assert writer.prepare_commit(6) == ()
    assert len(set(names)) <= 3
    assert stage.ids() == list(range(10, 60))


def test_several_prepared_epochs_have_transactions_of_their_own(stage):
    writer, committer = stage.parts()
    items = []
    for checkpoint in (1, 2, 3):
        writer.write(rows(checkpoint * 10, checkpoint * 10 + 10))
        items += writer.prepare_commit(checkpoint)
    assert len({item.transactional_id for item in items}) == 3
    committer.commit(permit(3), tuple(reversed(items)), never)
    assert stage.ids() == list(range(10, 40))


def test_killed_writer_is_committed_by_another_process_and_its_open_epoch_aborted(stage):
    prepared = stage.dead_writer(
        "write(0, 100); prepared += writer.prepare_commit(1); write(100, 200); writer._current.producer.flush(9999)"
    )
    assert stage.ids() == []
    assert stage.recover(1, *prepared) == ["published"]
    assert stage.ids() == list(range(100))
    assert stage.recover(1, *prepared) == ["already-published"]
    assert stage.ids() == list(range(100))


def test_restore_of_an_older_checkpoint_whose_id_was_used_again_is_silent(stage):
    writer, committer = stage.parts()
    items = []
    for checkpoint in (1, 2, 3, 4):
        writer.write(rows(checkpoint * 10, checkpoint * 10 + 10))
        items += writer.prepare_commit(checkpoint)
        if checkpoint < 4:
            committer.commit(permit(checkpoint), (items[-1],), never)
    assert items[0].transactional_id in {item.transactional_id for item in items[1:]}
    assert stage.recover(1, items[0]) == ["already-published"]
    assert stage.ids() == list(range(10, 40))
    with pytest.raises(LostTransactionError, match="LOST: 10 records of checkpoint 4"):
        stage.recover(4, items[3])


def test_lost_transaction_is_told_exactly(stage, kafka):
    prepared = stage.dead_writer("write(0, 100); prepared += writer.prepare_commit(7)")
    (item,) = prepared
    from penstock_connectors.kafka.write.transactions import TransactionAdmin

    admin = TransactionAdmin(kafka.resolved)
    admin.fence([item.transactional_id])  # what a time-out or a foreign producer does
    admin.close()
    pattern = (
        rf"LOST: 100 records of checkpoint 7 in {stage.topic}/[01].* \(sink '{item.uid}', "
        rf"transaction {item.transactional_id}, producer \d+ epoch \d+, time-out 60000 ms\): commit refused .*; "
        rf"the marker {stage.job}.out.r1.0 is at -1 .*accept-duplicates"
    )
    with pytest.raises(LostTransactionError, match=pattern):
        stage.recover(7, item)
    assert stage.ids() == []


def test_fenced_writer_cannot_prepare(stage):
    writer, _ = stage.parts()
    writer.write(rows(0, 10))
    writer._current.producer.flush(30_000)
    assert stage.recover(0) == []
    with pytest.raises(ConnectorError, match="of checkpoint 1"):
        writer.prepare_commit(1)
    assert stage.ids() == []


def test_closing_leaves_prepared_transactions_open(stage):
    writer, _ = stage.parts()
    writer.write(rows(0, 10))
    (item,) = writer.prepare_commit(1)
    writer.write(rows(10, 20))
    writer.close()
    assert stage.recover(1, item) == ["published"]
    assert stage.ids() == list(range(10))
