"""A seeded scheduler in virtual time: a heap of (time, tie-break, action); the simulation's only source of order.

Actions due at one instant run in an order drawn from the seed, so that nothing relies on it. After every action the
invariants are checked; a failure carries the seed and the last actions.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]


@dataclass(order=True)
class Scheduled:
    """One action at its time; `owner` lets a crash cancel all of a process's actions."""

    at_ms: float
    tie: float
    sequence: int
    action: Action = field(compare=False)
    label: str = field(compare=False)
    owner: str = field(compare=False)


class VirtualClock:
    """The clock every simulated process reads; only the scheduler moves it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self.elapsed_ms = 0.0

    def now_ms(self) -> int:
        return self._start_ms + int(self.elapsed_ms)

    def monotonic_ms(self) -> float:
        return self.elapsed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        msg = f"nothing may block in the simulation (sleep of {duration_ms} ms)"
        raise AssertionError(msg)


class SimulationError(AssertionError):
    """An invariant broke, or the run did not end."""


class Scheduler:
    """Runs actions one at a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.invariants: list[Callable[[], None]] = []
        self.steps = 0
        self.fingerprint = 0
        self._heap: list[Scheduled] = []
        self._sequence = 0
        self._dead: set[str] = set()
        self._recent: deque[str] = deque(maxlen=60)

    def at(self, delay_ms: float, label: str, action: Action, *, owner: str = "") -> None:
        """Run `action` after `delay_ms` of virtual time, unless `owner` has died by then."""
        self._sequence += 1
        due = self.clock.elapsed_ms + max(0.0, delay_ms)
        heapq.heappush(self._heap, Scheduled(due, self.random.random(), self._sequence, action, label, owner))

    def kill(self, owner: str) -> None:
        """Cancel everything `owner` (an incarnation, never reused) still had to do."""
        self._dead.add(owner)

    def is_dead(self, owner: str) -> bool:
        """Whether that incarnation was killed."""
        return owner in self._dead

    def run(self, until: Callable[[], bool], *, max_steps: int, max_ms: float) -> None:
        """Run until the condition holds.

        Raises:
            SimulationError: it did not within the limits, or nothing is left to do.
        """
        while not until():
            if not self._heap:
                self._fail("nothing is left to do")
            if self.steps >= max_steps or self.clock.elapsed_ms > max_ms:
                self._fail(f"did not end within {max_steps} steps and {max_ms} ms (at {self.clock.elapsed_ms:.0f} ms)")
            self._step(heapq.heappop(self._heap))

    def _step(self, due: Scheduled) -> None:
        if due.owner in self._dead:
            return
        self.clock.elapsed_ms = max(self.clock.elapsed_ms, due.at_ms)
        self.steps += 1
        self._recent.append(f"{due.at_ms:.1f} {due.owner} {due.label}")
        self.fingerprint = hash((self.fingerprint, round(due.at_ms * 1000), len(due.label), due.sequence))
        try:
            due.action()
            for invariant in self.invariants:
                invariant()
        except SimulationError:
            raise
        except Exception as error:
            msg = f"seed {self.seed}: {type(error).__name__}: {error}\n" + "\n".join(self._recent)
            raise SimulationError(msg) from error

    def _fail(self, text: str) -> None:
        raise SimulationError(f"seed {self.seed}: {text}\n" + "\n".join(self._recent))
