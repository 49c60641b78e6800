"""Since when brokers do not answer, from the client's error events and statistics."""

import json

import pytest

from penstock_connectors.kafka.read.outage import SILENT_MS, Outage

LONG_US = int(SILENT_MS * 1000)


READ = {"t-0"}


def statistics(*brokers):
    """Statistics of brokers; each leads a partition if nothing else is said."""
    plain = {"state": "UP", "rxidle": 0, "txidle": 0, "waitresp_cnt": 1, "toppars": {"t-0": {"topic": "t"}}}
    return json.dumps({"name": "c", "brokers": {str(n): {**plain, **b} for n, b in enumerate(brokers)}}).encode()


FROZEN = {"rxidle": LONG_US, "txidle": LONG_US}


def test_a_request_that_waits_for_long_is_an_outage_since_it_was_sent():
    outage = Outage()
    outage.measured(statistics({}), READ, 10_000)
    assert outage.since_ms is None
    outage.measured(statistics(FROZEN), READ, 13_000)
    outage.measured(statistics({"rxidle": 2 * LONG_US, "txidle": 2 * LONG_US}), READ, 15_000)
    assert outage.since_ms == 13_000 - SILENT_MS


@pytest.mark.parametrize(
    "broker",
    [
        {**FROZEN, "waitresp_cnt": 0},  # all partitions are paused
        {"rxidle": LONG_US},  # a request after a pause
        {**FROZEN, "toppars": {"t-1": {}}},  # another subtask reads its partition
    ],
)
def test_a_broker_that_is_not_asked_is_no_outage(broker):
    outage = Outage()
    outage.measured(statistics(broker), READ, 10_000)
    assert outage.since_ms is None


def test_a_fetch_that_the_broker_may_hold_back_for_long_is_no_outage():
    outage = Outage(fetch_wait_ms=SILENT_MS)
    outage.measured(statistics(FROZEN), READ, 10_000)
    assert outage.since_ms is None
    outage.measured(statistics({"rxidle": 2 * LONG_US, "txidle": 2 * LONG_US}), READ, 12_000)
    assert outage.since_ms == 12_000 - 2 * SILENT_MS


def test_one_frozen_broker_of_two_is_an_outage_although_messages_of_the_other_come():
    outage = Outage()
    outage.measured(statistics({}, FROZEN), READ, 10_000)
    outage.received()
    assert outage.since_ms == 10_000 - SILENT_MS


def test_it_lasts_while_the_client_connects_anew_and_ends_with_an_answer():
    outage = Outage()
    outage.measured(statistics(FROZEN), READ, 10_000)
    begun = outage.since_ms
    for connecting in ({"state": "APIVERSION_QUERY", "rxidle": -1}, {"state": "INIT", "toppars": {}}):
        outage.measured(statistics(connecting), READ, 12_000)
        assert outage.since_ms == begun
    outage.measured(statistics({}), READ, 13_000)
    assert outage.since_ms is None


def test_a_quiet_topic_whose_brokers_are_back_is_no_outage():
    outage = Outage()
    outage.failed(10_000)
    outage.measured(statistics({"state": "CONNECT"}), READ, 11_000)
    assert outage.since_ms == 10_000
    outage.measured(statistics({}), READ, 12_000)
    assert outage.since_ms is None


def test_messages_end_an_outage_that_an_error_event_began():
    outage = Outage()
    outage.failed(10_000)
    outage.failed(11_000)
    assert outage.since_ms == 10_000
    outage.received()
    assert outage.since_ms is None


TWO = {"t-0", "t-1"}


def fetches(sent, **more):
    return {"req": {"Fetch": sent}, **more}


def test_only_partitions_of_the_broker_that_is_away_have_no_answer():
    outage, other = Outage(), {"toppars": {"t-1": {}}}
    outage.measured(statistics({}, fetches(5, **other)), TWO, 1_000)
    assert outage.unanswered == frozenset()
    for away in (FROZEN, {"state": "DOWN"}, {"toppars": {}}):
        outage.measured(statistics(away, fetches(5, **other)), TWO, 10_000)
        assert outage.unanswered == {"t-0"}


def test_a_partition_has_an_answer_again_once_its_broker_has_answered_a_fetch():
    outage = Outage()
    outage.measured(statistics(fetches(9, **FROZEN)), READ, 10_000)
    outage.measured(statistics(fetches(10)), READ, 11_000)
    assert outage.unanswered == READ, "connected, but the first fetch may still wait"
    outage.measured(statistics(fetches(11)), READ, 12_000)
    assert outage.unanswered == READ
    outage.measured(statistics(fetches(12)), READ, 13_000)
    assert outage.unanswered == frozenset()


def test_a_new_leader_must_answer_a_fetch_itself():
    outage, follower = Outage(), {"toppars": {}}
    outage.measured(statistics(fetches(9, **FROZEN), fetches(100, **follower)), READ, 10_000)
    outage.measured(statistics({**FROZEN, **follower}, fetches(100)), READ, 11_000)
    assert outage.unanswered == READ
    outage.measured(statistics({**FROZEN, **follower}, fetches(102)), READ, 12_000)
    assert outage.unanswered == frozenset()


def test_a_partition_that_is_not_read_any_more_is_forgotten():
    outage = Outage()
    outage.measured(statistics(FROZEN), READ, 10_000)
    outage.measured(statistics({}), set(), 11_000)
    assert outage.unanswered == frozenset()


def test_a_broker_of_another_subtasks_partitions_does_not_prolong_an_outage():
    outage, unconnected = Outage(), {"state": "INIT", "toppars": {"t-1": {}}}
    outage.measured(statistics(FROZEN, unconnected), READ, 10_000)
    assert outage.since_ms is not None
    outage.measured(statistics({}, unconnected), READ, 13_000)
    assert outage.since_ms is None
