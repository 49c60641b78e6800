"""A listener in Airflow's API server: a user has ended a task while it waited deferred.

Airflow calls `on_kill` of a trigger only if a triggerer has already taken it. A task that is ended before that, in the
second or so after its deferral, leaves an unclaimed trigger. So the API server, which handles the user's request, does
the work of the trigger. Both may do it; the action is idempotent. Loaded by every process of Airflow through the entry
point in pyproject.toml, so it imports other modules of penstock only when needed.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.exceptions import AirflowException

_LOG = logging.getLogger(__name__)
_TRIGGER = "penstock_airflow.triggers.job.JobTrigger"


class EndedByUser:
    """A listener that Airflow calls for every task instance that ends, in the process that ends it."""

    @hookimpl  # type: ignore[untyped-decorator] # as all of Airflow here
    def on_task_instance_failed(self, task_instance: Any) -> None:
        """Handle the end of a task that may have waited for a job."""
        _end(task_instance)

    @hookimpl  # type: ignore[untyped-decorator] # as all of Airflow here
    def on_task_instance_success(self, task_instance: Any) -> None:
        """Handle the end of a task that may have waited for a job."""
        _end(task_instance)


class PenstockPlugin(AirflowPlugin):
    """Names the listener to Airflow."""

    name = "penstock"
    listeners = [EndedByUser()]  # noqa: RUF012 - as Airflow declares it


def _end(task_instance: Any) -> None:
    """Start the action of the task instance's trigger, if it is a trigger of penstock.

    A task that ends by itself has none: a worker's has no such attribute, and a resumed one has lost it.
    """
    trigger = getattr(task_instance, "trigger", None)
    if trigger is None or trigger.classpath != _TRIGGER or not trigger.kwargs.get("when_killed"):
        return
    # in a thread: the user's request holds a transaction, and a cluster may not answer at once
    given = (str(trigger.kwargs["penstock_conn_id"]), dict(trigger.kwargs["when_killed"]))
    threading.Thread(target=_do, args=given, name="penstock-ended", daemon=True).start()


def _do(penstock_conn_id: str, when_killed: dict[str, Any]) -> None:
    from penstock.core.clock import SystemClock
    from penstock.core.errors import PenstockError
    from penstock_airflow import kill_actions
    from penstock_airflow.hooks.penstock import PenstockHook

    action = kill_actions.decoded(when_killed)
    if action is None:
        return
    try:
        PenstockHook(penstock_conn_id).run(lambda client: action.do(client, SystemClock(), kill_actions.PATIENT_MS))
    except (PenstockError, AirflowException):
        _LOG.exception("a user ended a waiting task, but the action %s failed", action)
    else:
        _LOG.info("a user ended a waiting task: %s", action)
