"""A savepoint of tables is what was given; what the job could not restore is refused with the column's name."""

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
import pytest

import penstock as ps
from penstock.checkpoint.stores import open_store
from penstock.core.errors import StorageError, UsageError
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite.repartition import repartition, run_sequentially
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Profile(NamedTuple):
    orders: int
    note: str | None


class Order(ps.Schema):
    user_id: int
    amount: int


class People(ps.KeyedProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state()
    recent: ps.ListState[int] = ps.list_state()
    by_word: ps.MapState[str, int] = ps.map_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Profile]:
        yield Profile(1, None)


class Pair(ps.KeyedCoProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state(ttl="1h")

    def process1(self, row: Order, ctx) -> Iterator[Profile]:
        yield Profile(1, None)

    def process2(self, row: Order, ctx) -> Iterator[Profile]:
        yield Profile(2, None)


class Ruled(ps.KeyedBroadcastProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state()
    rules: ps.BroadcastState[str, int] = ps.broadcast_state()

    def process(self, row: Order, ctx) -> Iterator[Profile]:
        yield Profile(1, None)

    def process_broadcast(self, row: Order, ctx) -> Iterator[Profile]:
        yield Profile(2, None)


@pytest.fixture
def env():
    env = ps.Environment(parallelism=3, checkpoint_interval="1s", key_groups=128)
    watermarks = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    keyed = env.from_source(DatagenSource(rows=10), watermarks=watermarks, uid="orders").key_by("user_id")
    keyed.process(People()).uid("people").sink_to(FileSink("a"), uid="out")
    counted = keyed.window(ps.Tumbling("10s")).aggregate(total=ps.sum("amount")).uid("windows")
    counted.sink_to(FileSink("b"), uid="out2")
    return env


PROFILES = pl.DataFrame({"user_id": range(500), "orders": [i * 2 for i in range(500)], "note": ["a", None] * 250})


def read(uri, name, uid="people"):
    return ps.snapshots.read(uri, uid=uid, name=name).collect()


def test_what_is_written_is_read(env, tmp_path):
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): PROFILES}, job=env)
    found = read(uri, "profile")
    assert found.drop("__namespace").sort("user_id").equals(PROFILES)
    assert set(found["__namespace"]) == {0}
    report = verify(uri)
    assert (report.damaged, report.unknown, report.files) == ([], [], 3)
    manifest = open_snapshot(uri).manifest
    assert (manifest.key_groups, len(manifest.subtasks)) == (128, 3)


def test_lists_maps_panes_and_timers(env, tmp_path):
    lists = pl.DataFrame({"user_id": [1, 1, 2], "__entry": [0, 1, 0], "value": [5, 6, 7]})
    maps = pl.DataFrame({"user_id": [1, 1], "__entry": ["a", "b"], "value": [1, 2]})
    panes = pl.DataFrame({"user_id": [1, 1], "__namespace": [0, 10_000_000], "__rows": [1, 2], "sum_amount": [3, 4]})
    timers = pl.LazyFrame({"user_id": [1], "__namespace": [77]})
    uri = ps.snapshots.write(
        str(tmp_path / "sp"),
        {
            ("people", "recent"): lists, ("people", "by_word"): maps.to_arrow(), ("windows", "panes"): panes,
            ("people", "__timers_event"): timers,
        },
        job=env.job_graph("any"),
    )  # fmt: skip
    assert read(uri, "recent").drop("__namespace").sort("user_id", "__entry").equals(lists)
    assert read(uri, "by_word").drop("__namespace").sort("__entry").equals(maps)
    assert read(uri, "panes", "windows").sort("__namespace").equals(panes)
    assert read(uri, "__timers_event").rows() == [(1, 77)]
    assert verify(uri).damaged == []


def test_narrower_columns_are_widened(env, tmp_path):
    narrow = PROFILES.cast({"user_id": pl.Int16, "orders": pl.Int32})
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): narrow}, job=env)
    assert read(uri, "profile").drop("__namespace").sort("user_id").equals(PROFILES)


@pytest.mark.parametrize(
    ("place", "rows", "error"),
    [
        (("peeple", "profile"), PROFILES, "no keyed state of uid 'peeple'.*did you mean 'people'"),
        (("people", "profil"), PROFILES, "declares no state 'profil'.*did you mean 'profile'"),
        (("people", "profile"), PROFILES.drop("orders"), r"column 'orders' \(int64\) is missing"),
        (("people", "profile"), PROFILES.rename({"note": "nota"}), "no column 'nota'.*did you mean 'note'"),
        (("people", "profile"), PROFILES.with_columns(orders=pl.lit("x")), "of type .*string.* cannot be int64"),
        (("people", "profile"), PROFILES.with_columns(orders=pl.lit(1.5)), "cannot be int64"),
        (("people", "profile"), PROFILES.with_columns(orders=None), "column 'orders' holds nulls"),
        (("people", "profile"), pl.concat([PROFILES, PROFILES.head(1)]), "2 rows share their key.*user_id=0"),
        (("windows", "panes"), pl.DataFrame({"user_id": [1], "__rows": [1], "sum_amount": [1]}), "'__namespace'.*miss"),
        (("people", "__timers_event"), pl.DataFrame({"user_id": [1]}), "'__namespace'.*missing"),
        (("people", "profile"), [1, 2], "list is not a table"),
    ],
)  # fmt: skip
def test_what_the_job_could_not_restore_is_refused(env, tmp_path, place, rows, error):
    with pytest.raises(UsageError, match=error):
        ps.snapshots.write(str(tmp_path / "sp"), {place: rows}, job=env)
    assert not (tmp_path / "sp").exists(), "nothing is written"


def test_indices_of_a_list_are_numbered_anew_by_key(env, tmp_path):
    lists = pl.DataFrame({"user_id": [1, 2, 1, 1], "__entry": [9, -3, 2, 4], "value": [7, 8, 5, 6]})
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "recent"): lists}, job=env)
    found = read(uri, "recent").select("user_id", "__entry", "value").sort("user_id", "__entry")
    assert found.rows() == [(1, 0, 5), (1, 1, 6), (1, 2, 7), (2, 0, 8)]


@pytest.mark.parametrize(
    ("state", "entries"), [("recent", [0, None]), ("recent", [None, None]), ("by_word", ["a", None])]
)
def test_an_entry_without_index_or_key_is_refused(env, tmp_path, state, entries):
    rows = pl.DataFrame({"user_id": [1, 2], "__entry": entries, "value": [5, 6]})
    with pytest.raises(UsageError, match="column '__entry' holds nulls"):
        ps.snapshots.write(str(tmp_path / "sp"), {("people", state): rows}, job=env)


@pytest.mark.parametrize("kind", ["pair", "ruled"])
def test_functions_of_two_streams(kind, tmp_path):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s")
    orders = env.from_source(DatagenSource(rows=10), uid="orders")
    others = env.from_source(DatagenSource(rows=10), uid="others")
    keyed, other = orders.key_by("user_id"), others.key_by("user_id") if kind == "pair" else others.broadcast()
    keyed.connect(other).process(Pair() if kind == "pair" else Ruled()).uid("both").sink_to(FileSink("a"), uid="out")
    place, rows = ("both", "profile"), PROFILES.with_columns(__ttl=7) if kind == "pair" else PROFILES
    uri = ps.snapshots.write(str(tmp_path / "sp"), {place: rows}, job=env)
    assert read(uri, "profile", "both").drop("__namespace").sort("user_id").select(PROFILES.columns).equals(PROFILES)
    for name in ("orders", *(["__ttl"] if kind == "pair" else [])):
        with pytest.raises(UsageError, match=f"column '{name}' holds nulls"):
            ps.snapshots.write(str(tmp_path / "no"), {place: rows.with_columns(pl.lit(None).alias(name))}, job=env)
    assert not (tmp_path / "no").exists()


def test_a_place_that_is_taken(env, tmp_path):
    ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): PROFILES}, job=env)
    with pytest.raises(UsageError, match="already holds a savepoint"):
        ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): PROFILES.head(3)}, job=env)
    assert read(str(tmp_path / "sp"), "profile").height == 500


@pytest.mark.parametrize("groups", [2, 7, 4096])
def test_repartitioned_it_holds_the_same_in_other_parts(job, tmp_path, groups):
    uri = repartition(open_snapshot(str(job.folder)), str(tmp_path / "sp"), key_groups=groups)
    report = verify(uri)
    assert (report.damaged, report.unknown) == ([], [])
    found = read(uri, "profile")
    assert {row[0]: row[2:] for row in found.rows()} == job.profiles
    panes = read(uri, "panes", "totals")
    assert {row[:2]: row[2:] for row in panes.rows()} == job.panes
    written = open_snapshot(uri).manifest
    assert (written.kind, written.key_groups, written.origin) == ("savepoint", groups, job.store.uri)
    (output,) = written.pending
    assert output.files[0].path.startswith("pending/")
    assert [len(part.operator) for part in written.subtasks] == [1, 1]


def test_an_older_checkpoint_becomes_a_savepoint(job, tmp_path):
    uri = repartition(open_snapshot(str(job.folder), checkpoint=1), str(tmp_path / "sp"))
    assert read(uri, "profile").height == 250
    assert open_snapshot(uri).manifest.key_groups == 1024


def test_fewer_groups_than_subtasks_are_refused(job, tmp_path):
    with pytest.raises(UsageError, match="1 key groups are fewer than the 2 subtasks"):
        repartition(open_snapshot(str(job.folder)), str(tmp_path / "sp"), key_groups=1)


def test_one_whose_files_were_removed_meanwhile_leaves_no_savepoint(job, tmp_path):
    target = open_store(str(tmp_path / "sp"))

    def tidied_up(cuts, source, into):
        written = run_sequentially(cuts, source, into)
        for key in target.list(""):
            target.delete(key)
        return written

    with pytest.raises(StorageError, match="it now belongs to no run"):
        repartition(open_snapshot(str(job.folder)), target.uri, run=tidied_up)
    assert "manifest.json" not in target.list("")


def test_of_two_at_once_one_is_refused(job, tmp_path):
    target = str(tmp_path / "sp")

    def another_one(cuts, source, into):
        with pytest.raises(UsageError, match="is not empty"):
            repartition(open_snapshot(str(job.folder)), target)
        return run_sequentially(cuts, source, into)

    uri = repartition(open_snapshot(str(job.folder)), target, run=another_one)
    assert verify(uri).damaged == []
    assert "writing.lock" not in open_store(uri).list("")
