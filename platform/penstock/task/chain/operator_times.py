"""The time of a subtask by operator, and its log context, which names the running operator.

The chain reports the running operator; `task.drive.subtask_metrics` reads the times, log lines read the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.clock import Clock

if TYPE_CHECKING:
    from penstock.core.logs import Fields
    from penstock.graph.task_deployment import TaskDeployment

#: The index name for work on the outgoing edges: combining, splitting, encoding. No uid has this form.
OUTPUT = "(output)"
#: Interval of calls with the CPU clock.
SAMPLE_EVERY_MS = 5.0
_INTERVAL_MS = 1000.0


class OperatorTimes:
    """Busy and CPU time of each operator of a chain and of its edges."""

    def __init__(self, clock: Clock, uids: Sequence[str]) -> None:
        """Make a budget with one index per operator, in their order, and one for the outgoing edges."""
        self._clock = clock
        self._names = (*uids, OUTPUT)
        count = len(self._names)
        #: After the last index: time between calls, which is not reported.
        self._between = count
        self._busy = [0.0] * (count + 1)
        self._sampled_busy = [0.0] * (count + 1)
        self._sampled_cpu = [0.0] * (count + 1)
        self._index = count
        self._since_ms = 0.0
        self._sampling = False
        self._cpu_since_ms = 0.0
        self._next_sample_ms = 0.0
        self._read_ms = clock.monotonic_ms()
        self._read: list[tuple[float, float]] = [(0.0, 0.0)] * count
        self._rates: list[tuple[float, float]] = [(0.0, 0.0)] * count

    @property
    def output(self) -> int:
        """Index of the edges."""
        return len(self._names) - 1

    @property
    def index(self) -> int:
        """The index of the running operator, then of the edges, then of no operator."""
        return self._index

    @property
    def running(self) -> str:
        """The uid of the running operator, `OUTPUT` for the edges; empty if none runs. From any thread."""
        index = self._index
        return self._names[index] if index < len(self._names) else ""

    def begin(self, index: int) -> None:
        """Start a call of the chain at `index`."""
        self._index = index
        self._since_ms = self._clock.monotonic_ms()
        self._sampling = self._since_ms >= self._next_sample_ms
        if self._sampling:
            self._next_sample_ms = self._since_ms + SAMPLE_EVERY_MS
            self._cpu_since_ms = self._clock.cpu_ms()

    def enter(self, index: int) -> int:
        """Set `index` as running; return the former one, for the caller to restore afterwards."""
        before = self._index
        self._account()
        self._index = index
        return before

    def end(self) -> None:
        """End the call."""
        self._account()
        self._index = self._between
        self._sampling = False

    def read(self) -> dict[str, float]:
        """Return `operator/<uid>/<metric>`: times since the start, and per second over the last complete interval."""
        totals = [(self._cpu_of(index), self._busy[index]) for index in range(len(self._names))]
        now = self._clock.monotonic_ms()
        elapsed = now - self._read_ms
        if elapsed >= _INTERVAL_MS:
            self._rates = [
                (max(0.0, cpu - old_cpu) * 1000.0 / elapsed, (busy - old_busy) * 1000.0 / elapsed)
                for (cpu, busy), (old_cpu, old_busy) in zip(totals, self._read, strict=True)
            ]
            self._read, self._read_ms = totals, now
        values: dict[str, float] = {}
        for name, (cpu, busy), (cpu_rate, busy_rate) in zip(self._names, totals, self._rates, strict=True):
            values[f"operator/{name}/accumulatedCpuTimeMs"] = cpu
            values[f"operator/{name}/accumulatedBusyTimeMs"] = busy
            values[f"operator/{name}/cpuTimeMsPerSecond"] = cpu_rate
            values[f"operator/{name}/busyTimeMsPerSecond"] = busy_rate
        return values

    def _cpu_of(self, index: int) -> float:
        sampled = self._sampled_busy[index]
        return self._busy[index] * self._sampled_cpu[index] / sampled if sampled else 0.0

    def _account(self) -> None:
        now = self._clock.monotonic_ms()
        elapsed = now - self._since_ms
        self._since_ms = now
        self._busy[self._index] += elapsed
        if self._sampling:
            cpu = self._clock.cpu_ms()
            self._sampled_busy[self._index] += elapsed
            self._sampled_cpu[self._index] += cpu - self._cpu_since_ms
            self._cpu_since_ms = cpu


#: The upper bits of an attempt are the leader's generation; REST returns the lower ones too.
_ATTEMPT = 0xFFFF


class TaskScope:
    """The log context of one subtask."""

    def __init__(self, deployment: TaskDeployment, budget: OperatorTimes) -> None:
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
        index = self._budget.index
        operator = self._names[index] if index < len(self._names) else " -> ".join(self._names)
        return {**self._fixed, "operator": operator}
