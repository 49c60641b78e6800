"""Settling what sinks owe before a deployment."""

import msgspec
import pytest

from penstock.checkpoint.memory_store import MemoryStore
from penstock.connector.sink import CommitOutcome, SinkSpec
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError, StateMismatchError
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable, FileRef
from penstock.rpc.messages import PendingResolved, ResolvePending
from penstock.task.checkpoint import sink_recovery as recovery
from penstock.task.checkpoint.sink_recovery import resolve_pending

PERMIT = CommitPermit(job_id="job", run_id="new", generation=2, checkpoint_id=7, manifest_sequence=9)


class Factory:
    """Records what its committers are asked."""

    calls = []
    closed = 0
    publishes = True
    fails = False

    def create_committer(self, spec, context):
        return Committer(context) if self.publishes else None


class Committer:
    def __init__(self, context):
        self.context = context

    def recover(self, permit, prefixes, committables, read):
        if Factory.fails:
            raise ConnectorError("the broker is away")
        content = [read(ref) for c in committables for ref in c.files]
        Factory.calls.append((self.context.uid, permit, prefixes, [c.id for c in committables], content))
        return tuple(CommitOutcome(c.id, "published", c.rows) for c in committables)

    def close(self):
        Factory.closed += 1


@pytest.fixture
def factory(monkeypatch):
    monkeypatch.setattr(recovery, "load_factory", lambda _path: Factory())
    Factory.calls, Factory.closed, Factory.publishes, Factory.fails = [], 0, True, False
    return Factory


class Environment:
    def __init__(self):
        self.clock = ManualClock()
        self.store = MemoryStore("recovery")
        self.store.put("pending/a", b"rows")

    def open_store(self, uri):
        assert uri == "s3://bucket/root/name"
        return self.store


def committable(number, uid="out", run="old"):
    return Committable(
        id=f"{uid}/{run}/0/{number}",
        uid=uid,
        run_id=run,
        subtask=0,
        checkpoint_id=number,
        rows=3,
        files=(FileRef(path="pending/a", length=4),),
    )


def command(*committables, sinks=("out",)):
    spec = SinkSpec(factory="any:Factory", config={}, delivery="exactly-once", schema="")
    return ResolvePending(
        permit=PERMIT,
        job_name="name",
        checkpoint_root="s3://bucket/root",
        sinks={uid: msgspec.to_builtins(spec) for uid in sinks},
        prefixes={uid: (f"name.{uid}.old.",) for uid in sinks},
        committables=committables,
    )


def test_every_sink_is_fenced_and_owed_output_is_published_in_order(factory):
    published = resolve_pending(command(committable(10), committable(9), sinks=("out", "other")), Environment())
    assert published == ("out/old/0/9", "out/old/0/10")
    assert factory.calls == [
        ("out", PERMIT, ("name.out.old.",), ["out/old/0/9", "out/old/0/10"], [b"rows", b"rows"]),
        ("other", PERMIT, ("name.other.old.",), [], []),
    ]
    assert factory.closed == 2


def test_output_of_a_sink_that_is_gone_is_an_error_before_anything_is_touched(factory):
    with pytest.raises(StateMismatchError, match=r"3 rows of output are not yet published.*uid gone"):
        resolve_pending(command(committable(1, uid="gone")), Environment())
    assert factory.calls == []


def test_output_owed_by_a_sink_that_now_publishes_nothing_is_an_error(factory):
    factory.publishes = False
    with pytest.raises(StateMismatchError, match="publishes nothing"):
        resolve_pending(command(committable(1)), Environment())
    assert resolve_pending(command(), Environment()) == ()


def test_output_of_the_other_exactly_once_delivery_is_an_error(factory):
    """A staged committer would take an open transaction for output without chunks: published."""
    transaction = msgspec.structs.replace(committable(1), files=(), detail={"producer_id": 1})
    with pytest.raises(StateMismatchError, match="3 unpublished rows of another delivery mode"):
        resolve_pending(command(transaction), Environment())
    assert factory.calls == []


def test_the_answer_carries_the_error_in_one_line(factory, world):
    factory.fails = True
    w = world()
    w.runtime("sink").handle(command(committable(1)))
    assert not w.of(PendingResolved)
    w.blocking.run_all()
    (answer,) = w.of(PendingResolved)
    assert answer.error == "ConnectorError: the broker is away"
    assert answer.published == ()
    assert (answer.job_id, answer.generation) == ("job", 2)
    assert factory.closed == 1
