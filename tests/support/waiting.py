"""Waits of the tests: for a condition, never for a time.

One deadline serves all tests. It grows with the load of the machine, so that a busy machine makes a test slower and not
red. A wait that fails says what it waited for and what it found instead.
"""

import asyncio
import os
import time

#: Seconds a condition may take on a machine with one runnable process a core.
DEADLINE_S = 60.0
#: The deadline grows at most by this factor.
MOST_PATIENCE = 8.0
#: A wait asks less often the longer it takes: after this part of the time waited, and at least this often.
PART, SELDOM_S = 0.05, 0.25


def patience():
    """Return how many times longer than on a quiet machine work may take now: processes a core, from 1 to 8."""
    return min(MOST_PATIENCE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def wait_until(condition, what, *, seconds=DEADLINE_S, step=0.02):
    """Poll `condition` until it returns something true; return that.

    `what` names the condition; a callable is asked at the end, and says what was there instead. `seconds` is the
    deadline on a quiet machine, `step` the first pause.
    """
    pause = _pauses(what, seconds, step)
    while not (found := condition()):
        after = pause(found)
        time.sleep(after)
    return found


async def until(condition, what, *, seconds=DEADLINE_S, step=0.02):
    """Do what `wait_until` does, in a coroutine: other coroutines go on meanwhile."""
    pause = _pauses(what, seconds, step)
    while not (found := condition()):
        after = pause(found)
        await asyncio.sleep(after)
    return found


def _pauses(what, seconds, step):
    """Return a function of what was last seen: it raises once the deadline is over, and returns the next pause."""
    started = time.monotonic()

    def pause(found):
        waited = time.monotonic() - started
        if waited > seconds * patience():
            load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
            wanted = what() if callable(what) else what
            raise AssertionError(f"not within {waited:.0f} s (load {load}): {wanted}; last seen: {found!r}")
        return max(step, min(SELDOM_S, waited * PART))

    return pause
