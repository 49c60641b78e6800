"""Whose words a line of a worker's log is: the subtask's, and of its operators the one that is at work.

Entered by `task.drive.subtask` at each step; read only when something is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.logs import Fields
    from penstock.graph.deployment import TaskDeployment
    from penstock.task.chain.time_budget import TimeBudget

#: Upper bits of an attempt are the leader's generation; REST tells the lower ones too.
_ATTEMPT = 0xFFFF


class TaskScope:
    """One subtask."""

    def __init__(self, deployment: TaskDeployment, budget: TimeBudget) -> None:
        """`budget` knows which operator is at work."""
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
        """Return job, operator, subtask and attempt; between two calls of operators all of the chain."""
        place = self._budget.place
        operator = self._names[place] if place < len(self._names) else " -> ".join(self._names)
        return {**self._fixed, "operator": operator}
