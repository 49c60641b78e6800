"""A snapshot under another key: every row once, where the key's hash belongs, and a job with that key takes it up."""

import dataclasses
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.errors import NotFoundError, UsageError
from penstock.graph.state_check import check_states
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite.key_expressions import keeps_apart, keys_of, parsed, require_by_key
from penstock.snapshots.rewrite.rekey import InMemory, rekey
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Profile(NamedTuple):
    orders: int
    user_id: int


class People(ps.KeyedProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state()
    recent: ps.ListState[int] = ps.list_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Profile]:
        yield Profile(1, 1)


def job(*keys, **columns):
    """Return a job whose rows have these columns besides and that is keyed by `keys`."""
    env = ps.Environment(parallelism=3, checkpoint_interval="1s", key_groups=128)
    watermarks = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    orders = env.from_source(DatagenSource(rows=10), watermarks=watermarks, uid="orders")
    keyed = (orders.with_columns(**columns) if columns else orders).key_by(*keys)
    keyed.process(People()).uid("people").sink_to(FileSink("a"), uid="out")
    counted = keyed.window(ps.Tumbling("10s")).aggregate(total=ps.sum("amount")).uid("windows")
    counted.sink_to(FileSink("b"), uid="out2")
    return env


USERS = list(range(300))
PROFILES = pl.DataFrame({"user_id": USERS, "orders": [2 * i for i in USERS], "user_id_": [i + 7 for i in USERS]})
LISTS = pl.DataFrame({"user_id": [1, 1, 2], "__entry": [0, 1, 0], "value": [5, 6, 7]})
TIMERS = pl.DataFrame({"user_id": [1, 2], "__namespace": [77, 77]})
PANES = pl.DataFrame({"user_id": [1, 1], "__namespace": [0, 10_000_000], "__rows": [1, 2], "sum_amount": [3, 4]})


@pytest.fixture
def savepoint(tmp_path):
    tables = {
        ("people", "profile"): PROFILES, ("people", "recent"): LISTS, ("people", "__timers_event"): TIMERS,
        ("windows", "panes"): PANES,
    }  # fmt: skip
    return ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))


def read(uri, name, uid="people"):
    return ps.snapshots.read(uri, uid=uid, name=name).collect()


def verdicts(env, uri):
    manifest = open_snapshot(uri).manifest
    found = check_states(with_states(env.job_graph("any")), manifest.subtasks)
    return {v.place: v.verdict for v in found if v.uid in ("people", "windows")}


def test_a_key_of_another_type_and_name(savepoint, tmp_path):
    key = ["user=CAST(user_id AS VARCHAR)"]
    once = rekey(open_snapshot(savepoint), str(tmp_path / "once"), uid="people", key=key)
    uri = rekey(open_snapshot(once), str(tmp_path / "twice"), uid="windows", key=key)
    profiles = read(uri, "profile").sort("orders")
    assert profiles["user"].to_list() == [str(i) for i in USERS]
    assert profiles["user_id"].to_list() == [i + 7 for i in USERS], "a value's field has its own name again"
    recent = read(uri, "recent").select("user", "__entry", "value").sort("user", "__entry")
    assert recent.rows() == [("1", 0, 5), ("1", 1, 6), ("2", 0, 7)]
    for name in ("__timers_event", "timers (event time)"):
        assert sorted(read(uri, name).rows()) == [("1", 77), ("2", 77)]
    assert read(uri, "windows", "windows").sort("__namespace").rows() == [("1", 0, 1, 3), ("1", 10_000_000, 2, 4)]
    report = verify(uri)
    assert (report.damaged, report.unknown) == ([], []), "hashes, order and ranges are those of the new key"
    assert sum(len(part.keyed) for part in open_snapshot(uri).manifest.subtasks) == 4 * 3
    by_text = job("user", user=pl.col("user_id").cast(pl.String))
    assert set(verdicts(by_text, savepoint).values()) >= {"blocked"}
    found = verdicts(by_text, uri)
    assert {found[place] for place in ("people/profile", "people/recent", "windows/panes")} == {"same"}


def test_other_operators_are_as_they_were(savepoint, tmp_path):
    uri = rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="people", key=["user=user_id + 1000"])
    assert (
        read(uri, "panes", "windows")
        .sort("__namespace")
        .equals(read(savepoint, "panes", "windows").sort("__namespace"))
    )
    assert sorted(read(uri, "profile")["user"].to_list()) == [i + 1000 for i in USERS]


def test_a_column_that_is_added_computed_and_kept(savepoint, tmp_path):
    uri = rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="people", key=["user_id", "part=user_id % 10"])
    assert sorted(read(uri, "profile").select("user_id", "part", "user_id_").rows()) == [
        (i, i % 10, i + 7) for i in USERS
    ]
    back = rekey(open_snapshot(uri), str(tmp_path / "back"), uid="people", key=["user_id"])
    assert read(back, "profile").sort("user_id").equals(read(savepoint, "profile").sort("user_id"))
    assert set(verdicts(job("user_id"), back).values()) <= {"same", "new"}


def test_rows_that_would_have_one_key_are_refused_with_one_named(savepoint, tmp_path):
    with pytest.raises(
        UsageError,
        match=r"300 old keys collide, for example \(part=0\) of \(user_id=0\) and \(user_id=10\)",
    ):
        rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="people", key=["part=user_id % 10"])
    assert not (tmp_path / "new").exists(), "nothing is written"


def test_a_target_with_a_savepoint_is_refused_before_the_keys_are_computed(savepoint, tmp_path, monkeypatch):
    monkeypatch.setattr(InMemory, "rekeyed", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(UsageError, match="already holds a savepoint"):
        rekey(open_snapshot(savepoint), savepoint, uid="people", key=["user_id"])


def test_timers_that_fall_together_are_one(tmp_path):
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "__timers_event"): TIMERS}, job=job("user_id"))
    made = rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=["all=user_id * 0"])
    assert read(made, "__timers_event").rows() == [(0, 77)]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (["user=CAST(nobody AS VARCHAR)"], "key column 'user=CAST"),
        (["nobody"], "key column 'nobody'.*the old key has: user_id"),
        (["user_id", "user_id=user_id"], "names 'user_id' twice"),
        (["sum=SUM(user_id)"], "300 old keys collide"),
        (["__namespace=user_id"], "has a column '__namespace' already"),
        ([], "no key is given"),
    ],
)
def test_what_gives_no_key_is_refused(savepoint, tmp_path, key, error):
    with pytest.raises(UsageError, match=error):
        rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="people", key=key)


def test_an_unknown_operator_is_named_with_the_nearest(savepoint, tmp_path):
    with pytest.raises(NotFoundError, match=r"no keyed state of uid 'peeple'.*people"):
        rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="peeple", key=["user_id"])


def test_every_state_gets_the_same_key_whatever_the_expression_looks_at(tmp_path):
    tables = {
        ("people", "profile"): PROFILES[:4], ("people", "recent"): LISTS, ("people", "__timers_event"): TIMERS[1:],
    }  # fmt: skip
    uri = ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))
    key = ["n=ROW_NUMBER() OVER (ORDER BY user_id DESC)", "of=MAX(user_id)", "region='eu'"]
    made = rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=key)
    assert sorted(read(made, "profile").select("n", "of", "region", "orders").rows()) == [
        (4 - i, 3, "eu", 2 * i) for i in reversed(range(4))
    ]
    assert read(made, "recent").select("n", "of", "region", "value").sort("value").rows() == [
        (3, 3, "eu", 5), (3, 3, "eu", 6), (2, 3, "eu", 7),
    ]  # fmt: skip
    assert read(made, "__timers_event").rows() == [(2, 3, "eu", 77)]


def test_lists_of_two_keys_are_not_made_one(tmp_path):
    lists = pl.DataFrame({"user_id": [1, 2], "__entry": [0, 1], "value": [5, 6]})
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "recent"): lists}, job=job("user_id"))
    with pytest.raises(
        UsageError, match=r"people: the new key is not unique: 2 old keys collide, for example \(all=0\)"
    ):
        rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=["all=user_id * 0"])


def test_a_key_of_a_values_name_moves_it_as_the_job_would(savepoint, tmp_path):
    uri = rekey(open_snapshot(savepoint), str(tmp_path / "new"), uid="people", key=["orders=user_id"])
    assert sorted(read(uri, "profile").select("orders", "orders_", "user_id").rows()) == [
        (i, 2 * i, i + 7) for i in USERS
    ]
    assert verdicts(job("orders", orders=pl.col("user_id")), uri)["people/profile"] == "same"
    back = rekey(open_snapshot(uri), str(tmp_path / "back"), uid="people", key=["user_id=orders"])
    assert read(back, "profile").sort("user_id").equals(read(savepoint, "profile").sort("user_id"))


def test_null_is_a_key_like_any_other(tmp_path):
    profiles = pl.DataFrame(
        {"user_id": [None, 1], "orders": [5, 6], "user_id_": [7, 8]},
        {"user_id": pl.Int64, "orders": pl.Int64, "user_id_": pl.Int64},
    )
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): profiles}, job=job("user_id"))
    made = rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=["user=CAST(user_id AS VARCHAR)"])
    assert sorted(read(made, "profile").select("orders", "user").rows()) == [(5, None), (6, "1")]


def test_a_subtask_without_the_state_gets_the_rows_that_are_its_own_now(savepoint, tmp_path):
    whole = open_snapshot(savepoint)
    first = whole.manifest.subtasks[0]
    less = msgspec.structs.replace(first, keyed=tuple(k for k in first.keyed if k.uid != "people"))
    manifest = msgspec.structs.replace(whole.manifest, subtasks=(less, *whole.manifest.subtasks[1:]))
    lost = sum(s.rows for state in first.keyed if state.state == "profile" for s in state.segments)
    part = dataclasses.replace(whole, manifest=manifest)
    uri = rekey(part, str(tmp_path / "new"), uid="people", key=["u=user_id + 1"])
    assert read(uri, "profile").height == len(USERS) - lost
    assert verify(uri).damaged == []
    written = {state.state for state in open_snapshot(uri).manifest.subtasks[0].keyed}
    assert {"profile", "recent"} <= written


@pytest.mark.parametrize(
    ("key", "apart"),
    [
        (["text", "n"], True),
        (["n=CAST(n AS VARCHAR)", "other=text"], True),
        (["n=CAST(n AS BIGINT)", "text", "part=n % 3"], True),
        (["n=CAST(n AS SMALLINT)", "text"], True),
        (["n=TRY_CAST(n AS SMALLINT)", "text"], False),
        (["n=CAST(text AS BIGINT)", "m=n"], False),
        (["text=LOWER(text)", "n"], False),
        (["n"], False),
    ],
)
def test_keys_that_surely_stay_apart(key, apart):
    old = pa.schema([("n", pa.int32()), ("text", pa.string())])
    assert keeps_apart(parsed(key, old.names, "rekey"), old) is apart


@pytest.mark.parametrize(
    ("expression", "by_key"),
    [
        ("user_id", True), ("CAST(user_id AS VARCHAR)", True), ("user_id % 10 + 3", True), ("'eu'", True),
        ("CASE WHEN user_id > 1 THEN 'a' ELSE UPPER(word) END", True), ("COALESCE(user_id, 0)", True),
        ("CONCAT(word, '-', user_id)", True), ("SPLIT_PART(word, '-', 1)", True), ("user_id IN (1, 2)", True),
        ("word LIKE 'a%'", True), ("ROUND(user_id / 3, 1)", True), ("word || 'x'", True),
        ("MAX(user_id)", False), ("user_id + MAX(user_id)", False), ("COUNT(*)", False), ("FIRST(word)", False),
        ("ROW_NUMBER() OVER (ORDER BY user_id)", False), ("LAG(user_id) OVER (ORDER BY user_id)", False),
        ("CASE WHEN user_id > AVG(user_id) THEN 1 ELSE 2 END", False), ("STRING_AGG(word, ',')", False),
    ],
)  # fmt: skip
def test_what_looks_at_one_key_alone(expression, by_key):
    key = parsed([f"new={expression}"], ["user_id", "word"], "here")
    if by_key:
        require_by_key(key, "here")
    else:
        with pytest.raises(UsageError, match=r"may read more than one key.*--engine local"):
            require_by_key(key, "here")


@given(
    rows=st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["a", "b", None])), max_size=12), cut=st.integers(1, 12)
)
@pytest.mark.parametrize(
    "expression", ["user_id % 3", "CASE WHEN user_id > 1 THEN UPPER(word) ELSE 'x' END", "word || 'x'"]
)
def test_what_looks_at_one_key_alone_gives_the_same_of_some_as_of_all(expression, rows, cut):
    old = pl.DataFrame(rows, {"user_id": pl.Int64, "word": pl.String}, orient="row")
    key = parsed([f"new={expression}"], old.columns, "here")
    whole = keys_of(old, key, "here")
    parts = [keys_of(part, key, "here") for part in (old[:cut], old[cut:])]
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()
    assert {part.schema for part in parts} == {whole.schema}


@pytest.mark.parametrize("expression", ["NOW()", "CURRENT_TIMESTAMP", "CAST(NOW() AS VARCHAR) || word"])
def test_now_is_one_moment_for_all_parts_of_all_states(expression):
    key = parsed([f"at={expression}"], ["word"], "here")
    require_by_key(key, "here")
    words = pl.DataFrame({"word": ["a"]})
    first = keys_of(words, key, "here")
    begun = time.time_ns()
    while time.time_ns() < begun + 2_000:  # the clock that NOW() reads is in microseconds
        pass
    assert keys_of(words, key, "here") == first
