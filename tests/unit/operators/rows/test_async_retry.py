"""Retry strategies: delays, what calls for another attempt, numbers that make no sense."""

import asyncio
import pickle

import pytest

from penstock.core.errors import GraphError
from penstock.functions.async_retry import AsyncRetryStrategy, Retrying


def delays(strategy):
    found, attempt = [], 1
    while (delay := strategy.delay_after_ms(attempt)) is not None:
        found.append(delay)
        attempt += 1
    return found


def test_a_fixed_delay_stands_between_all_attempts():
    assert delays(AsyncRetryStrategy.fixed_delay(3, "2s")) == [2000, 2000, 2000]


def test_a_growing_delay_stops_growing_at_the_longest():
    strategy = AsyncRetryStrategy.exponential_backoff(5, ("100ms", "1s"), multiplier=3)
    assert delays(strategy) == [100, 300, 900, 1000, 1000]
    assert AsyncRetryStrategy.exponential_backoff(10_000, (1, 60)).delay_after_ms(9_999) == 60_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: AsyncRetryStrategy.fixed_delay(0, "1s"),
        lambda: AsyncRetryStrategy.fixed_delay(1, -1),
        lambda: AsyncRetryStrategy.exponential_backoff(1, ("2s", "1s")),
        lambda: AsyncRetryStrategy.exponential_backoff(1, ("1s", "2s"), multiplier=0.5),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make):
    with pytest.raises(GraphError, match="not possible") as raised:
        make()
    assert "AsyncRetryStrategy" in raised.value.hint


class Answers:
    """Gives, or raises, one thing after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def __call__(self, row):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(answers, **wanted):
    strategy = AsyncRetryStrategy.fixed_delay(2, 0, **wanted)
    return asyncio.run(Retrying(answers, strategy)("row"))


def test_results_may_call_for_another_attempt_too_and_the_last_one_counts():
    answers = Answers(None, None, None, 4)
    assert ask(answers, on_result=lambda result: result is None) is None
    assert answers.answers == [4]
    assert ask(Answers(None, 2, 3), on_result=lambda result: result is None) == 2


def test_only_errors_that_are_named_are_asked_about_again():
    named = lambda error: isinstance(error, ConnectionError)
    assert ask(Answers(ConnectionError(), 2), on_exception=named) == 2
    answers = Answers(ConnectionError(), ValueError("no"), 3)
    with pytest.raises(ValueError, match="no"):
        ask(answers, on_exception=named)
    assert answers.answers == [3]


def test_hooks_stay_those_of_the_function_across_processes():
    class_ = type(pickle.loads(pickle.dumps(Retrying(Hooked(), AsyncRetryStrategy.fixed_delay(1, 1)))).timeout.__self__)
    assert class_ is Hooked
    assert not hasattr(Retrying(Answers(), AsyncRetryStrategy.fixed_delay(1, 1)), "timeout")


class Hooked:
    """Has one hook."""

    async def __call__(self, row):
        return row

    def timeout(self, row):
        return row
