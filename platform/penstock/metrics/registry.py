"""The metrics of one subtask or process: counters, gauges, meters and time meters, on an injected clock.

Filled by `penstock.task` (one registry per subtask, used only by that subtask's thread) and read as a dictionary of
name -> value, which travels in `rpc.messages.WorkerMetrics`. Meters give a rate over the last complete interval, so
that reading does not change them.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Clock

_INTERVAL_MS = 1000.0
#: A rate over less time would be chance.
_LEAST_MS = 100.0


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        """Start at zero."""
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Add `amount`."""
        self.value += amount


class Gauge:
    """The latest value, or a function that returns it."""

    __slots__ = ("_read", "value")

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        """Read values from `read`, or without it from the last `set`."""
        self.value = 0.0
        self._read = read

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def get(self) -> float:
        """Return the current value."""
        return self.value if self._read is None else self._read()


class Meter:
    """Amount per second, over the last complete interval of at least one second; before the first, since the start."""

    __slots__ = ("_clock", "_rate", "_since_ms", "_sum")

    def __init__(self, clock: Clock) -> None:
        """Start the first interval."""
        self._clock = clock
        self._since_ms = clock.monotonic_ms()
        self._sum = 0.0
        #: None until the first interval is complete.
        self._rate: float | None = None

    def mark(self, amount: float = 1.0) -> None:
        """Count `amount` into the running interval."""
        self._sum += amount

    def rate(self) -> float:
        """Return the amount per second; closes the running interval if it has lasted a second."""
        elapsed = self._clock.monotonic_ms() - self._since_ms
        if elapsed >= _INTERVAL_MS:
            self._rate = self._sum * 1000.0 / elapsed
            self._since_ms += elapsed
            self._sum = 0.0
        if self._rate is None:
            return self._sum * 1000.0 / elapsed if elapsed >= _LEAST_MS else 0.0
        return self._rate


class StateTimes:
    """The division of a subtask's time among states (busy, idle, backPressured): milliseconds of each per second."""

    def __init__(self, clock: Clock, states: tuple[str, ...], initial: str) -> None:
        """Start in state `initial`.

        Each moment belongs to one of `states`, so the figures of an interval add up to 1000.
        """
        self._clock = clock
        self._state = initial
        self._entered_ms = clock.monotonic_ms()
        self._since_ms = self._entered_ms
        self._spent = dict.fromkeys(states, 0.0)
        self._rates = dict.fromkeys(states, 0.0)
        self._totals = dict.fromkeys(states, 0.0)

    def enter(self, state: str) -> None:
        """Count the time from now on as `state`; free if it is the present state."""
        if state == self._state:
            return
        self._account()
        self._state = state

    @property
    def state(self) -> str:
        """The present state; from any thread."""
        return self._state

    def per_second(self) -> dict[str, float]:
        """Return milliseconds per second of each state over the last complete interval."""
        self._account()
        elapsed = self._entered_ms - self._since_ms
        if elapsed >= _INTERVAL_MS:
            self._rates = {state: spent * 1000.0 / elapsed for state, spent in self._spent.items()}
            self._spent = dict.fromkeys(self._spent, 0.0)
            self._since_ms = self._entered_ms
        return self._rates

    def totals(self) -> dict[str, float]:
        """Return milliseconds of each state since the start."""
        self._account()
        return dict(self._totals)

    def _account(self) -> None:
        now = self._clock.monotonic_ms()
        self._spent[self._state] += now - self._entered_ms
        self._totals[self._state] += now - self._entered_ms
        self._entered_ms = now


class MetricGroup:
    """The named metrics of one owner; made on first use, read together."""

    def __init__(self, clock: Clock) -> None:
        """Use `clock` for all meters of the group."""
        self._clock = clock
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._meters: dict[str, Meter] = {}
        self._times: StateTimes | None = None

    def counter(self, name: str) -> Counter:
        """Return the counter of that name."""
        return self._counters.setdefault(name, Counter())

    def gauge(self, name: str, read: Callable[[], float] | None = None) -> Gauge:
        """Return the gauge of that name; `read` matters only the first time."""
        return self._gauges.setdefault(name, Gauge(read))

    def meter(self, name: str) -> Meter:
        """Return the meter of that name, which ends in `PerSecond` by Flink's convention."""
        if name not in self._meters:
            self._meters[name] = Meter(self._clock)
        return self._meters[name]

    def times(self, states: tuple[str, ...], initial: str) -> StateTimes:
        """Return the group's division of time, published as `<state>TimeMsPerSecond` and `accumulated...TimeMs`."""
        if self._times is None:
            self._times = StateTimes(self._clock, states, initial)
        return self._times

    def read(self) -> dict[str, float]:
        """Return all values by name."""
        values: dict[str, float] = {name: float(counter.value) for name, counter in self._counters.items()}
        values.update((name, float(gauge.get())) for name, gauge in self._gauges.items())
        values.update((name, meter.rate()) for name, meter in self._meters.items())
        if self._times is not None:
            for state, rate in self._times.per_second().items():
                values[f"{state}TimeMsPerSecond"] = rate
            for state, total in self._times.totals().items():
                values[f"accumulated{state[0].upper()}{state[1:]}TimeMs"] = total
        return values
