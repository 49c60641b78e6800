"""The executor on which Spark runs a TaskManager, and whether Spark decommissions it.

Used by `spark_cluster` once a second. PySpark has no public call for either, so the driver's JVM is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


class DecommissionWatch:
    """Finds the TaskManagers whose executor Spark decommissions; each runs as the one task of a Spark job group."""

    def __init__(self, context: SparkContext) -> None:
        """Start without known executors."""
        self._context = context
        #: Executor of each job group's task, once Spark has started it.
        self._executors: dict[str, str] = {}

    def is_leaving(self, group: str) -> bool:
        """Return whether Spark decommissions the executor of a job group's task.

        Raises:
            Py4JError: the driver's JVM does not answer.
        """
        executor = self._executors.get(group) or self._executor_of(group)
        if not executor:
            return False
        self._executors[group] = executor
        scheduler = self._context._jsc.sc().taskScheduler()  # noqa: SLF001
        return bool(scheduler.getExecutorDecommissionState(executor).isDefined())

    def _executor_of(self, group: str) -> str:
        """Return the executor of a group's task; empty while Spark has none for it."""
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()  # noqa: SLF001
        for job in tracker.getJobIdsForGroup(group):
            found = tracker.getJobInfo(job)
            for stage in found.stageIds if found is not None else ():
                tasks = store.taskList(stage, 0, 1)
                if not tasks.isEmpty():
                    return str(tasks.apply(0).executorId())
        return ""
