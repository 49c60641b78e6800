"""Spark shows the rows that `ps.snapshots.read` shows, a range of key groups at a time, and says what it cannot."""

from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from tests.unit.snapshots.conftest import empty_job, job  # noqa: F401 - fixtures

import penstock as ps
from penstock.core.errors import UsageError
from penstock.snapshots.access.content import find_state
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.on_spark.spark_entry import PenstockDataSource
from penstock.snapshots.on_spark.spark_parts import StatePlan

#: The first use of Spark starts a JVM and Python workers; PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


def load(spark, uri, **options):
    return spark.read.format("penstock").options(**options).load(str(uri))


def rows(frame):
    return sorted(pl.from_arrow(frame.toArrow()).rows(), key=repr)


def expected(uri, **options):
    return sorted(ps.snapshots.read(str(uri), **options).collect().rows(), key=repr)


@pytest.mark.parametrize(("uid", "name"), [("people", "profile"), ("people", "__timers_event"), ("totals", "panes")])
def test_rows_are_those_of_the_offline_reader(spark, job, uid, name):  # noqa: F811
    frame = load(spark, job.folder, uid=uid, name=name, partitionBytes=2000)
    assert frame.columns == ps.snapshots.read(str(job.folder), uid=uid, name=name).collect_schema().names()
    found = rows(frame)
    assert found == expected(job.folder, uid=uid, name=name)
    assert bool(found) == (name != "__timers_event"), "the job has no timers"
    assert frame.rdd.getNumPartitions() > 2 or not found


def test_an_older_checkpoint(spark, job):  # noqa: F811
    frame = load(spark, job.folder, uid="people", name="profile", checkpoint=1)
    assert rows(frame) == expected(job.folder, uid="people", name="profile", checkpoint=1)


def test_state_that_is_not_by_key(spark, job):  # noqa: F811
    frame = load(spark, job.folder, uid="orders")
    assert rows(frame) == expected(job.folder, uid="orders")


def test_key_groups_are_read_alone_and_make_up_the_whole(spark, job):  # noqa: F811
    asked = {"uid": "people", "name": "profile", "withHash": "true"}
    parts = [rows(load(spark, job.folder, keyGroups=groups, **asked)) for groups in ("0-99", "100", "101-1023")]
    assert all(parts[::2])
    assert sorted((row for part in parts for row in part), key=repr) == expected(
        job.folder, uid="people", name="profile", with_hash=True
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'needs the option "uid"'),
        ({"uid": "peeple"}, "no state of uid 'peeple'"),
        ({"uid": "people", "nam": "profile"}, "has no option 'nam'"),
        ({"uid": "people", "name": "profile", "checkpoint": "one"}, "checkpoint 'one' is not a number"),
    ],
)
def test_what_cannot_be_read_is_said_when_the_frame_is_made(spark, job, options, message):  # noqa: F811
    with pytest.raises(AnalysisException, match=message):
        load(spark, job.folder, **options)


def test_key_groups_that_are_not_there(spark, job):  # noqa: F811
    frame = load(spark, job.folder, uid="people", name="profile", keyGroups="1000-1024")
    with pytest.raises(AnalysisException, match="it has 0 to 1023"):
        frame.count()


def test_columns_that_the_schema_leaves_out_are_not_read(spark, job):  # noqa: F811
    frame = spark.read.format("penstock").schema("note string, user_id long").options(uid="people", name="profile")
    assert rows(frame.load(str(job.folder))) == sorted(((n, i) for i, (_, n) in job.profiles.items()), key=repr)
    wrong = spark.read.format("penstock").schema("nte string").options(uid="people", name="profile")
    with pytest.raises(AnalysisException, match=r"no column .nte.*did you mean .note."):
        wrong.load(str(job.folder)).count()


def test_change_rows_of_two_checkpoints(spark, job):  # noqa: F811
    asked = {"uid": "people", "name": "profile", "partitionBytes": 2000}
    old, new = (
        {row[0]: row for row in expected(job.folder, uid="people", name="profile", checkpoint=n)} for n in (1, 2)
    )
    changed = [(*new[i], "update", 2) for i in new if i in old and new[i] != old[i]]
    removed = [(*old[i], "delete", 2) for i in old if i not in new]
    assert changed
    assert removed
    assert rows(load(spark, job.folder, since=1, **asked)) == sorted(changed + removed, key=repr)
    assert rows(load(spark, job.folder, since=2, **asked)) == []
    everything = rows(load(spark, job.folder, since=0, **asked))
    assert everything == sorted(((*row, "insert", 2) for row in new.values()), key=repr)


def test_a_stream_has_the_changes_of_each_checkpoint(spark, job, tmp_path):  # noqa: F811
    seen = []

    def collected(frame, _):
        seen.append(
            sorted((row["user_id"], row["orders"], row["__change"], row["__checkpoint"]) for row in frame.collect())
        )

    def ended():
        stream = spark.readStream.format("penstock").options(uid="people", name="profile", since=0)
        begun = stream.load(str(job.folder)).writeStream.foreachBatch(collected)
        query = begun.option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True).start()
        query.awaitTermination()

    ended()
    assert seen == [sorted((i, orders, "insert", 2) for i, (orders, _) in job.profiles.items())]
    job.set({3: (33, "x"), 1_000: (1, "new")})
    job.clear([4])
    job.checkpoint()
    ended()
    assert seen[1:] == [[(3, 33, "update", 3), (4, -4, "delete", 3), (1_000, 1, "insert", 3)]]


def test_what_a_stream_needs_is_said(spark, job):  # noqa: F811
    stream = spark.readStream.format("penstock").options(uid="people", name="profile").load(str(job.folder))
    query = stream.writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"needs the option .since."):
        query.start().awaitTermination()


def test_keys_are_looked_up(spark, job):  # noqa: F811
    asked = {"uid": "people", "name": "profile", "partitionBytes": 2000}
    frame = load(spark, job.folder, keys="[5, 77, 9999]", **asked)
    assert rows(frame) == [(5, 0, -5, None), (77, 0, 77, "n77")]
    assert rows(load(spark, job.folder, keys='[{"user_id": 5}]', since=1, **asked)) == [(5, 0, -5, None, "update", 2)]
    assert rows(load(spark, job.folder, keys="[]", **asked)) == []
    with pytest.raises(AnalysisException, match="'x' is no value of it"):
        load(spark, job.folder, keys='["x"]', **asked).count()


def plan(job, uid, name):  # noqa: F811
    snapshot = open_snapshot(str(job.folder))
    return StatePlan(snapshot, find_state(snapshot.manifest, uid, name), size=2000)


def read_here(parts, columns):
    """The rows of Spark's tasks, without Spark."""
    tables = [pa.Table.from_batches(part.batches(columns), columns) for part in parts]
    return sorted(pl.from_arrow(pa.concat_tables([columns.empty_table(), *tables])).rows())


@pytest.mark.parametrize(
    ("where", "name", "tasks"),
    [
        ("user_id IN (5, 77, 9999)", "profile", 3),
        ("user_id = 5 OR (user_id IN (6, 77) AND note IS NULL)", "profile", 3),
        ("note LIKE '%7' AND orders > 50", "profile", None),
        ("__namespace > 10 AND user_id < 30", "panes", None),
        ("user_id = 7 AND __namespace = 20", "panes", 1),
        ("sum_amount = 100", "panes", None),
    ],
)
def test_tasks_read_the_rows_of_a_condition(job, where, name, tasks):  # noqa: F811
    of = plan(job, "people" if name == "profile" else "totals", name)
    whole = ps.snapshots.read(str(job.folder), uid=of.state.uid, name=name).collect()
    wanted = whole.filter(pl.sql_expr(where))
    assert wanted.height
    parts = of.where(pl.sql_expr(where)).parts()
    assert read_here(parts, of.columns(with_hash=False).remove(1)) == sorted(wanted.drop(wanted.columns[1]).rows())
    assert tasks is None or len(parts) <= tasks < len(of.parts())


def test_keys_that_are_close_share_a_task(job):  # noqa: F811
    keys = pa.table({"user_id": pa.array(range(250), pa.int64())})
    of = plan(job, "people", "profile").of_keys(keys)
    assert len(of.parts()) > 2
    few = replace(of, size=1 << 20).parts()
    assert len(few) == 2, "one for each subtask"
    assert sum(part.keys.num_rows for part in few) == 250
    columns = of.columns(with_hash=False)
    assert read_here(few, columns) == read_here(of.parts(), columns)
    assert len(read_here(few, columns)) == len(job.profiles)


def test_changes_of_a_condition(job):  # noqa: F811
    of = plan(job, "people", "profile")
    columns = pa.schema([("user_id", pa.int64()), ("orders", pa.int64())])
    some = of.where(pl.sql_expr("user_id IN (5, 7, 77)")).changes_since(1)
    assert read_here(some, columns) == [(5, -5), (7, 7)]
    gone = of.where(pl.sql_expr("__change = 'delete'")).changes_since(1)
    assert read_here(gone, columns) == [(7, 7), (249, 249)]


def test_a_condition_and_columns_choose_what_is_read(spark, job):  # noqa: F811
    asked = {"uid": "people", "name": "profile", "columns": "orders, user_id"}
    found = load(spark, job.folder, where="user_id IN (5, 77) AND note = 'n77'", **asked)
    assert found.columns == ["orders", "user_id"]
    assert rows(found) == [(77, 77)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "nte = 'x'"}, "where .nte = 'x'.: .*nte"),
        ({"where": "orders = MAX(orders)"}, "may read more than one row"),
        ({"columns": "user_id, nte"}, "no column .nte.*did you mean .note."),
    ],
)
def test_a_condition_or_column_that_is_none_is_said(job, options, message):  # noqa: F811
    source = PenstockDataSource({"path": str(job.folder), "uid": "people", "name": "profile", **options})
    with pytest.raises(UsageError, match=message):
        source.reader(source.schema())
