"""Calls that take long: told while they go on, with what they do, and no other."""

import pytest

from penstock.core.clock import ManualClock
from penstock.task.chain.background import SLOW_MS, SlowCalls


def test_a_call_is_slow_after_a_while_and_until_it_ends(caplog):
    clock = ManualClock()
    calls = SlowCalls(clock)

    def work():
        assert calls.slow() == {}
        clock.advance(SLOW_MS - 1)
        assert calls.slow() == {}
        clock.advance(1)
        ((call,),) = calls.slow().values()
        assert (call.what, call.for_ms) == ("upload", SLOW_MS)
        clock.advance(1000)
        ((again,),) = calls.slow().values()
        assert (again.number, again.for_ms) == (call.number, SLOW_MS + 1000)
        return 42

    assert calls.watched("job", "upload", work)() == 42
    assert calls.slow() == {}
    assert [record.getMessage() for record in caplog.records] == [
        "slow call, 5 s so far: upload",
        "slow call ended after 6 s, answered or given up: upload",
    ]


def test_a_call_that_fails_has_ended_too():
    calls = SlowCalls(ManualClock())
    with pytest.raises(ZeroDivisionError):
        calls.watched("job", "upload", lambda: 1 / 0)()
    assert calls.slow() == {}
