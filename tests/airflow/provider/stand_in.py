"""What Airflow gives a task while it runs, without Airflow's processes; and a task run to its end by hand."""

import asyncio
from types import SimpleNamespace

from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import TriggerEvent

LIMIT_S = 60


class Instance:
    """One task instance: what it stores outlives its processes (`context()` is one process's)."""

    def __init__(self, task_id="task", run_id="run"):
        self.ids = {"dag_id": "dag", "run_id": run_id, "task_id": task_id, "map_index": -1, "try_number": 1}
        self.stored, self.pushed = {}, {}

    def context(self):
        store = SimpleNamespace(
            get=lambda key, default=None: self.stored.get(key, default), set=self.stored.__setitem__
        )
        ti = SimpleNamespace(**self.ids, xcom_push=lambda key, value: self.pushed.__setitem__(key, value))
        return {"ti": ti, "task_state_store": store, "outlet_events": {}}


def deferral(task, instance):
    """Run the task until it defers."""
    try:
        result = task.execute(instance.context())
    except TaskDeferred as deferred:
        return deferred
    raise AssertionError(f"it did not defer, but gave {result!r}")


def fired(deferred):
    """The event of a deferred task's trigger, made anew from what is stored of it, as a triggerer does."""
    path, arguments = deferred.trigger.serialize()
    module, _, kind = path.rpartition(".")
    trigger = getattr(__import__(module, fromlist=[kind]), kind)(**arguments)

    async def first():
        async for event in trigger.run():
            return event
        return None

    event = asyncio.run(asyncio.wait_for(first(), LIMIT_S))
    assert isinstance(event, TriggerEvent)
    return event.payload


def run(task, instance):
    """Run a task to its end, in a worker, a triggerer, and a worker again."""
    return finish(task, instance, deferral(task, instance))


def finish(task, instance, deferred):
    """Go on with a task that has deferred."""
    assert deferred.method_name == "execute_complete"
    return task.execute_complete(instance.context(), fired(deferred))
