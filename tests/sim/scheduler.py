"""A seeded scheduler in virtual time: a heap of (time, tie-break, action); the simulation's only source of order.

Actions due at one instant run in an order drawn from the seed, so that nothing relies on it. Every action has an
owner (one incarnation of a process): a kill makes its later actions vanish, a hold (SIGSTOP) keeps them back until it
is released. After every action the invariants are checked; a failure carries the seed and the last actions.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable

from tests.sim import fibers

Action = Callable[[], None]
#: (due, tie, sequence, action, label, owner).
Entry = tuple[float, float, int, Action, str, str]


class VirtualClock:
    """The clock every simulated process reads; only the scheduler moves it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self.elapsed_ms = 0.0

    def now_ms(self) -> int:
        return self._start_ms + int(self.elapsed_ms)

    def monotonic_ms(self) -> float:
        return self.elapsed_ms

    def cpu_ms(self) -> float:
        return self.elapsed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Leave a fiber for a while; anything else that sleeps is a fault of the engine."""
        fibers.pause(duration_ms, "sleep")


class SimulationError(AssertionError):
    """An invariant broke, or the run did not end."""


class Scheduler:
    """Runs actions one at a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        #: Called with the owner after every action.
        self.after: list[Callable[[str], None]] = []
        self.steps = 0
        self.fingerprint = 0
        self._heap: list[Entry] = []
        self._sequence = 0
        self._failure: SimulationError | None = None
        self._dead: set[str] = set()
        self._held: dict[str, list[Entry]] = {}
        #: What mattered, from the beginning.
        self.journal: list[str] = []
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=40)

    def at(self, delay_ms: float, label: str, action: Action, *, owner: str = "") -> None:
        """Run `action` after `delay_ms` of virtual time, unless `owner` has died by then."""
        self._sequence += 1
        due = self.clock.elapsed_ms + max(0.0, delay_ms)
        heapq.heappush(self._heap, (due, self.random.random(), self._sequence, action, label, owner))

    def kill(self, owner: str) -> None:
        """Cancel everything `owner` (an incarnation, never reused) still had to do."""
        self._dead.add(owner)
        self._held.pop(owner, None)

    def is_dead(self, owner: str) -> bool:
        """Whether that incarnation was killed."""
        return owner in self._dead

    def hold(self, owner: str) -> None:
        """Stop it where it is: nothing of it happens before `release`."""
        if owner not in self._dead:
            self._held.setdefault(owner, [])

    def is_held(self, owner: str) -> bool:
        """Whether it stands still."""
        return owner in self._held

    def release(self, owner: str) -> None:
        """Let it go on; what was due meanwhile happens now, in its order: a socket's contents stay a queue."""
        for place, (due, tie, sequence, action, label, who) in enumerate(sorted(self._held.pop(owner, []))):
            now = self.clock.elapsed_ms + place * 1e-6
            heapq.heappush(self._heap, (max(due, now), tie, sequence, action, label, who))

    def run(self, until: Callable[[], bool], *, max_steps: int, max_ms: float) -> None:
        """Run until the condition holds.

        Raises:
            SimulationError: it did not within the limits, or nothing is left to do.
        """
        while not until():
            if not self._heap:
                self.fail("nothing is left to do")
            if self.steps >= max_steps or self.clock.elapsed_ms > max_ms:
                self.fail(f"did not end within {max_steps} steps and {max_ms} ms (at {self.clock.elapsed_ms:.0f} ms)")
            self._step(heapq.heappop(self._heap))

    def note(self, text: str) -> None:
        """Put a line into the journal, which a failure shows as a whole."""
        self.journal.append(f"{self.clock.elapsed_ms:10.2f} {text}")

    def fail(self, text: str) -> None:
        """End the run as failed."""
        trace = "\n".join(f"{at:10.2f} {owner:24} {label}" for at, owner, label in self._recent)
        journal = "\n".join(
            [line for line in self.journal if "is not running" not in line and "request: stop" not in line][:200]
        )
        failure = SimulationError(f"seed {self.seed}: {text}\n\nWhat happened:\n{journal}\n\nThe last steps:\n{trace}")
        # The engine may catch what is raised inside of it: the first failure counts, whoever sees it.
        self._failure = self._failure or failure
        raise self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _step(self, due: Entry) -> None:
        at_ms, _tie, _sequence, action, label, owner = due
        if owner in self._dead:
            return
        held = self._held.get(owner)
        if held is not None:
            held.append(due)
            return
        self.clock.elapsed_ms = max(self.clock.elapsed_ms, at_ms)
        self.steps += 1
        self._recent.append((at_ms, owner, label))
        self.fingerprint = zlib.crc32(f"{at_ms:.3f} {owner} {label}".encode(), self.fingerprint)
        try:
            action()
            for check in self.after:
                check(owner)
            self._raise_failure()
        except SimulationError:
            raise
        except Exception as error:
            import traceback

            frames = "".join(traceback.format_exception(error)[-6:])
            self.fail(f"{type(error).__name__}: {error}\n{frames}")
