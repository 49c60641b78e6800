"""Where the time of a subtask goes, operator by operator.

The chain says which operator is at work (`begin`, `enter`, `end`); each moment of a call belongs to exactly one of
them, an operator's own time without that of those it feeds. The wall clock is read at every change, which costs next to
nothing; the thread's CPU clock, a system call, only in some calls, whose ratio holds for the others. Owned by one
subtask's thread; read by `task.drive.subtask_metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.clock import Clock

#: Place of what the edges behind the chain do: combine, split, encode. No uid looks like this.
OUTPUT = "(output)"
#: The CPU clock is read in one call this often.
SAMPLE_EVERY_MS = 5.0
_INTERVAL_MS = 1000.0


class TimeBudget:
    """Busy and CPU time of each place of a chain."""

    def __init__(self, clock: Clock, uids: Sequence[str]) -> None:
        """One place an operator, in their order, and one for the edges behind."""
        self._clock = clock
        self._names = (*uids, OUTPUT)
        places = len(self._names)
        #: Behind the last place: between calls, which nobody asks for.
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
        """Place of the edges."""
        return len(self._names) - 1

    @property
    def place(self) -> int:
        """Who is at work: an operator, by its place, then the edges, then nobody."""
        return self._place

    def begin(self, place: int) -> None:
        """The chain is called at `place`."""
        self._place = place
        self._since_ms = self._clock.monotonic_ms()
        self._sampling = self._since_ms >= self._next_sample_ms
        if self._sampling:
            self._next_sample_ms = self._since_ms + SAMPLE_EVERY_MS
            self._cpu_since_ms = self._clock.cpu_ms()

    def enter(self, place: int) -> int:
        """`place` is at work from now on; return which was before, to be entered again when it is done."""
        before = self._place
        self._book()
        self._place = place
        return before

    def end(self) -> None:
        """The call has returned."""
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
