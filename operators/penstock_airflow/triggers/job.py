"""The trigger of every deferred task: polls a condition until it is decided or the time limit is reached.

Its only state is its arguments, so a restarted triggerer continues with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock_airflow import kill_actions
from penstock_airflow.conditions import Answer, Condition, decoded
from penstock_airflow.hooks.penstock import PenstockHook

#: A trigger fires after this many poll intervals at the earliest. The scheduler fails a task that runs again before it
#: has handled the end of the process that deferred (apache/airflow issues 66374, 67287 and 72716).
_LEAST_POLLS = 2.5


class JobTrigger(BaseTrigger):
    """Fires once, with an `Answer` as JSON.

    `deadline_ms` is wall-clock time; 0: none. `when_killed` is the action when a user ends the waiting task (marked
    failed or succeeded, cleared), from `kill_actions.encoded`; empty: none.
    """

    def __init__(
        self,
        *,
        penstock_conn_id: str,
        question: dict[str, Any],
        poll_seconds: float,
        deadline_ms: int = 0,
        when_killed: dict[str, Any] | None = None,
    ) -> None:
        """Prepare; nothing is sent."""
        super().__init__()
        self.penstock_conn_id = penstock_conn_id
        self.question = question
        self.poll_seconds = poll_seconds
        self.deadline_ms = deadline_ms
        self.when_killed = when_killed or {}
        self.clock: Clock = SystemClock()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which the triggerer rebuilds it."""
        names = ("penstock_conn_id", "question", "poll_seconds", "deadline_ms", "when_killed")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an answer."""
        hook = PenstockHook(self.penstock_conn_id)
        question = decoded(self.question)
        said, begun_ms = "", self.clock.monotonic_ms()
        while True:
            answer = await ask(hook, question)
            if answer.kind != "wait":
                break
            if answer.text != said:
                said = answer.text
                self.log.info("%s", said)
            if self.deadline_ms and self.clock.now_ms() >= self.deadline_ms:
                answer = Answer(kind="timeout", text=f"time-out: {said}")
                break
            await asyncio.sleep(self.poll_seconds)
        age_s = (self.clock.monotonic_ms() - begun_ms) / 1000
        await asyncio.sleep(max(0.0, _LEAST_POLLS * self.poll_seconds - age_s))
        yield TriggerEvent(msgspec.to_builtins(answer))

    async def on_kill(self) -> None:
        """Handle that a user has ended the task."""
        action = kill_actions.decoded(self.when_killed)
        if action is not None:
            self.log.info("the task was ended: %s", action)
            await PenstockHook(self.penstock_conn_id).arun(
                lambda client: action.do(client, self.clock, kill_actions.PATIENT_MS)
            )


async def ask(hook: PenstockHook, question: Condition) -> Answer:
    """Return the answer; a request that fails because the JobManager restarts counts as wait."""
    try:
        return await hook.arun(question.ask)
    except PenstockError as error:
        return unanswered(error)


def unanswered(error: PenstockError) -> Answer:
    """Return the answer for a failed request: only a refusal of the cluster is final."""
    if isinstance(error, (NotFoundError, UsageError)):
        return Answer(kind="failed", text=str(error))
    return Answer(kind="wait", text=str(error))
