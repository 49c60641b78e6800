"""Every question that is asked of both engines."""

from __future__ import annotations

from tests.flink.all_questions import ALL
from tests.flink.question import Question
from tests.flink.row_questions import JOINS, ROWS
from tests.flink.stream_questions import STREAM_WINDOWS
from tests.flink.timer_questions import TIMERS
from tests.flink.trigger_questions import TRIGGERS
from tests.flink.window_questions import WINDOWS

QUESTIONS: tuple[Question, ...] = (*WINDOWS, *JOINS, *ROWS, *STREAM_WINDOWS, *TRIGGERS, *TIMERS, *ALL)
