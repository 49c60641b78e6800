"""The time of a subtask by operator.

The chain reports the running operator (`begin`, `enter`, `end`); each moment of a call belongs to exactly one of them,
so an operator's time excludes that of the operators it feeds. The wall clock is read at every change, at negligible
cost; the thread's CPU clock, a system call, only in some calls, whose ratio is applied to the others. Owned by one
subtask's thread; read by `task.drive.subtask_metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.clock import Clock

#: The index name for work on the outgoing edges: combining, splitting, encoding. No uid has this form.
OUTPUT = "(output)"
#: Interval of calls with the CPU clock.
SAMPLE_EVERY_MS = 5.0
_INTERVAL_MS = 1000.0


class TimeBudget:
    """Busy and CPU time of each operator of a chain and of its edges."""

    def __init__(self, clock: Clock, uids: Sequence[str]) -> None:
        """Make a budget with one index per operator, in their order, and one for the outgoing edges."""
        self._clock = clock
        self._names = (*uids, OUTPUT)
        places = len(self._names)
        #: After the last index: time between calls, which is not reported.
        self._between = places
        self._busy = [0.0] * (places + 1)
        self._sampled_busy = [0.0] * (places + 1)
        self._sampled_cpu = [0.0] * (places + 1)
        self._place = places
        self._since_ms = 0.0
        self._sampling = False
        self._cpu_since_ms = 0.0
        self._next_sample_ms = 0.0
        self._read_ms = clock.monotonic_ms()
        self._read: list[tuple[float, float]] = [(0.0, 0.0)] * places
        self._rates: list[tuple[float, float]] = [(0.0, 0.0)] * places

    @property
    def output(self) -> int:
        """Index of the edges."""
        return len(self._names) - 1

    @property
    def place(self) -> int:
        """The index of the running operator, then of the edges, then of no operator."""
        return self._place

    def begin(self, place: int) -> None:
        """Start a call of the chain at `place`."""
        self._place = place
        self._since_ms = self._clock.monotonic_ms()
        self._sampling = self._since_ms >= self._next_sample_ms
        if self._sampling:
            self._next_sample_ms = self._since_ms + SAMPLE_EVERY_MS
            self._cpu_since_ms = self._clock.cpu_ms()

    def enter(self, place: int) -> int:
        """Set `place` as running; return the former one, for the caller to restore afterwards."""
        before = self._place
        self._book()
        self._place = place
        return before

    def end(self) -> None:
        """End the call."""
        self._book()
        self._place = self._between
        self._sampling = False

    def read(self) -> dict[str, float]:
        """Return `operator/<uid>/<metric>`: times since the start, and per second over the last complete interval."""
        totals = [(self._cpu_of(place), self._busy[place]) for place in range(len(self._names))]
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

    def _cpu_of(self, place: int) -> float:
        sampled = self._sampled_busy[place]
        return self._busy[place] * self._sampled_cpu[place] / sampled if sampled else 0.0

    def _book(self) -> None:
        now = self._clock.monotonic_ms()
        elapsed = now - self._since_ms
        self._since_ms = now
        self._busy[self._place] += elapsed
        if self._sampling:
            cpu = self._clock.cpu_ms()
            self._sampled_busy[self._place] += elapsed
            self._sampled_cpu[self._place] += cpu - self._cpu_since_ms
            self._cpu_since_ms = cpu
