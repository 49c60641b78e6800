"""Time-to-live by example: what may still be read, when it is cleaned up, what the snapshot says."""

import io
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given

import penstock as ps
from penstock.core.errors import StateMismatchError
from penstock.state.log.segments import read_state

HOUR_MS = 3_600_000


class Out(NamedTuple):
    k: int
    what: str
    n: int | None


class Plain(ps.KeyedProcessFunction):
    """Runs what a test gives it, on states that live for an hour."""

    value: ps.ValueState[int] = ps.value_state(ttl="1h")
    items: ps.ListState[int] = ps.list_state(ttl="1h")
    entries: ps.MapState[str, int] = ps.map_state(ttl="1h")
    steps = []

    def process(self, row, ctx) -> Iterator[Out]:
        yield Out(row.k, repr(self.steps[row.v](self)), None)


KEEPING = ps.StateTtlConfig("1h", visibility="return_expired_if_not_cleaned_up")
KEEPING_READ = ps.StateTtlConfig("1h", "on_read_and_write", "return_expired_if_not_cleaned_up")


class Keeping(Plain):
    value: ps.ValueState[int] = ps.value_state(ttl=KEEPING)
    items: ps.ListState[int] = ps.list_state(ttl=KEEPING)
    entries: ps.MapState[str, int] = ps.map_state(ttl=KEEPING)


class KeepingRead(Plain):
    value: ps.ValueState[int] = ps.value_state(ttl=KEEPING_READ)
    items: ps.ListState[int] = ps.list_state(ttl=KEEPING_READ)
    entries: ps.MapState[str, int] = ps.map_state(ttl=KEEPING_READ)


class Endless(Plain):
    value: ps.ValueState[int] = ps.value_state()
    items: ps.ListState[int] = ps.list_state()
    entries: ps.MapState[str, int] = ps.map_state()


def run(op, *steps, key=1):
    Plain.steps = list(steps)
    return [what for _, what, *_ in op.rows(*((key, number, 1) for number in range(len(steps))))]


def put(states):
    states.value.update(7)
    states.items.extend([1, 2])
    states.entries.update({"a": 1, "b": 2})


def seen(states):
    return states.value.value(), list(states.items), dict(sorted(states.entries.items()))


FULL, EMPTY = "(7, [1, 2], {'a': 1, 'b': 2})", "(None, [], {})"


def test_state_is_gone_when_its_time_is_over(world):
    op = world.open(Plain())
    run(op, put)
    world.bench.clock.advance(HOUR_MS - 1)
    assert run(op, seen) == [FULL]
    world.bench.clock.advance(1)
    assert run(op, seen, seen) == [EMPTY, EMPTY]


def test_elements_expire_one_by_one(world):
    op = world.open(Plain())
    run(op, put)
    world.bench.clock.advance(HOUR_MS // 2)
    run(op, lambda s: s.items.append(3), lambda s: s.entries.put("b", 3))
    world.bench.clock.advance(HOUR_MS // 2)
    assert run(op, seen) == ["(None, [3], {'b': 3})"]
    op = op.restored()
    assert run(op, seen, lambda s: s.items.append(4)) == ["(None, [3], {'b': 3})", "None"]
    assert run(op.restored(), seen) == ["(None, [3, 4], {'b': 3})"]


@pytest.mark.parametrize("function", [Keeping, KeepingRead])
def test_what_has_expired_may_be_read_until_it_is_cleaned_up(world, function):
    op = world.open(function())
    run(op, put)
    run(op, lambda s: s.items.append(9), key=2)
    world.bench.clock.advance(HOUR_MS)
    assert run(op, seen, seen) == [FULL, FULL]
    assert run(op, seen) == [EMPTY]
    run(op, put)
    world.bench.clock.advance(HOUR_MS)
    assert run(op, seen, put) == [FULL, "None"]
    assert run(op, seen) == ["(7, [1, 2], {'a': 1, 'b': 2})"]


def test_what_expired_after_the_checkpoint_is_cleaned_up_when_the_operator_starts(world):
    op = world.open(Keeping())
    run(op, put)
    snapshots = op.snapshot()
    world.bench.clock.advance(HOUR_MS)
    assert run(type(op)(world, Keeping(), snapshots, **op.same()), seen) == [EMPTY]


def test_reading_counts_where_it_is_said_to(world):
    op = world.open(KeepingRead())
    run(op, put)
    for _ in range(5):
        world.bench.clock.advance(HOUR_MS - 1)
        assert run(op, seen) == [FULL]
        op = op.restored()
    world.bench.clock.advance(HOUR_MS)
    assert run(op.restored(), seen) == [EMPTY]


def test_a_clock_that_steps_back_lets_nothing_return_and_nothing_go_too_soon(world, monkeypatch):
    clock, shift = world.bench.clock, [0]
    plain = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: plain() + shift[0])
    op = world.open(Plain())
    run(op, put)
    shift[0] = -10 * HOUR_MS
    clock.advance(HOUR_MS // 2)
    run(op, put, key=2)  # time stands still: as if written when the clock stepped back
    op = op.restored()
    assert run(op, seen) == [FULL]
    shift[0] = 0
    clock.advance(HOUR_MS // 2)
    assert run(op, seen) == [EMPTY]
    shift[0] = -10 * HOUR_MS
    assert run(op, seen) == [EMPTY]
    assert run(op.restored(), seen) == [EMPTY]


def test_a_clock_that_was_far_ahead_is_forgotten_at_the_restart(world, monkeypatch):
    clock, shift = world.bench.clock, [10_000 * HOUR_MS]
    plain = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: plain() + shift[0])
    op = world.open(Plain())
    run(op, put)
    shift[0] = 0
    op = op.restored()
    assert run(op, seen) == [FULL]
    clock.advance(25 * HOUR_MS)
    assert run(op, seen) == [EMPTY]


def live_rows(op, checkpoint):
    return {
        snapshot.state: [
            row for table in read_state(snapshot, lambda f: op.world.files[f.path]) for row in table.to_pylist()
        ]
        for snapshot in op.snapshot(checkpoint)
    }


def test_rows_of_other_keys_clean_up_behind_them(world, monkeypatch):
    given(monkeypatch, sweep_keys=200, dead_keys=1)
    op = world.open(Plain())
    for first in range(0, 100, 50):
        Plain.steps = [put]
        op.rows(*((key, 0, 1) for key in range(first, first + 50)))
    op.snapshot(1)
    world.bench.clock.advance(HOUR_MS)
    state = op.operator._state
    for turn in range(0, 150, 5):
        op.rows(*((key, 0, 1) for key in range(1000 + turn, 1005 + turn)))
        op.operator._store.freeze()
    assert state.index.count < 200
    rows = live_rows(op, 200)
    found = {name: len(rows[name]) for name in ("value", "items", "entries")}
    assert found == {"value": 150, "items": 300, "entries": 300}


def test_a_checkpoint_cleans_up_without_any_row(world):
    op = world.open(Plain())
    run(op, put)
    assert [len(rows) for rows in live_rows(op, 1).values()][:3] == [1, 2, 2]
    world.bench.clock.advance(HOUR_MS)
    assert not any(live_rows(op, 2).values())


def test_a_restore_leaves_out_what_has_expired_for_good(world):
    op = world.open(Plain())
    run(op, put)
    saved = op.snapshot(1)
    world.bench.clock.advance(HOUR_MS)
    again = world.open(Plain(), *saved)
    assert run(again, seen) == [EMPTY]
    assert not any(live_rows(again, 2).values())


def test_merging_leaves_out_what_has_expired(world, monkeypatch):
    given(monkeypatch, segments_per_tier=3, freeze_sweep_keys=0)
    op = world.open(Plain())
    for key in range(3):
        run(op, lambda s: s.value.update(1), key=key)
        op.snapshot(key)
        op.world.stores[-1].completed(key)
        world.bench.clock.advance(HOUR_MS // 2)
    op.operator._ttl_clock.tick()
    encoded = world.stores[-1].compaction().run(lambda file: world.files[file.path])
    assert pq.read_table(io.BytesIO(encoded.data)).column("k").to_pylist() == [2]


def test_the_snapshot_has_the_time_of_the_last_access(world):
    op = world.open(Plain())
    run(op, put)
    now = world.bench.clock.now_ms() * 1000
    for name, rows in live_rows(op, 1).items():
        assert all(row["__ttl"] == now for row in rows), name
    (value, *_) = op.snapshot(2)
    file = pq.read_table(io.BytesIO(world.files[value.segments[0].file.path]))
    assert file.schema.field("__ttl").metadata[b"PARQUET:field_id"] == b"6"


def test_a_time_to_live_comes_and_goes_with_a_new_uid_only(world):
    op = world.open(Endless())
    run(op, put)
    with pytest.raises(StateMismatchError, match="state 'value' of fn: it had a time-to-live and has none"):
        op.restored(Plain())
    op = world.open(Plain())
    run(op, put)
    with pytest.raises(StateMismatchError, match="state 'value' of fn: it had a time-to-live and has none"):
        op.restored(Endless())


@pytest.fixture
def shift(world, monkeypatch):
    """Milliseconds by which the clock is wrong."""
    shift, plain = [0], world.bench.clock.now_ms
    monkeypatch.setattr(world.bench.clock, "now_ms", lambda: plain() + shift[0])
    return shift


def test_what_is_written_while_the_clock_is_back_lives_its_whole_time(world, shift):
    op = world.open(Plain())
    run(op, put)
    world.bench.clock.advance(HOUR_MS - 60_000)
    run(op, seen)
    shift[0] = -HOUR_MS
    run(op, put, key=2)  # at the time that stands still
    shift[0] = 0
    world.bench.clock.advance(HOUR_MS - 1)
    assert run(op, seen, key=2) == [FULL]
    world.bench.clock.advance(1)
    assert run(op, seen, key=2) == [EMPTY]


def test_time_goes_on_from_the_newest_that_was_restored(world, shift):
    op = world.open(Plain())
    run(op, put)
    shift[0] = -10 * HOUR_MS
    op = op.restored()
    run(op, put, key=2)
    shift[0] = 0
    world.bench.clock.advance(HOUR_MS - 1)
    assert run(op, seen, key=2) == [FULL]
    world.bench.clock.advance(1)
    assert run(op, seen, key=2) == [EMPTY]


def test_a_cleared_list_begins_with_the_times_of_its_new_elements(world):
    op = world.open(Plain())
    run(op, lambda s: s.items.extend([1, 2]))
    world.bench.clock.advance(HOUR_MS // 2)
    run(op, lambda s: s.items.clear())
    run(op, lambda s: s.items.extend([3, 4]))
    world.bench.clock.advance(HOUR_MS // 2)
    assert run(op, seen) == ["(None, [3, 4], {})"]
    assert run(op.restored(), seen) == ["(None, [3, 4], {})"]


def test_an_entry_that_is_written_again_does_not_shield_older_ones(world):
    op = world.open(Plain())
    for key in ("a", "b", "a"):
        run(op, lambda s, key=key: s.entries.put(key, 1))
        world.bench.clock.advance(HOUR_MS // 3)
    world.bench.clock.advance(HOUR_MS // 3)
    assert run(op, seen) == ["(None, [], {'a': 1})"], "b is as old as may be, a is younger"
    world.bench.clock.advance(HOUR_MS // 3)
    assert run(op, seen) == [EMPTY]
