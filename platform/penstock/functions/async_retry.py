"""Retries of asynchronous functions: which calls are repeated, and after which delay; Flink's retry strategies.

`ps.AsyncRetryStrategy` is passed to `.map_async(..., retry=...)`; workers call `Retrying` in place of the function. A
row that waits for its next attempt counts against the capacity and the time-out, as a running call does. A checkpoint
contains its input row, and after a restore its attempts start again from the first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_HOOKS = ("open", "close", "timeout")


@dataclass(frozen=True, slots=True)
class AsyncRetryStrategy:
    """Which calls are repeated, how often, and when; made by `fixed_delay` or `exponential_backoff`."""

    #: Attempts after the first.
    attempts: int
    delay_ms: int
    max_delay_ms: int
    multiplier: float
    #: Functions that decide, for an error and for a result, on another attempt.
    on_exception: Callable[[Exception], bool]
    on_result: Callable[[Any], bool]

    @classmethod
    def fixed_delay(
        cls,
        attempts: int,
        delay: str | float,
        *,
        on_exception: Callable[[Exception], bool] | None = None,
        on_result: Callable[[Any], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Repeat a call up to `attempts` times, always after `delay` (`"1s"`, or seconds).

        `on_exception` selects the errors to repeat on, by default all; `on_result` the results, by default none.
        """
        delay_ms = parse_duration_ms(delay, "delay between attempts")
        return _checked(cls(attempts, delay_ms, delay_ms, 1.0, on_exception or _always, on_result or _never))

    @classmethod
    def exponential_backoff(
        cls,
        attempts: int,
        delay: tuple[str | float, str | float],
        *,
        multiplier: float = 2.0,
        on_exception: Callable[[Exception], bool] | None = None,
        on_result: Callable[[Any], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Repeat a call up to `attempts` times, after delays that grow by `multiplier`; `delay`: first and longest one.

        `on_exception` and `on_result` as for `fixed_delay`.
        """
        first, longest = (parse_duration_ms(part, "delay between attempts") for part in delay)
        return _checked(cls(attempts, first, longest, multiplier, on_exception or _always, on_result or _never))

    def delay_after_ms(self, attempt: int) -> float | None:
        """Return the delay between this attempt (the first is 1) and the next; None: there is no next one."""
        if attempt > self.attempts:
            return None
        if self.multiplier == 1.0:
            return self.delay_ms
        delay = float(self.delay_ms)
        for _ in range(attempt - 1):
            delay = min(delay * self.multiplier, self.max_delay_ms)
            if delay == self.max_delay_ms:
                break
        return min(delay, self.max_delay_ms)


class Retrying:
    """A coroutine function that repeats calls of another one according to a strategy."""

    def __init__(self, function: Callable[[Any], Awaitable[Any]], strategy: AsyncRetryStrategy) -> None:
        """Wrap `function`; its `open`, `close` and `timeout` hooks are kept."""
        self._function = function
        self._strategy = strategy
        for name in _HOOKS:
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    async def __call__(self, row: Any) -> Any:
        """Return the first accepted result, or the result or error of the last attempt."""
        strategy, attempt = self._strategy, 1
        while True:
            delay = strategy.delay_after_ms(attempt)
            try:
                result = await self._function(row)
            except Exception as error:
                if delay is None or not strategy.on_exception(error):
                    raise
            else:
                if delay is None or not strategy.on_result(result):
                    return result
            await asyncio.sleep((delay or 0) / 1000)
            attempt += 1


def _checked(strategy: AsyncRetryStrategy) -> AsyncRetryStrategy:
    delays = 0 <= strategy.delay_ms <= strategy.max_delay_ms
    if strategy.attempts < 1 or not delays or strategy.multiplier < 1:
        msg = (
            f"a retry strategy of {strategy.attempts} attempts, from {strategy.delay_ms} to {strategy.max_delay_ms} ms"
            f" times {strategy.multiplier:g}, is not possible"
        )
        raise GraphError(msg, hint="write for example ps.AsyncRetryStrategy.fixed_delay(3, '1s')")
    return strategy


def _always(error: Exception) -> bool:
    del error
    return True


def _never(result: Any) -> bool:
    del result
    return False
