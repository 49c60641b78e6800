"""penstock's answers are the real Flink's, without a failure and with killed workers in the middle of the input."""

from __future__ import annotations

import json

import pytest
from tests.flink.canonical import FOLDER, read
from tests.flink.questions import QUESTIONS
from tests.flink.streams import STREAMS, checksum
from tests.flink.world import FlinkWorld, differences
from tests.sim.workload import Phase

every_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)


#: The gate asks each question once: of each kind one in three with killed workers, the others without a failure.
KILLED = {question.name for question in QUESTIONS[::3]}


def either(*, killed):
    """Parameters of all questions; those that the other test has in the gate are for the night."""
    return pytest.mark.parametrize(
        "question",
        [
            pytest.param(q, id=q.name, marks=() if (q.name in KILLED) is killed else pytest.mark.nightly)
            for q in QUESTIONS
        ],
    )


def phases(question):
    return [Phase(1 if question.bound_ms is None else 3)]


@every_question
def test_answers_are_to_these_questions(question):
    about, rows = read(question.name)
    assert about["flink"].startswith("2.")
    assert about["asked"] == question.words(), "ask Flink again: python -m tests.flink.regenerate"
    assert about["input"] == checksum(STREAMS[question.stream](question.seed))
    assert len(rows) > 4


def test_every_answer_belongs_to_a_question():
    assert {path.stem for path in FOLDER.iterdir()} == {question.name for question in QUESTIONS}


def test_late_rows_were_left_out_by_flink():
    """Or the comparison would say nothing about them."""
    for name, least in (("tumble", 30), ("session", 30)):
        rows = [json.loads(row) for row in read(name)[1]]
        assert 400 - sum(row[3] for row in rows) > least


@either(killed=False)
def test_equal_to_flink(question):
    found, result = FlinkWorld(question, 1, phases(question), kills=False).answer()
    assert not (difference := differences(read(question.name)[1], found)), difference
    assert result.counts["restart"] == 0


@either(killed=True)
def test_equal_to_flink_when_workers_are_killed(question):
    found, result = FlinkWorld(question, 2, phases(question), kills=True).answer()
    assert result.counts["worker-killed"] == 2
    assert result.counts["restart"] >= 2
    assert not (difference := differences(read(question.name)[1], found)), difference
