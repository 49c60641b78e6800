"""`/penstock/jobs/:id/budget`: the time that each operator of a job takes, summed over its subtasks.

Based on the metrics `operator/<uid>/...` that `penstock.task` reports. CPU time is that of the subtasks' threads. A
task's work around its operators (reading input, decoding, aligning barriers) is the rest of its busy time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.jobmanager.messages.views import JobDetail, VertexView

#: The output edges of a chain, with the name that `penstock.task` uses.
_OUTPUT = "(output)"


def budget(detail: JobDetail) -> dict[str, Any]:
    """Return the vertices in graph order, each with its operators' times since the start and per second."""
    vertices = [_vertex(vertex) for vertex in detail.vertices]
    total = sum(operator["cpu-ms"] for vertex in vertices for operator in vertex["operators"])
    for vertex in vertices:
        for operator in vertex["operators"]:
            operator["share"] = round(operator["cpu-ms"] / total, 4) if total else 0.0
    return {"jid": detail.summary.job_id, "name": detail.summary.name, "cpu-ms": round(total, 1), "vertices": vertices}


def _vertex(vertex: VertexView) -> dict[str, Any]:
    metrics = [subtask.metrics for subtask in vertex.subtasks]

    def total(name: str) -> float:
        return round(sum(values.get(name, 0.0) for values in metrics), 1)

    def row(uid: str, name: str, kind: str) -> dict[str, Any]:
        return {
            "uid": uid,
            "name": name,
            "kind": kind,
            "cpu-ms": total(f"operator/{uid}/accumulatedCpuTimeMs"),
            "busy-ms": total(f"operator/{uid}/accumulatedBusyTimeMs"),
            "cpu-ms-per-second": total(f"operator/{uid}/cpuTimeMsPerSecond"),
            "busy-ms-per-second": total(f"operator/{uid}/busyTimeMsPerSecond"),
        }

    operators = [row(o.uid, o.name, o.kind) for o in vertex.operators] + [row(_OUTPUT, "combine, split, send", "")]
    busy = total("accumulatedBusyTimeMs")
    rest = max(0.0, busy - sum(operator["busy-ms"] for operator in operators))
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "busy-ms": busy,
        "other-busy-ms": round(rest, 1),
        "operators": operators,
    }
