"""The log context of a worker: the subtask, and the operator that is running, for each log line.

Entered by `task.drive.subtask` at each step; read only when a line is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.logs import Fields
    from penstock.graph.deployment import TaskDeployment
    from penstock.task.chain.time_budget import TimeBudget

#: The upper bits of an attempt are the leader's generation; REST returns the lower ones too.
_ATTEMPT = 0xFFFF


class TaskScope:
    """The log context of one subtask."""

    def __init__(self, deployment: TaskDeployment, budget: TimeBudget) -> None:
        """Make a context; `budget` knows the running operator."""
        execution = deployment.execution
        self._budget = budget
        self._names = tuple(spec.name or spec.uid for spec in deployment.operators)
        self._fixed: dict[str, str | int] = {
            "job": deployment.job_id,
            "job_name": deployment.job_name,
            "subtask": execution.subtask,
            "attempt": execution.attempt & _ATTEMPT,
        }

    def fields(self) -> Fields:
        """Return job, operator, subtask and attempt; between two calls of operators all operators of the chain."""
        place = self._budget.place
        operator = self._names[place] if place < len(self._names) else " -> ".join(self._names)
        return {**self._fixed, "operator": operator}
