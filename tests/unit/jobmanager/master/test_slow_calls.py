"""What a job tells of slow calls: their begin and end, once each."""

from penstock.jobmanager.master.worker_reports import OngoingCall, SlowCallTracker
from penstock.rpc.messages import SlowCall


def call(number, for_ms, what="upload", at=""):
    return SlowCall(number=number, what=what, for_ms=for_ms, at=at)


def test_each_call_is_told_when_it_becomes_slow_and_when_it_ends():
    work = SlowCallTracker()
    assert work.reported("w1", (), 1_000) == []
    assert work.reported("w1", (call(1, 5_000),), 10_000) == ["slow call, 5 s so far: upload"]
    assert work.ongoing == (OngoingCall("upload", 5_000),)
    assert work.reported("w1", (call(1, 6_000),), 11_000) == []
    assert work.reported("w2", (call(1, 8_000, "commit"),), 12_000) == ["slow call, 8 s so far: commit"]
    assert [slow.what for slow in work.ongoing] == ["commit", "upload"]
    assert work.reported("w1", (), 13_000) == ["slow call ended after 8 s, answered or given up: upload"]
    work.halted()
    assert work.ongoing == ()
    assert work.reported("w2", (), 14_000) == []


def test_a_call_of_a_function_is_told_with_its_place_which_may_change():
    work = SlowCallTracker()
    begun = work.reported("w1", (call(1, 5_000, "operator 'm' (0)", "a.py:1 in f"),), 10_000)
    assert begun == ["operator 'm' (0) has been in one call for 5 s, at a.py:1 in f"]
    assert work.reported("w1", (call(1, 6_010, "operator 'm' (0)", "a.py:2 in g"),), 11_000) == []
    assert work.ongoing == (OngoingCall("operator 'm' (0)", 5_000, "a.py:2 in g"),)
    assert work.reported("w1", (), 28_000) == ["slow call ended after 23 s: operator 'm' (0), at a.py:2 in g"]


def test_a_worker_has_its_longest_call_of_a_function():
    work = SlowCallTracker()
    first, later = call(2, 6_000, "operator 'm' (0)", "a.py:1 in f"), call(3, 5_000, "operator 'n' (0)", "a.py:9 in g")
    work.reported("w1", (call(1, 9_000), later, first), 10_000)
    assert work.in_user_code("w1", 12_000) == "operator 'm' (0) has been in one call for 8 s, at a.py:1 in f"
    assert work.in_user_code("w2", 12_000) == ""
    work.reported("w1", (call(1, 9_000),), 13_000)
    assert work.in_user_code("w1", 13_000) == ""
