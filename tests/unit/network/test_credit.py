"""Credit: bytes are granted, spent and returned, and never invented."""

import pytest

from penstock.network.credit import GateCredit, SenderCredit


def test_a_sender_starts_with_nothing_and_cannot_overdraw():
    credit = SenderCredit(100)
    assert not credit.covers(1)
    credit.grant(100)
    assert credit.spend(60) == 60
    assert not credit.covers(41)
    with pytest.raises(RuntimeError, match="negative"):
        credit.spend(41)


def test_a_message_larger_than_the_budget_costs_what_an_empty_channel_always_has():
    credit = SenderCredit(100)
    credit.grant(100)
    credit.spend(25)
    assert not credit.covers(5_000)
    credit.grant(1)
    assert credit.spend(5_000) == 76


def test_a_gate_grants_floating_bytes_to_a_backlog():
    gate = GateCredit([100, 100], floating=50)
    assert gate.on_data(0, 100, backlog=1_000) == 50
    assert gate.on_data(1, 100, backlog=1_000) == 0
    assert gate.floating_free == 0


def test_floating_bytes_go_to_the_channels_that_wait_in_turn():
    gate = GateCredit([100, 100], floating=50)
    gate.on_data(0, 100, backlog=1_000)
    gate.on_data(1, 100, backlog=1_000)
    gate.on_consumed(0, 100)
    assert gate.floating_held == [50, 0]
    gate.on_data(0, 100, backlog=1_000)
    assert (1, 50) in gate.on_consumed(0, 100)
    assert gate.floating_held == [0, 50]


def test_without_a_backlog_nothing_floats():
    gate = GateCredit([100], floating=50)
    assert gate.on_data(0, 80, backlog=20) == 0


def test_small_returns_are_saved_up():
    gate = GateCredit([100], floating=0)
    grants = []
    for _ in range(60):
        gate.on_data(0, 1, backlog=0)
        grants += gate.on_consumed(0, 1)
    assert grants == [(0, 25), (0, 25)]


@pytest.mark.parametrize("exclusive", [1, 3, 4, 7, 8, 100, 2 << 20])
def test_an_empty_channel_covers_any_message_although_credit_is_still_to_be_returned(exclusive):
    gate, sender = GateCredit([exclusive], floating=0), SenderCredit(exclusive)
    sender.grant(exclusive)
    for size in (1, exclusive // 4, 1, exclusive // 4 - 1, 10 * exclusive, exclusive // 4 - 1, exclusive):
        assert sender.covers(size)
        cost = sender.spend(size)
        gate.on_data(0, cost, backlog=0)
        for _, amount in gate.on_consumed(0, cost):
            sender.grant(amount)


def test_a_sender_that_overdraws_is_caught():
    gate = GateCredit([100], floating=0)
    gate.on_data(0, 90, backlog=0)
    with pytest.raises(RuntimeError, match="sent 20 bytes on 10"):
        gate.on_data(0, 20, backlog=0)


def test_an_ended_channel_gives_its_floating_bytes_to_the_others():
    gate = GateCredit([100, 100], floating=50)
    gate.on_data(0, 100, backlog=50)
    gate.on_data(1, 100, backlog=500)
    assert gate.floating_held == [50, 0]
    gate.on_consumed(1, 100)
    gate.queued[0] = 0
    assert gate.on_ended(0) == [(1, 50)]


def windowed(window, floating=0):
    """Return both ends of a channel of 100 bytes that is bounded to `window`."""
    sender, gate = SenderCredit(100), GateCredit([100], floating)
    sender.grant(100)
    [(_, amount, sender.window)] = gate.resize(window)
    sender.grant(amount)
    return sender, gate


def test_a_window_bounds_what_is_in_flight():
    sender, gate = windowed(20)
    gate.on_data(0, sender.spend(15), backlog=0)
    assert sender.covers(5)
    assert not sender.covers(6)
    assert sender.covers(0), "events pass"


def test_a_message_larger_than_the_window_is_sent_as_soon_as_nothing_is_in_flight():
    sender, gate = windowed(20)
    assert sender.covers(1_000)
    gate.on_data(0, sender.spend(3), backlog=0)
    assert not sender.covers(1_000)
    for _, amount in gate.on_consumed(0, 3):
        sender.grant(amount)
    assert sender.covers(1_000), "the receiver keeps no credit of an empty channel"


def test_no_bytes_float_while_a_window_bounds_the_channel():
    sender, gate = windowed(20, floating=50)
    assert gate.on_data(0, sender.spend(20), backlog=1_000) == 0
    [(_, amount, sender.window)] = gate.resize(1_000)
    assert sender.window == 100
    sender.grant(amount)
    assert gate.on_data(0, sender.spend(80), backlog=1_000) == 50
