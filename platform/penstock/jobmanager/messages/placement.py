"""Assigns subtasks to slots; pure. A slot holds at most one subtask of each vertex of its sharing group.

Used by `jobmanager.deploy.deployment` when it has its slots; `graph.execution_graph` makes the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.graph.job_graph import JobGraph, slots_of


class Slot(msgspec.Struct, frozen=True, order=True):
    """A slot of a TaskManager."""

    taskmanager_id: str
    index: int
    host: str = ""


def place(graph: JobGraph, workers: Sequence[str]) -> dict[tuple[str, int], str]:
    """Return the worker of every subtask: `workers[i]` gets the subtasks of the job's i-th slot.

    Raises:
        ValueError: there are fewer workers than slots (a bug of the caller).
    """
    needs = slots_of(graph)
    if len(workers) < len(needs):
        msg = f"{len(workers)} workers for {len(needs)} slots"
        raise ValueError(msg)
    return {where: worker for need, worker in zip(needs, workers, strict=False) for where in need.subtasks}
