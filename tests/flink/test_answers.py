"""penstock's answers are the real Flink's, without a failure and with killed workers in the middle of the input."""

from __future__ import annotations

import json

import pytest
from tests.flink.canonical import FOLDER, read
from tests.flink.in_process import answer_of
from tests.flink.questions import QUESTIONS
from tests.flink.streams import STREAMS, checksum
from tests.flink.world import FlinkWorld, differences
from tests.sim.workload import Phase

every_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)


#: In the gate, one in six is asked with killed workers too.
KILLED = [
    pytest.param(q, id=q.name, marks=() if number % 6 == 0 else pytest.mark.nightly)
    for number, q in enumerate(QUESTIONS)
]


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


@every_question
def test_equal_to_flink(question):
    assert not (difference := differences(read(question.name)[1], answer_of(question))), difference


@pytest.mark.parametrize("question", KILLED)
def test_equal_to_flink_when_workers_are_killed(question):
    found, result = FlinkWorld(question, 2, phases(question), kills=True).answer()
    assert result.counts["worker-killed"] == 2
    assert result.counts["restart"] >= 2
    assert not (difference := differences(read(question.name)[1], found)), difference
