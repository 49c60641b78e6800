"""The generator: the same rows for everyone, from any position."""

import json
from collections import Counter

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.connector.sink import load_factory
from penstock.connector.source import SourceContext, SourceSpec, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import GraphError
from penstock_connectors.datagen import ORDER_SCHEMA, DatagenSource


def open_reader(source, splits=None, clock=None):
    spec = msgspec.json.decode(json.dumps(msgspec.to_builtins(source.spec())), type=SourceSpec)
    factory = load_factory(spec.factory)
    factory.validate(spec)
    reader = factory.create_reader(spec, SourceContext(0, 1, "job", "uid", clock or ManualClock()))
    if splits is None:
        splits = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    reader.add_splits(splits)
    return reader


def drain(reader, max_rows=1000, polls=1000):
    """All rows by split, until everything is finished."""
    found, finished = {}, 0
    for _ in range(polls):
        result = reader.poll(max_rows)
        for batch in result.batches:
            assert batch.data.schema == ORDER_SCHEMA
            found.setdefault(batch.split_ids[0], []).append(batch.data)
        finished += len(result.finished)
        if finished == len(reader.snapshot()):
            break
    return {split: pa.Table.from_batches(batches) for split, batches in found.items()}


def test_all_rows_come_once_and_every_time_the_same():
    source = DatagenSource(rows=1001, splits=4, users=10, max_amount=5)
    first, second = drain(open_reader(source)), drain(open_reader(source), max_rows=77)
    assert first == second
    assert sorted(t.num_rows for t in first.values()) == [250, 250, 250, 251]
    everything = pa.concat_tables(first.values())
    assert set(everything["user_id"].to_pylist()) == set(range(10))
    assert set(everything["amount"].to_pylist()) == set(range(1, 6))


def test_another_seed_gives_other_rows():
    one, other = (drain(open_reader(DatagenSource(rows=100, splits=1, seed=s)))["orders-0"] for s in (1, 2))
    assert one["user_id"] != other["user_id"]
    assert one["ts"] == other["ts"], "without disorder, times depend on the row number alone"


def test_a_replay_from_any_position_gives_exactly_the_rest():
    source = DatagenSource(rows=500, splits=2, disorder_ms=1000)
    whole = drain(open_reader(source))
    reader = open_reader(source)
    taken = {b.split_ids[0]: b.data.num_rows for _ in range(3) for b in reader.poll(60).batches}
    positions = reader.snapshot()
    assert sum(s.state["position"] for s in positions) == 180
    rest = drain(open_reader(source, msgspec.convert(msgspec.to_builtins(positions), type=tuple[SourceSplit, ...])))
    assert taken
    for split in positions:
        assert rest[split.id] == whole[split.id].slice(split.state["position"])


def test_event_time_has_its_rate_and_stays_within_the_disorder():
    plain = drain(open_reader(DatagenSource(rows=2000, splits=1, event_rate=1000)))["orders-0"]
    mixed = drain(open_reader(DatagenSource(rows=2000, splits=1, event_rate=1000, disorder_ms=50)))["orders-0"]
    regular = plain["ts"].cast(pa.int64()).to_numpy()
    assert (np.diff(regular) == 1000).all()
    early = regular - mixed["ts"].cast(pa.int64()).to_numpy()
    assert early.min() >= 0
    assert 40_000 < early.max() <= 50_000
    assert (np.diff(mixed["ts"].cast(pa.int64()).to_numpy()) < 0).any()


def test_users_are_spread_evenly():
    table = drain(open_reader(DatagenSource(rows=100_000, splits=1, users=10)), max_rows=100_000)["orders-0"]
    counts = Counter(table["user_id"].to_pylist())
    assert min(counts.values()) > 9_500


def test_a_rate_limit_follows_the_clock_and_counts_from_the_restored_row():
    clock = ManualClock()
    source = DatagenSource(splits=2, rows_per_second=100)
    assert not source.spec().bounded
    reader = open_reader(source, clock=clock)
    assert reader.poll(1000).caught_up == ("orders-0", "orders-1")
    clock.advance(1000)
    assert [b.data.num_rows for b in reader.poll(1000).batches] == [50, 50]
    assert reader.poll(1000).batches == ()
    clock.advance(60_000)
    again = open_reader(source, reader.snapshot(), clock)
    assert again.poll(1000).batches == (), "no catching up for the time nobody read"
    clock.advance(100)
    assert sum(b.data.num_rows for b in again.poll(1000).batches) == 10


def test_finished_splits_stay_finished_after_a_restore():
    source = DatagenSource(rows=10, splits=2)
    reader = open_reader(source)
    drain(reader)
    assert all(split.finished for split in reader.snapshot())
    assert open_reader(source, reader.snapshot()).poll(10).batches == ()


def test_the_enumerator_lists_only_what_is_not_known():
    spec = DatagenSource(splits=3).spec()
    enumerator = load_factory(spec.factory).create_enumerator(spec, first_run=False)
    assert [s.id for s in enumerator.discover(frozenset({"orders-1"}))] == ["orders-0", "orders-2"]


@pytest.mark.parametrize("wrong", [{"splits": 0}, {"rows": -1}, {"rows_per_second": 0}, {"users": 0}])
def test_senseless_numbers_are_refused(wrong):
    with pytest.raises(GraphError, match=next(iter(wrong))):
        DatagenSource(**wrong).spec()


def test_a_paused_split_makes_no_rows_and_goes_on_where_it_was():
    source = DatagenSource(rows=100, splits=2)
    reader = open_reader(source)
    first = reader.poll(20)
    reader.pause_or_resume_splits(("orders-0",), ())
    others = [reader.poll(20) for _ in range(10)]
    assert {i for result in others for batch in result.batches for i in batch.split_ids} == {"orders-1"}
    assert [i for result in others for i in result.finished] == ["orders-1"]
    assert all("orders-0" not in result.caught_up for result in others)
    reader.pause_or_resume_splits((), ("orders-0",))
    rest = drain(reader, polls=10)["orders-0"]
    began = next(batch.data for batch in first.batches if batch.split_ids == ("orders-0",))
    assert pa.concat_tables([pa.Table.from_batches([began]), rest]) == drain(open_reader(source))["orders-0"]
