"""Ranges that a state is shared out by: together they are what was cut, and about as large as was asked."""

from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.graph.restore_plan import clip_keyed
from penstock.snapshots.rewrite.split_points import (
    Loads,
    loads_of,
    measured_loads,
    ranges_by_size,
    ranges_of_hashes,
    shared_ranges,
)
from penstock.state.log.segment_columns import KEY_HASH, NAMESPACE
from penstock.state.log.segments import SegmentWriter
from penstock.state.memory.limits import PRODUCTION

HASHES = st.integers(HASH_MIN, HASH_MAX)


def state(*segments):
    made = tuple(
        Segment(
            file=FileRef(path="f", length=length, checksum=""), position=1, writer="w", rows=1,
            hash_min=low, hash_max=high, namespace_min=0, namespace_max=0,
        )
        for low, high, length in segments
    )  # fmt: skip
    return KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=HASH_MIN, hash_high=HASH_MAX, segments=made)


@given(ends=st.tuples(HASHES, HASHES), length=st.integers(0, 1 << 40), size=st.integers(1 << 20, 1 << 40))
def test_ranges_follow_each_other_from_end_to_end(ends, length, size):
    within = HashRange(*sorted(ends))
    found = ranges_by_size(loads_of([state((HASH_MIN, HASH_MAX, length))]), within, size)
    assert (found[0].low, found[-1].high) == (within.low, within.high)
    assert all(left.high + 1 == right.low for left, right in pairwise(found))
    assert all(r.low <= r.high for r in found)


@pytest.mark.parametrize(("length", "count"), [(0, 1), (99, 1), (100, 1), (101, 2), (1000, 10)])
def test_there_are_as_many_as_the_bytes_ask_for(length, count):
    assert len(ranges_by_size(loads_of([state((HASH_MIN, HASH_MAX, length))]), ALL_HASHES, 100)) == count


def test_of_files_only_the_part_within_counts():
    held = loads_of([state((0, 99, 1000), (100, 199, 500))])
    assert held.within(HashRange(50, 149)) == 750
    assert held.within(HashRange(200, 300)) == 0


def test_a_range_of_few_hashes_has_no_more_parts_than_hashes():
    assert len(ranges_by_size(loads_of([state((0, 2, 1000))]), HashRange(0, 2), 1)) == 3


MIB = 1 << 20


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [(0, MIB, 0), (1, 1, 1), (10, 128 * MIB, 1), (100, 20 * MIB, 10), (100, 1, 100), (100_000, 100 * MIB, 100)],
)
def test_ranges_of_hashes_are_as_many_as_their_row_groups_ask_for(count, size, parts):
    loads = loads_of([state((HASH_MIN, HASH_MAX, 5_000 * MIB), (HASH_MIN, HASH_MAX, 5_000 * MIB))])
    hashes = np.linspace(HASH_MIN, HASH_MAX, count + 2)[1:-1].astype(np.int64)
    found = ranges_of_hashes(loads, ALL_HASHES, hashes, size)
    assert len(found) == parts
    assert all(left.high < right.low for left, right in pairwise(found))
    assert all(any(r.low <= h <= r.high for r in found) for h in hashes[:: max(1, count // 50)])


def test_hashes_outside_a_range_have_no_part():
    held = loads_of([state((0, 99, 1000))])
    assert ranges_of_hashes(held, HashRange(10, 20), np.array([5, 12, 18, 40]), 1000) == [HashRange(12, 18)]


SMALL = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: HashRange(*sorted(ends)))


@given(st.lists(SMALL, max_size=8))
def test_what_several_ranges_share_is_found(ranges):
    found = shared_ranges(ranges)
    twice = {h for h in range(31) if sum(h in own for own in ranges) > 1}
    assert {h for h in range(31) if any(h in own for own in found)} == twice
    assert all(left.high + 1 < right.low for left, right in pairwise(found))


@given(
    loads=st.lists(st.tuples(HASHES, st.integers(40, 62), st.integers(1, 1 << 32)), min_size=1, max_size=40),
    count=st.integers(1, 50),
)
def test_each_range_has_as_many_bytes_however_loads_overlap(loads, count):
    found = Loads.of(
        (low, low + (1 << width), size) for at, width, size in loads for low in [min(at, HASH_MAX - (1 << width))]
    )
    total = found.within(ALL_HASHES)
    ranges = ranges_by_size(found, ALL_HASHES, max(1, int(total / count)))
    sizes = [found.within(hashes) for hashes in ranges]
    assert sum(sizes) == pytest.approx(total)
    # places are counted to some thousands of hashes, and loads have a million millions and more
    assert max(sizes) == pytest.approx(total / len(ranges), rel=1e-3)


def test_there_are_more_loads_than_places_to_look_at():
    step = 1 << 40
    found = Loads.of((i * step, i * step + step - 1, 1000 if i % 100 else 100_000) for i in range(30_000))
    sizes = [found.within(hashes) for hashes in ranges_by_size(found, ALL_HASHES, 1_000_000)]
    assert len(sizes) == 60
    assert max(sizes) < 1.3 * 1_000_000


def test_what_one_hash_has_is_not_cut():
    found = Loads.of([(5, 5, 1000), (100, 199, 100)])
    ranges = ranges_by_size(found, HashRange(0, 299), 100)
    assert sum(found.within(hashes) == 1000 for hashes in ranges) == 1
    assert sum(found.within(hashes) for hashes in ranges) == 1100


def test_of_a_file_that_two_have_each_has_a_part():
    whole = state((0, 99, 1000))
    first, second = (clip_keyed(whole, HashRange(*ends)) for ends in ((0, 49), (50, 99)))
    assert loads_of([first, second]).within(ALL_HASHES) == 1000
    assert loads_of([second]).within(HashRange(0, 74)) == 250


def test_files_of_several_row_groups_say_where_their_bytes_are():
    """Most of the bytes of this file are of few keys."""
    rows = 3 * PRODUCTION.group_rows
    hashes = np.sort(np.random.default_rng(1).integers(HASH_MIN, HASH_MAX, rows))
    schema = pa.schema([(KEY_HASH, pa.int64()), (NAMESPACE, pa.int64()), ("text", pa.string()), ("__seq", pa.int64())])
    texts = [random_text(i) if i < PRODUCTION.group_rows else "x" for i in range(rows)]
    columns = [pa.array(hashes), pa.array(np.zeros(rows, np.int64)), pa.array(texts), pa.array(range(rows))]
    writer = SegmentWriter(schema, 1)
    writer.add(pa.table(columns, schema=schema))
    made = writer.finish()
    (segment,) = state((made.entry.hash_min, made.entry.hash_max, len(made.data))).segments
    segment = msgspec.structs.replace(
        segment, rows=rows, footer_length=made.entry.footer_length, footer_checksum=made.entry.footer_checksum
    )
    held = msgspec.structs.replace(state(), segments=(segment,))
    asked = []

    def read(ref):
        asked.append(ref.length)
        return bytes(made.data[ref.offset : ref.offset + ref.length])

    loads = measured_loads([held], read)
    assert asked == [made.entry.footer_length], "nothing but the footer is read"
    first = HashRange(HASH_MIN, int(hashes[PRODUCTION.group_rows - 1]))
    assert loads.within(first) > 0.5 * loads.within(ALL_HASHES) > loads_of([held]).within(first)


def random_text(seed):
    return "".join(map(str, np.random.default_rng(seed).integers(0, 1 << 62, 4)))
