"""A standby's probes of the leader: asks at each second tick, one question at a time, beside the looks at the lease.

Driven by `jobmanager.leadership`; `checkpoint.leader_probes` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.checkpoint.leader_probes import PROBE_TICKS, TICKS, ProbeWatch
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.rpc.probes import ProbeAnswer


class Prober(Protocol):
    """A connection to a leader, such as `rpc.probes.LeaderProber`."""

    async def ask(self, address: str, timeout_s: float) -> ProbeAnswer:
        """Return the answer of the leader at `host:port`. Raises PenstockError."""

    async def close(self) -> None:
        """End the connection."""


class LeaderProbing:
    """The probes of one process while it is a standby."""

    def __init__(self, prober: Prober, clock: Clock, log: Callable[[str], None]) -> None:
        """Prepare; `log` gets a line when a leader no longer answers."""
        self._prober, self._clock, self._log = prober, clock, log
        self._asking: asyncio.Task[ProbeAnswer] | None = None
        self._asked, self._asked_ms = "", 0.0
        self._reported = ""

    async def run(self, watch: ProbeWatch, address: Callable[[], str], ended: asyncio.Event) -> None:
        """Probe the leader at `address()`, if it is known, until `ended` is set."""
        ending = asyncio.create_task(ended.wait())
        try:
            while not ended.is_set():
                watch.ticked(self._clock.monotonic_ms())
                await self._ask(watch, address())
                awaited = {ending} if self._asking is None else {ending, self._asking}
                await asyncio.wait(awaited, timeout=watch.tick_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
                if self._asking is not None and self._asking.done():
                    self._take(watch, self._asking)
                    self._asking = None
        finally:
            ending.cancel()
            await self._end()
            await self._prober.close()

    async def _ask(self, watch: ProbeWatch, address: str) -> None:
        """Ask if it is time to; a question to an earlier leader ends."""
        if self._asking is not None and address != self._asked:
            await self._end()
        now_ms = self._clock.monotonic_ms()
        due = address != self._asked or now_ms - self._asked_ms >= PROBE_TICKS * watch.tick_ms
        if self._asking is None and address and due:
            self._asked, self._asked_ms = address, now_ms
            self._asking = asyncio.create_task(self._prober.ask(address, TICKS * watch.tick_ms / 1000))

    def _take(self, watch: ProbeWatch, asking: asyncio.Task[ProbeAnswer]) -> None:
        try:
            answer = asking.result()
        except PenstockError as error:
            if not self._reported:
                self._log(f"standby: {error}")
                self._reported = str(error)
            return
        lead, now_ms = (answer.generation, answer.renewals), self._clock.monotonic_ms()
        watch.answered(lead, answer.age_ms, self._asked_ms, now_ms)
        self._reported = ""

    async def _end(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait({asking})
