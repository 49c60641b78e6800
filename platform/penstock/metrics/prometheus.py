"""Prometheus text of metric dictionaries, with the names of Flink's Prometheus reporter.

Called by the JobManager's REST server and by the TaskManager for `/metrics`; the dictionaries come from
`WorkerMetrics`. Existing Flink dashboards find their metrics under the same names and labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Flink's scopes: prefixes for metrics of a subtask, an operator, a TaskManager and a JobManager.
TASK_SCOPE = "flink_taskmanager_job_task"
OPERATOR_SCOPE = "flink_taskmanager_job_task_operator"
TASKMANAGER_SCOPE = "flink_taskmanager"
JOBMANAGER_SCOPE = "flink_jobmanager"
JOB_SCOPE = "flink_jobmanager_job"

CONTENT_TYPE = "text/plain; version=0.0.4"
_PROCESS = (
    ("process_cpu_seconds_total", "Status.JVM.CPU.Time", 1e-9),
    ("process_resident_memory_bytes", "Status.JVM.Memory.Heap.Committed", 1.0),
    ("process_threads", "Status.JVM.Threads.Count", 1.0),
)
#: `operator/<uid>/<metric>`: a metric of one operator of a subtask's chain.
_OPERATOR = "operator/"
_UNSAFE = re.compile(r"[^a-zA-Z0-9_:]")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric with its labels."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def task_samples(
    tasks: Mapping[str, Mapping[str, float]], labels: Mapping[str, str], vertex_names: Mapping[str, str] | None = None
) -> list[Sample]:
    """Return samples of `WorkerMetrics.tasks` (`<vertex>/<subtask>` -> name -> value); `labels` name job and host."""
    samples: list[Sample] = []
    for task, values in tasks.items():
        vertex, _, subtask = task.rpartition("/")
        own = {
            **labels,
            "task_id": vertex,
            "task_name": (vertex_names or {}).get(vertex, vertex),
            "subtask_index": subtask,
        }
        samples.extend(_samples(TASK_SCOPE, {n: v for n, v in values.items() if not n.startswith(_OPERATOR)}, own))
        for name, value in values.items():
            if name.startswith(_OPERATOR):
                _, operator, metric = name.split("/")
                samples.extend(_samples(OPERATOR_SCOPE, {metric: value}, {**own, "operator_name": operator}))
    return samples


def scope_samples(scope: str, values: Mapping[str, float], labels: Mapping[str, str]) -> list[Sample]:
    """Return samples of one process's or job's values under `scope`."""
    return list(_samples(scope, values, labels))


def process_samples(values: Mapping[str, float], labels: Mapping[str, str]) -> list[Sample]:
    """Return a process's figures (`metrics.process`) under the names common to Prometheus client libraries."""
    pairs = tuple(sorted(labels.items()))
    return [Sample(name, values[key] * scale, pairs) for name, key, scale in _PROCESS if key in values]


def render(samples: Iterable[Sample]) -> str:
    """Return the exposition text: samples grouped by name under one TYPE line each (all gauges, as Flink has them)."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name in sorted(by_name):
        lines.append(f"# TYPE {name} gauge")
        for sample in by_name[name]:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels)
            lines.append(f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}")
    return "\n".join(lines) + "\n" if lines else ""


def _samples(scope: str, values: Mapping[str, float], labels: Mapping[str, str]) -> Iterable[Sample]:
    pairs = tuple(sorted(labels.items()))
    for name, value in values.items():
        yield Sample(f"{scope}_{_UNSAFE.sub('_', name)}", value, pairs)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
