"""Spark shows the rows that `ps.snapshots.read` shows, a range of key groups at a time, and says what it cannot."""

import polars as pl
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from tests.unit.snapshots.conftest import empty_job, job  # noqa: F401 - fixtures

import penstock as ps

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
