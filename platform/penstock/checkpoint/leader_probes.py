"""Whether the leader answers the probes of a standby. `leader_lease.LeaseWatch` decides with it; pure.

A suspended process accepts connections, so only an answer counts. Silence alone proves nothing: the path may be broken.
All times are monotonic milliseconds of the standby.
"""

from __future__ import annotations

from collections import deque

#: Ticks in the lifetime of a lease: the unit of all waits here.
TICKS = 24
#: Ticks from one probe to the next, and the shortest silence that counts.
PROBE_TICKS = 2
_LEAST_TICKS = 5
#: A standby whose tick is later than this was suspended or is overloaded.
_LATE_TICKS = 2.5
#: A leader that has been slow may be slow again: silence lasts several of the slowest recent answers.
_SLOWEST = 4
_RECENT = 300
#: How slow a leader can be is not known before so many answers; until then only its lease decides.
LEAST_ANSWERS = TICKS // PROBE_TICKS


class ProbeWatch:
    """The answers of one leader after another."""

    def __init__(self, ttl_ms: int, least_answers: int = LEAST_ANSWERS) -> None:
        """Start without an answer; `ttl_ms` is the lifetime of a lease."""
        self._least_answers = least_answers
        self.tick_ms = ttl_ms / TICKS
        #: The generation that has answered; 0: none has.
        self._generation = 0
        self._renewals = 0
        self._renewed_ms = 0.0
        #: Silence counts from here: the last answer, or the last time this process did not run.
        self._since_ms = 0.0
        self._ticked_ms = 0.0
        self._took_ms: deque[float] = deque(maxlen=_RECENT)
        #: The leader has renewed its lease during its silence: the path to it is broken.
        self._disproved = False

    def ticked(self, now_ms: float) -> None:
        """Note that this process runs; called each `tick_ms`. After a late tick silence counts from now."""
        if now_ms - self._ticked_ms > _LATE_TICKS * self.tick_ms:
            self._since_ms = max(self._since_ms, now_ms)
        self._ticked_ms = now_ms

    def answered(self, lead: tuple[int, int], age_ms: float, asked_ms: float, answered_ms: float) -> None:
        """Take an answer: the leader's generation and count of renewals, and how long ago the last one was."""
        if lead[0] != self._generation:
            self._took_ms.clear()
        self._generation, self._renewals = lead
        self._renewed_ms = answered_ms - age_ms
        self._took_ms.append(answered_ms - asked_ms)
        self._since_ms, self._disproved = max(self._since_ms, answered_ms), False

    def silent(self, generation: int, at_ms: float) -> bool:
        """Return whether the leader of `generation` has answered before and no longer does."""
        return self._suspect(generation, at_ms, self._patience_ms)

    def suspect(self, generation: int, at_ms: float) -> bool:
        """Return whether an answer is late: the lease is worth a look."""
        return self._suspect(generation, at_ms, self._patience_ms - PROBE_TICKS * self.tick_ms)

    def disprove(self) -> None:
        """Ignore the silence until the next answer: the leader has renewed its lease meanwhile."""
        self._disproved = True

    def renewed_ms(self, generation: int, renewals: int, seen_ms: float) -> float:
        """Return the latest time at which the leader can have made this renewal, which was read at `seen_ms`."""
        if generation != self._generation or renewals > self._renewals:
            return seen_ms
        return self._renewed_ms if renewals < self._renewals else min(seen_ms, self._renewed_ms)

    @property
    def silent_ms(self) -> float:
        """When the silence since the last answer is long enough."""
        return self._since_ms + self._patience_ms

    @property
    def _patience_ms(self) -> float:
        slowest = _SLOWEST * max(self._took_ms, default=0.0)
        return max(_LEAST_TICKS * self.tick_ms, PROBE_TICKS * self.tick_ms + slowest)

    def _suspect(self, generation: int, at_ms: float, patience_ms: float) -> bool:
        if generation != self._generation or len(self._took_ms) < self._least_answers or self._disproved:
            return False
        # without a tick since, this process itself may have been suspended
        runs = at_ms - self._ticked_ms <= _LATE_TICKS * self.tick_ms
        return runs and at_ms - self._since_ms >= patience_ms
