"""Reports of a job's subtasks in one worker: the acks of a checkpoint go in one message."""

import pytest

from penstock.core.snapshot import CheckpointMetrics, SubtaskSnapshot
from penstock.rpc.messages import CheckpointAck, CheckpointAcks, OutputPublished
from penstock.task.drive.runtime import JobReports

PUBLISHED = OutputPublished(job_id="job", run_id="r", committable_ids=("c",))


@pytest.fixture
def sent():
    return []


@pytest.fixture
def reports(sent):
    return JobReports("job", sent.append)


def ack(checkpoint_id, subtask):
    snapshot = SubtaskSnapshot(vertex_id="v", subtask=subtask)
    return CheckpointAck(
        run_id="r",
        generation=1,
        checkpoint_id=checkpoint_id,
        attempt=1,
        snapshot=snapshot,
        metrics=CheckpointMetrics(),
    )


def together(*acks):
    return CheckpointAcks(job_id="job", acks=acks)


def test_the_last_ack_sends_all(reports, sent):
    reports.expect(1, 2)
    reports.send(ack(1, 0))
    assert sent == []
    reports.send(ack(1, 1))
    reports.expect(2, 1)
    reports.send(ack(2, 0))
    assert sent == [together(ack(1, 0), ack(1, 1)), together(ack(2, 0))]


def test_another_report_does_not_overtake_an_ack(reports, sent):
    reports.expect(1, 3)
    reports.send(ack(1, 0))
    reports.send(PUBLISHED)
    assert sent == [together(ack(1, 0)), PUBLISHED]


def test_after_another_report_no_ack_waits(reports, sent):
    """It may be that of a subtask that has ended, and sends no ack."""
    reports.expect(1, 3)
    reports.send(PUBLISHED)
    reports.send(ack(1, 0))
    assert sent == [PUBLISHED, together(ack(1, 0))]


def test_an_ack_waits_only_for_those_of_the_newest_checkpoint(reports, sent):
    reports.expect(1, 2)
    reports.send(ack(1, 0))
    reports.expect(2, 2)
    reports.send(ack(1, 1))
    reports.send(ack(2, 0))
    assert sent == [together(ack(1, 0), ack(1, 1))]
    reports.send(ack(2, 1))
    assert sent[1:] == [together(ack(2, 0), ack(2, 1))]


def test_a_lease_renewal_ends_the_wait(reports, sent):
    reports.expect(1, 2)
    reports.flush()
    reports.send(ack(1, 0))
    reports.flush()
    reports.send(ack(1, 1))
    assert sent == [together(ack(1, 0)), together(ack(1, 1))]
