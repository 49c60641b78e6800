"""The network memory of a worker: a guaranteed part for every channel, and shares of what remains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.network.network_memory import LEAST_WINDOW, GateShare, GateWant, gate_shares

KB, MB = 1 << 10, 1 << 20
WANTS = [GateWant((2 * MB, 2 * MB), 8 * MB), GateWant((1 * MB,), 4 * MB), GateWant((), 8 * MB)]


@pytest.mark.parametrize(
    ("total", "shares"),
    [
        # enough for all; a source has no channels, and wants nothing
        (17 * MB, [(None, 8 * MB), (None, 4 * MB), (None, 8 * MB)]),
        # every channel keeps its exclusive bytes, the rest is shared in proportion
        (8 * MB, [(None, 2 * MB), (None, 1 * MB), (None, 2 * MB)]),
        (5 * MB, [(None, 0), (None, 0), (None, 0)]),
        # channels are bounded, the largest first
        (4 * MB, [(3 * MB // 2, 0)] * 3),
        (3 * MB, [(1 * MB, 0)] * 3),
        (3 * LEAST_WINDOW, [(LEAST_WINDOW, 0)] * 3),
    ],
)
def test_the_division_by_the_memory_there_is(total, shares):
    assert gate_shares(total, WANTS) == [GateShare(*share) for share in shares]


def test_too_little_for_every_channel_is_refused_with_both_sizes_and_the_way_out():
    wants = [GateWant((1 * MB,) * 128, 0)]
    with pytest.raises(UsageError) as caught:
        gate_shares(1 * MB, wants)
    text = str(caught.value)
    assert text.startswith(
        "the 128 input channels of this slot need 2 MB of network memory, but a slot is guaranteed 1 MB (raise"
    )
    assert "taskmanager.network_memory_min" in text


sizes = st.integers(1, 3 * MB)


@given(st.integers(0, 100 * MB), st.lists(st.tuples(st.lists(sizes, max_size=6), st.integers(0, 9 * MB)), max_size=6))
def test_all_gates_stay_within_the_total_and_no_channel_is_without_its_part(total, gates):
    wants = [GateWant(tuple(exclusive), floating) for exclusive, floating in gates]
    try:
        shares = gate_shares(total, wants)
    except UsageError:
        assert total < sum(min(own, LEAST_WINDOW) for want in wants for own in want.exclusive)
        return
    used = 0
    for want, share in zip(wants, shares, strict=True):
        windows = [own if share.window is None else min(own, share.window) for own in want.exclusive]
        assert all(window >= min(own, LEAST_WINDOW) for window, own in zip(windows, want.exclusive, strict=True))
        used += sum(windows) + (share.floating if want.exclusive else 0)
    assert used <= total
