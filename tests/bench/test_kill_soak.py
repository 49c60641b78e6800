"""The verdict of `kill_soak`: the expected counts of each key, and restarts with another cause than a kill."""

from collections import Counter

from tests.bench.kill_soak import expected, others

KEYS = 7
KILL = "worker 3f-g1-r0-1 failed: it was killed by SIGKILL"
EXPIRY = "checkpoint 1 failed: not complete after 3000 ms: 1 subtask missing (process(Profile) (2/2)) (1 in a row)"


def test_each_key_has_one_order_and_those_of_the_numbers_that_were_sent():
    orders, totals = Counter(), Counter()
    for number in [*range(KEYS), *range(2_500)]:
        orders[number * 7919 % KEYS] += 1
        totals[number * 7919 % KEYS] += number % 1000
    found = expected(KEYS, 2_500)
    assert found[0].tolist() == [orders[key] for key in range(KEYS)]
    assert found[1].tolist() == [totals[key] for key in range(KEYS)]


def test_a_restart_because_of_an_expired_checkpoint_or_of_no_kill_is_told():
    failures = {(1, KILL): KILL, (2, EXPIRY): EXPIRY, (3, "SourceError"): f"{EXPIRY}, and {KILL}", (4, "lost"): "lost"}
    assert others({(1, KILL): KILL}) == []
    assert others(failures) == [EXPIRY, f"{EXPIRY}, and {KILL}", "lost"]
