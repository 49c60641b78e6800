"""Which slots were touched last, against a plain dictionary; calls are numbered anew all the time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.memory.budget import LruClock

STEPS = st.lists(st.one_of(st.sets(st.integers(0, 30), min_size=1), st.integers(2, 4)), min_size=1, max_size=40)


@given(steps=STEPS, calls=st.integers(34, 40))
def test_the_last_ones_stay_whatever_the_number_of_calls(steps, calls):
    kept, times, count = LruClock(calls), {}, 0
    for now, step in enumerate(steps, 1):
        if isinstance(step, set):
            count = max(count, *(slot + 1 for slot in step))
            kept.touch(np.array(sorted(step), np.int32), count)
            times |= dict.fromkeys(step, now)
        elif count:
            ages = sorted(times.get(slot, 0) for slot in range(count))
            bar = ages[min(count - 1, count - count // step)]
            stays = [slot for slot in range(count) if times.get(slot, 0) > bar]
            assert np.flatnonzero(kept.most_recent_mask(count, step)).tolist() == stays
            if stays:
                kept.moved(np.array(stays, np.int32))
                times, count = {new: times[old] for new, old in enumerate(stays)}, len(stays)


def test_more_calls_than_a_number_holds():
    kept = LruClock()
    kept.touch(np.arange(4, dtype=np.int32), 4)
    kept._call = (1 << 32) - 1
    kept.touch(np.array([2], np.int32), 4)
    assert kept.most_recent_mask(4, 2).tolist() == [False, False, True, False]
