"""What Airflow's API server tells us: a user has ended a task while it waited deferred.

Airflow tells a trigger of that (`on_kill`) only when a triggerer has taken it already. A task that is ended before, in
the second or so after it has deferred, leaves its trigger to nobody: so the API server, which the user has asked, does
what the trigger would. Both may come to it; what is done is the same done twice. Loaded by every process of Airflow,
through the entry point in pyproject.toml, so it imports nothing of ours before it is needed.
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
    """A listener: Airflow calls it for every task instance that ends, in the process that ends it."""

    @hookimpl  # type: ignore[untyped-decorator] # as all of Airflow here
    def on_task_instance_failed(self, task_instance: Any) -> None:
        """Look whether it waited for us."""
        _end(task_instance)

    @hookimpl  # type: ignore[untyped-decorator] # as all of Airflow here
    def on_task_instance_success(self, task_instance: Any) -> None:
        """Look whether it waited for us."""
        _end(task_instance)


class PenstockPlugin(AirflowPlugin):
    """Names the listener to Airflow."""

    name = "penstock"
    listeners = [EndedByUser()]  # noqa: RUF012 - as Airflow declares it


def _end(task_instance: Any) -> None:
    """Begin what the task instance's trigger says is to be done, if it is one of ours.

    A task that ends by itself has none: a worker's has no such attribute, one that has been resumed has lost it.
    """
    trigger = getattr(task_instance, "trigger", None)
    if trigger is None or trigger.classpath != _TRIGGER or not trigger.kwargs.get("when_killed"):
        return
    # a thread of its own: the request of the user holds a transaction, and a cluster may not answer at once
    given = (str(trigger.kwargs["penstock_conn_id"]), dict(trigger.kwargs["when_killed"]))
    threading.Thread(target=_do, args=given, name="penstock-ended", daemon=True).start()


def _do(penstock_conn_id: str, when_killed: dict[str, Any]) -> None:
    from penstock.core.clock import SystemClock
    from penstock.core.errors import PenstockError
    from penstock_airflow import deeds
    from penstock_airflow.hooks.penstock import PenstockHook

    deed = deeds.decoded(when_killed)
    if deed is None:
        return
    try:
        PenstockHook(penstock_conn_id).run(lambda client: deed.do(client, SystemClock(), deeds.PATIENT_MS))
    except (PenstockError, AirflowException):
        _LOG.exception("a user has ended a task that waited, and %s was not done", deed)
    else:
        _LOG.info("a user has ended a task that waited: %s", deed)
