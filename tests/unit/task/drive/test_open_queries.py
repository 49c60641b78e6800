"""However much a subtask is asked, its job goes on: few questions wait, stale ones are left, the rest is refused."""

import pytest

from penstock.rpc.messages import AskSubtask, SubtaskAnswer
from penstock.task.drive.state_queries import MOST_WAITING, NOT_RUNNING
from penstock.task.drive.subtask import CAPACITY


def ask(request, subtask=0, wait_ms=10_000):
    return AskSubtask(
        job_id="job", request_id=str(request), vertex_id="source", subtask=subtask, what="states", wait_ms=wait_ms
    )


@pytest.fixture
def running(world):
    made = world()
    made.deploy()
    made.settle()
    return made


def answers(running):
    return {found.request_id: found for found in running.of(SubtaskAnswer)}


def test_more_questions_than_a_mailbox_holds_are_refused_and_harm_nothing(running):
    runtime = running.runtime("source")
    for request in range(CAPACITY + 10):
        runtime.handle(ask(request))
    refused = answers(running)
    assert len(refused) == CAPACITY + 10 - MOST_WAITING
    assert {found.error for found in refused.values()} == {
        "64 queries wait for the subtask already; repeat the query later"
    }
    running.trigger(1)
    running.settle()
    assert len(running.acks("source")) == 1, "the subtask still does what the job wants of it"
    found = answers(running)
    assert all(found[str(request)].answer == {"states": []} for request in range(MOST_WAITING))
    runtime.handle(ask("later"))
    running.settle()
    assert answers(running)["later"].answer == {"states": []}


def test_what_nobody_waits_for_any_more_is_not_looked_at(running):
    running.runtime("source").handle(ask("stale", wait_ms=500))
    running.runtime("source").handle(ask("fresh", wait_ms=5000))
    running.clock.advance(1000)
    running.settle()
    assert set(answers(running)) == {"fresh"}


def test_a_subtask_that_has_ended_or_has_no_room_answers_so(running):
    runtime, subtask = running.runtime("source"), running.subtasks("source")[0]
    for _ in range(CAPACITY):
        subtask.mailbox.post(lambda: None)
    runtime.handle(ask("full"))
    assert answers(running)["full"].error.startswith(f"{CAPACITY} mails wait for one subtask")
    subtask.mailbox.close()
    runtime.handle(ask("closed"))
    runtime.handle(ask("none", subtask=7))
    assert answers(running)["closed"].error == answers(running)["none"].error == NOT_RUNNING
