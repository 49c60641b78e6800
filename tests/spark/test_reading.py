"""Spark shows the rows that `ps.snapshots.read` shows, a range of key groups at a time, and says what it cannot."""

import polars as pl
import pytest
from pyspark.errors import AnalysisException
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
