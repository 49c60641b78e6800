"""Every question that is asked of both engines."""

from __future__ import annotations

from tests.flink.question import Question
from tests.flink.row_questions import JOINS, ROWS
from tests.flink.window_questions import WINDOWS

QUESTIONS: tuple[Question, ...] = (*WINDOWS, *JOINS, *ROWS)
