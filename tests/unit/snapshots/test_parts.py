"""A state that many tasks write is the one that is written here, whatever tasks are tried twice, fail or come late."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pytest
from tests.support.depth import scaled

import penstock as ps
from penstock.checkpoint.local_store import LocalStore
from penstock.core.errors import SavepointInUseError, StorageError, UsageError
from penstock.snapshots.access.declared import with_states
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff
from penstock.snapshots.access.verify import verify
from penstock.snapshots.rewrite import parts as module
from penstock.snapshots.rewrite.parts import abort_write, finish, new_target, plan_write, replaced_target, write_part
from penstock.snapshots.rewrite.split_points import SnapshotLimits
from penstock.snapshots.rewrite.writing import state_rows
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

TOKENS = iter(f"{number:012x}" for number in range(1 << 20))


class Profile(NamedTuple):
    orders: int
    note: str | None


class People(ps.KeyedProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state(ttl="1h")
    recent: ps.ListState[int] = ps.list_state()
    by_word: ps.MapState[str, int] = ps.map_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Profile]:
        yield Profile(1, None)


def graph_of(parallelism=3):
    env = ps.Environment(parallelism=parallelism, checkpoint_interval="1s", key_groups=128)
    watermarks = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    keyed = env.from_source(DatagenSource(rows=10), watermarks=watermarks, uid="orders").key_by("user_id")
    keyed.process(People()).uid("people").sink_to(FileSink("a"), uid="out")
    counted = keyed.window(ps.Tumbling("10s")).aggregate(total=ps.sum("amount")).uid("windows")
    counted.sink_to(FileSink("b"), uid="out2")
    return with_states(env.job_graph("any"))


GRAPH = graph_of()
SMALL = SnapshotLimits(run_bytes=2_000, piece_bytes=1_500, compared_bytes=1_500)


def profiles(ids, **more):
    ids = list(ids)
    frame = pl.DataFrame(
        {"user_id": ids, "orders": [2 * i for i in ids], "note": [None if i % 3 else f"n{i}" for i in ids]},
        schema={"user_id": pl.Int64, "orders": pl.Int64, "note": pl.String},
    )
    return frame.with_columns(__ttl=pl.lit(7, pl.Int64), **more)


def plan(uri, *place, source="", overwrite=False, graph=GRAPH):
    target = (replaced_target if overwrite else new_target)(str(uri), next(TOKENS))
    rows = state_rows(graph, *(place or ("people", "profile")), "test")
    return plan_write(graph, rows, target, str(source), SMALL)


def wrote(plan, frame, task):
    return write_part(plan, frame.to_arrow().to_batches(max_chunksize=13), task)


def written(uri, frames, *place, **options):
    made = plan(uri, *place, **options)
    finish(made, [wrote(made, frame, str(number)) for number, frame in enumerate(frames)])
    return str(uri)


def same(uri, other):
    found = diff(open_snapshot(str(other)), open_snapshot(str(uri)))
    report = verify(str(uri))
    return {d.verdict for d in found} == {"same"} and (report.damaged, report.unknown) == ([], [])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read(uri, name="profile", uid="people"):
    return ps.snapshots.read(str(uri), uid=uid, name=name).collect()


def shared_out(frame, tasks, chance, by=None):
    """Rows in any order, shared out to tasks; those of one value of `by` to one."""
    where = [chance.randrange(tasks) for _ in range(frame.height)]
    if by is not None:
        place = {value: chance.randrange(tasks) for value in frame[by].unique()}
        where = [place[value] for value in frame[by]]
    frame = frame.with_columns(__task=pl.Series(where, dtype=pl.Int64)).sample(fraction=1, shuffle=True, seed=7)
    return [frame.filter(pl.col("__task") == task).drop("__task") for task in range(tasks)]


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_it_is_what_is_written_here(tmp_path, seed):
    chance = random.Random(seed)
    users = chance.sample(range(5_000), 250)
    lists = [(u, entry, chance.randrange(99)) for u in users[:60] for entry in chance.sample(range(-50, 50), 4)]
    lists += [(users[0], entry, entry) for entry in range(100, 250)]
    words = [(u, word, chance.randrange(99)) for u in users[:80] for word in chance.sample("abcdefg", 3)]
    panes = [(u, at * 10_000_000, 1, u) for u in users for at in chance.sample(range(5), 2)]
    timers = [(u, chance.randrange(10**9)) for u in users]
    states = {
        ("people", "profile"): (profiles(users), None),
        ("people", "recent"): (pl.DataFrame(lists, ["user_id", "__entry", "value"], orient="row"), "user_id"),
        ("people", "by_word"): (pl.DataFrame(words, ["user_id", "__entry", "value"], orient="row"), None),
        ("people", "__timers_event"): (pl.DataFrame(timers, ["user_id", "__namespace"], orient="row"), None),
        ("windows", "panes"): (
            pl.DataFrame(panes, ["user_id", "__namespace", "__rows", "sum_amount"], orient="row"), None,
        ),
    }  # fmt: skip
    for place, (frame, by) in states.items():
        here = ps.snapshots.write(str(tmp_path / f"here-{place}"), {place: frame}, job=GRAPH)
        shares = shared_out(frame, chance.randrange(1, 6), chance, by)
        there = written(tmp_path / f"there-{place}", shares, *place)
        assert same(there, here), place
        assert read(there, place[1], place[0]).height == frame.height


def test_rows_of_the_widest_range_and_none_at_all(tmp_path):
    here = ps.snapshots.write(str(tmp_path / "here"), {("people", "profile"): profiles([])}, job=GRAPH)
    assert same(written(tmp_path / "none", []), here)
    assert same(written(tmp_path / "empty", [profiles([]), profiles([])]), here)
    one = ps.snapshots.write(str(tmp_path / "one"), {("people", "profile"): profiles([5])}, job=GRAPH)
    assert same(written(tmp_path / "with", [profiles([]), profiles([5])]), one)


@pytest.mark.parametrize(
    "frames", [[profiles([*range(300), 7])], [profiles(range(200)), profiles([*range(200, 300), 7])]]
)
def test_two_rows_of_one_key_are_refused_wherever_they_are(tmp_path, frames):
    with pytest.raises(UsageError, match="2 rows share their key with another row, for example user_id=7"):
        written(tmp_path / "sp", frames)
    assert not (tmp_path / "sp" / "manifest.json").exists()


def test_elements_of_a_list_in_two_tasks_are_refused(tmp_path):
    frames = [pl.DataFrame({"user_id": [1, 2], "__entry": [entry, entry], "value": [1, 1]}) for entry in (0, 5)]
    with pytest.raises(UsageError, match=r"share their key.*elements of a list are in one task"):
        written(tmp_path / "sp", frames, "people", "recent")


def test_files_of_ranges_of_their_own_are_not_read_again(tmp_path, monkeypatch):
    frame = profiles(range(400))
    table = state_rows(GRAPH, "people", "profile", "test").typed(frame.to_arrow())
    by_hash = pl.from_arrow(table.select(["__key_hash", *frame.columns])).drop("__key_hash")
    made = plan(tmp_path / "sp")
    found = [wrote(made, by_hash[start : start + 100], str(start)) for start in range(0, 400, 100)]
    monkeypatch.setattr(module, "SegmentFile", None)
    finish(made, found)
    assert read(tmp_path / "sp").drop("__namespace").select(frame.columns).sort("user_id").equals(frame)


def test_a_try_that_does_not_count_leaves_nothing(tmp_path):
    made = plan(tmp_path / "sp")
    wrote(made, profiles(range(200)), "0-1")
    found = [wrote(made, profiles(range(100)), "0-2"), wrote(made, profiles(range(100, 150)), "1-3")]
    finish(made, found)
    report = verify(str(tmp_path / "sp"))
    assert (report.damaged, report.unknown) == ([], [])
    assert read(tmp_path / "sp").height == 150
    before = files(tmp_path / "sp")
    with pytest.raises(StorageError, match="while a task was writing"):
        wrote(made, profiles(range(100)), "0-4")
    assert files(tmp_path / "sp") == before, "one that comes late takes its files back"


def test_one_that_is_killed_between_two_files_leaves_nothing(tmp_path, monkeypatch):
    made = plan(tmp_path / "sp")
    with monkeypatch.context() as context:
        context.setattr(type(made.target), "require_open", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            wrote(made, profiles(range(100)), "0-1")
    assert files(tmp_path / "sp"), "the test shows nothing"
    finish(made, [wrote(made, profiles(range(100)), "0-2")])
    assert verify(str(tmp_path / "sp")).unknown == []


def test_what_is_given_up_leaves_the_place_as_it_was(tmp_path):
    made = plan(tmp_path / "sp")
    wrote(made, profiles(range(100)), "0")
    assert files(tmp_path / "sp")
    abort_write(made)
    assert files(tmp_path / "sp") == []
    written(tmp_path / "sp", [profiles(range(10))])
    before = files(tmp_path / "sp")
    again = plan(tmp_path / "sp", overwrite=True)
    wrote(again, profiles(range(100)), "0")
    abort_write(again)
    assert files(tmp_path / "sp") == before
    assert read(tmp_path / "sp").height == 10


def test_giving_up_what_was_finished_removes_nothing(tmp_path):
    made = plan(tmp_path / "sp")
    finish(made, [wrote(made, profiles(range(100)), "0")])
    before = files(tmp_path / "sp")
    abort_write(made)
    assert files(tmp_path / "sp") == before
    assert read(tmp_path / "sp").height == 100


def test_a_savepoint_is_replaced_whole(tmp_path):
    written(tmp_path / "sp", [profiles(range(100))])
    old = files(tmp_path / "sp")
    with pytest.raises(UsageError, match="already holds a savepoint"):
        plan(tmp_path / "sp")
    made = plan(tmp_path / "sp", overwrite=True)
    found = wrote(made, profiles(range(50, 70)), "0")
    assert read(tmp_path / "sp").height == 100, "it is there until the other one is"
    finish(made, [found])
    assert read(tmp_path / "sp")["user_id"].sort().to_list() == list(range(50, 70))
    assert set(files(tmp_path / "sp")) & set(old) == {"manifest.json"}
    assert verify(str(tmp_path / "sp")).unknown == []


def test_of_two_that_replace_it_at_once_one_is_told(tmp_path):
    written(tmp_path / "sp", [profiles(range(100))])
    slow, fast = (plan(tmp_path / "sp", overwrite=True) for _ in range(2))
    found = wrote(slow, profiles(range(5)), "0")
    finish(fast, [wrote(fast, profiles(range(7)), "0")])
    with pytest.raises(StorageError, match="not the one to replace"):
        finish(slow, [found])
    abort_write(slow)
    assert read(tmp_path / "sp").height == 7
    assert verify(str(tmp_path / "sp")).unknown == []


def test_what_a_write_that_died_has_left_is_replaced(tmp_path):
    wrote(plan(tmp_path / "sp"), profiles(range(100)), "0")
    with pytest.raises(UsageError, match="is not empty"):
        plan(tmp_path / "sp")
    written(tmp_path / "sp", [profiles(range(10))], overwrite=True)
    assert read(tmp_path / "sp").height == 10
    assert verify(str(tmp_path / "sp")).unknown == []


def test_what_a_write_that_died_behind_its_manifest_has_left_is_removed_by_the_next(tmp_path, monkeypatch):
    ps.snapshots.write(str(tmp_path / "sp"), {("people", "profile"): profiles(range(100))}, job=GRAPH)
    old = files(tmp_path / "sp")
    made = plan(tmp_path / "sp", overwrite=True)
    found = wrote(made, profiles(range(10)), "0")
    with monkeypatch.context() as killed:
        killed.setattr(LocalStore, "delete", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finish(made, [found])
    assert read(tmp_path / "sp").height == 10
    assert set(old) < set(files(tmp_path / "sp"))
    written(tmp_path / "sp", [profiles(range(20))], overwrite=True)
    assert read(tmp_path / "sp").height == 20
    assert verify(str(tmp_path / "sp")).unknown == []


@pytest.mark.parametrize("name", ["others/profile/part-00000.parquet", "people/profile/part-0.parquet", "pending/a"])
def test_beside_a_savepoint_what_is_no_part_of_one_is_not_removed(tmp_path, name):
    written(tmp_path / "sp", [profiles(range(10))])
    path = tmp_path / "sp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="does not belong to a savepoint"):
        plan(tmp_path / "sp", overwrite=True)


@pytest.mark.parametrize("name", ["notes.txt", "people/profile/part-00000.parquet", "job/manifests/1.json"])
def test_what_is_no_savepoint_is_not_replaced(tmp_path, name):
    path = tmp_path / "sp" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="does not belong to a savepoint"):
        plan(tmp_path / "sp", overwrite=True)


def test_one_that_a_job_was_started_from_is_not_replaced(tmp_path):
    written(tmp_path / "sp", [profiles(range(10))])
    made = plan(tmp_path / "sp", overwrite=True)
    (tmp_path / "sp" / "claimed.json").write_text("{}")
    with pytest.raises(SavepointInUseError, match="a job was started"):
        plan(tmp_path / "sp", overwrite=True)
    with pytest.raises(SavepointInUseError, match="a job was started"):
        finish(made, [wrote(made, profiles(range(3)), "0")])
    abort_write(made)
    assert read(tmp_path / "sp").height == 10


def test_one_state_of_a_copy(tmp_path):
    panes = pl.DataFrame({"user_id": range(50), "__namespace": 0, "__rows": 1, "sum_amount": range(50)})
    tables = {("people", "profile"): profiles(range(100)), ("windows", "panes"): panes}
    first = ps.snapshots.write(str(tmp_path / "first"), tables, job=graph_of(parallelism=2))
    written(tmp_path / "second", [profiles(range(10)), profiles(range(500, 600))], source=first)
    tables["people", "profile"] = pl.concat([profiles(range(10)), profiles(range(500, 600))])
    here = ps.snapshots.write(str(tmp_path / "here"), tables, job=GRAPH)
    assert same(tmp_path / "second", here)
    manifest = open_snapshot(str(tmp_path / "second")).manifest
    assert manifest.operators["people"][0] == 2, "it is cut as the other states are"
    words = pl.DataFrame({"user_id": [1], "__entry": ["a"], "value": [1]})
    written(tmp_path / "second", [words], "people", "by_word", source=tmp_path / "second", overwrite=True)
    tables["people", "by_word"] = words
    assert same(tmp_path / "second", ps.snapshots.write(str(tmp_path / "both"), tables, job=GRAPH))


def test_positions_and_pending_output_are_copied(job, tmp_path):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s", key_groups=1024)
    keyed = env.from_source(DatagenSource(rows=10), uid="orders").key_by("user_id")
    keyed.process(Plain()).uid("people").sink_to(FileSink("a"), uid="out")
    graph = with_states(env.job_graph("any"))
    new = profiles(range(30)).drop("__ttl")
    written(tmp_path / "sp", [new], source=job.folder, graph=graph)
    assert read(tmp_path / "sp").drop("__namespace").sort("user_id").equals(new)
    panes = read(tmp_path / "sp", "panes", "totals")
    assert {row[:2]: row[2:] for row in panes.rows()} == job.panes
    report, manifest = verify(str(tmp_path / "sp")), open_snapshot(str(tmp_path / "sp")).manifest
    assert (report.damaged, report.unknown) == ([], [])
    assert [len(part.operator) for part in manifest.subtasks] == [1, 1]
    assert (len(manifest.pending), manifest.kind, manifest.origin) == (1, "savepoint", job.store.uri)


class Plain(ps.KeyedProcessFunction):
    profile: ps.ValueState[Profile] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Profile]:
        yield Profile(1, None)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (profiles(range(9)).drop("orders"), r"test: people/profile: the column 'orders' \(int64\) is missing"),
        (profiles(range(9)).drop("__ttl"), "the column '__ttl'.*missing"),
        (profiles(range(9)).with_columns(orders=pl.lit(None)), "column 'orders' holds nulls"),
        (profiles(range(9)).with_columns(orders=pl.lit(1.5)), "cannot be int64"),
    ],
)
def test_what_the_job_could_not_restore_is_refused(tmp_path, rows, error):
    with pytest.raises(UsageError, match=error):
        wrote(plan(tmp_path / "sp"), rows, "0")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (("peeple", None), "no keyed state of uid 'peeple'.*did you mean 'people'"),
        (("people", None), "'people' declares 3 states .*by_word"),
        (("people", "profil"), "declares no state 'profil'.*did you mean 'profile'"),
    ],
)
def test_states_that_are_not_there(place, error):
    with pytest.raises(UsageError, match=error):
        state_rows(GRAPH, *place, "test")


def test_the_only_state_needs_no_name():
    assert state_rows(GRAPH, "windows", None, "test").state == "panes"


def test_batches_without_rows(tmp_path):
    made = plan(tmp_path / "sp")
    empty = pa.RecordBatch.from_pylist([], schema=profiles([]).to_arrow().schema)
    finish(made, [write_part(made, [empty, *profiles([1]).to_arrow().to_batches(), empty], "0")])
    assert read(tmp_path / "sp").height == 1
