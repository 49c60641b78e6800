"""A filter excludes no row that it matches, and what it excludes is not read."""

import itertools

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.errors import SnapshotDamagedError, UsageError
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.snapshots.access.content import find_state
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.pruning import ALL_ROWS, Pruning, hashes_of, parsed_filter, pruning_of

ONE = pa.schema([pa.field("user_id", pa.int64())])
TWO = pa.schema([pa.field("land", pa.string()), pa.field("day", pa.date32())])


def keys(pruning):
    return None if pruning.keys is None else sorted(map(tuple, (row.values() for row in pruning.keys.to_pylist())))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("user_id = 7", [(7,)]),
        ("-7 = user_id", [(-7,)]),
        ("user_id IN (5, 77) AND orders > 3", [(5,), (77,)]),
        ("user_id IN (5, 77) AND user_id IN (77, 8)", [(77,)]),
        ("user_id = 5 AND user_id = 6", []),
        ("user_id = 5 OR user_id = 6", [(5,), (6,)]),
        ("user_id IS NOT DISTINCT FROM 5", [(5,)]),
        ("(user_id = 5 AND orders = 1) OR (user_id IN (6, 7) AND note = 'x')", [(5,), (6,), (7,)]),
        ("user_id = 5 OR orders = 6", None),
        ("NOT user_id = 5", None),
        ("user_id NOT IN (5, 6)", None),
        ("user_id <> 5", None),
        ("user_id < 5", None),
        ("user_id = orders", None),
        ("user_id + 1 = 5", None),
        ("user_id = 5.0", None),
        ("orders = 5", None),
        ("user_id = 99999999999999999999", None),
    ],
)
def test_keys_of_a_filter(text, found):
    assert keys(pruning_of(pl.sql_expr(text), ONE)) == found


def test_keys_of_several_columns_need_all_of_them():
    day = pl.date(2024, 1, 1)
    text = "land IN ('fr', 'de') AND day = DATE '2024-01-01'"
    assert [key[0] for key in keys(pruning_of(pl.sql_expr(text), TWO))] == ["de", "fr"]
    assert keys(pruning_of((pl.col("land") == "fr"), TWO)) is None
    assert keys(pruning_of((pl.col("land") == "fr") & (pl.col("day") == day), TWO)) is None, "no literal"
    nothing = pruning_of(pl.col("land").is_null() & pl.col("day").is_null(), TWO)
    assert nothing.keys.to_pylist() == [{"land": None, "day": None}]
    assert len(nothing.hashes) == 1


def test_two_prunings_leave_what_both_leave():
    ids = pa.table({"user_id": pa.array([5, 6, 7], pa.int64())})
    both = Pruning(ids, (0, 20)).both(pruning_of(pl.sql_expr("user_id IN (7, 9) AND __namespace > 10"), ONE))
    assert (keys(both), both.namespaces) == ([(7,)], (11, 20))
    assert keys(Pruning(ids).both(ALL_ROWS)) == keys(ALL_ROWS.both(Pruning(ids))) == [(5,), (6,), (7,)]


def test_a_state_without_keys_is_read_whole():
    assert pruning_of(pl.sql_expr("item = 'x'"), pa.schema([])) == ALL_ROWS


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("__namespace >= 10", 10, HASH_MAX),
        ("__namespace > 10 AND 30 >= __namespace", 11, 30),
        ("__namespace BETWEEN 3 AND 9 AND user_id = 1", 3, 9),
        ("__namespace = 4", 4, 4),
        ("__namespace < 4 OR (__namespace = 20 AND user_id = 1)", HASH_MIN, 20),
        ("__namespace < 4 OR user_id = 1", HASH_MIN, HASH_MAX),
        ("NOT __namespace < 4", HASH_MIN, HASH_MAX),
        ("__namespace < 4.5", HASH_MIN, HASH_MAX),
        ("__namespace <> 4", HASH_MIN, HASH_MAX),
    ],
)
def test_namespaces_of_a_filter(text, low, high):
    assert pruning_of(pl.sql_expr(text), ONE).namespaces == (low, high)


def test_a_filter_finds_the_rows_that_it_finds_in_the_whole_state(job):
    frame = ps.snapshots.read(str(job.folder), uid="totals", name="panes")
    whole = frame.collect()
    parts = ["user_id = 7", "user_id IN (7, 8, 299, 9999)", "__namespace > 10", "__namespace <= 10", "sum_amount > 9"]
    texts = [*parts, *(f"({a}) {both} ({b})" for a, b in itertools.permutations(parts, 2) for both in ("AND", "OR"))]
    found = []
    for text in [*texts, "NOT user_id = 7", "user_id = 7 AND NOT __namespace > 10"]:
        wanted = whole.filter(pl.sql_expr(text))
        assert frame.filter(pl.sql_expr(text)).collect().sort(pl.all()).equals(wanted.sort(pl.all())), text
        found.append(wanted.height)
    assert sum(map(bool, found)) > 40, "the test shows nothing"


def removed(job, snapshot, state, needed):
    """Remove the files of a state that are not needed; return their number."""
    others = [s for part in state.keyed for s in part.segments if s not in needed]
    for path in {s.file.path for s in others} - {s.file.path for s in needed}:
        (job.folder / path).unlink()
    return len(others)


def test_files_without_the_key_are_not_read(job):
    snapshot = open_snapshot(str(job.folder))
    state = find_state(snapshot.manifest, "people", "profile")
    (wanted,) = hashes_of(pa.table({"user_id": pa.array([5], pa.int64())}))
    needed = [s for part in state.keyed for s in part.segments if s.hash_min <= wanted <= s.hash_max]
    assert removed(job, snapshot, state, needed)
    frame = ps.snapshots.read(str(job.folder), uid="people", name="profile")
    assert frame.filter(pl.col("user_id") == 5).collect().rows() == [(5, 0, *job.profiles[5])]
    with pytest.raises(SnapshotDamagedError):
        frame.collect()


def test_files_without_the_namespace_are_not_read(empty_job):
    job = empty_job
    for pane in (0, 10, 20):
        job.add(list(range(50)), pane)
        job.checkpoint()
    snapshot = open_snapshot(str(job.folder))
    state = find_state(snapshot.manifest, "totals", None)
    needed = [s for part in state.keyed for s in part.segments if s.namespace_max >= 20]
    assert removed(job, snapshot, state, needed)
    frame = ps.snapshots.read(str(job.folder), uid="totals")
    assert frame.filter(pl.col("__namespace") >= 15).collect().height == 50
    with pytest.raises(SnapshotDamagedError):
        frame.collect()


@pytest.mark.parametrize(
    ("text", "message"), [("usr = 2", "usr"), ("user_id =", "--where 'user_id ='"), ("user_id + 1", "--where")]
)
def test_a_filter_that_is_none_is_refused(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parsed_filter(text, pl.Schema({"user_id": pl.Int64}), "--where")
    assert caught.value.hint == "columns: user_id"
