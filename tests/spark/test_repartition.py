"""A snapshot that Spark cuts anew is the one that is cut here: the same rows in the same parts, also a task twice."""

import functools
import json
import subprocess
import sys

import msgspec
import polars as pl
import pytest
from tests.support.depth import depth
from tests.unit.snapshots.conftest import empty_job, job  # noqa: F401 - fixtures

import penstock as ps
from penstock.core.errors import StorageError
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock.snapshots.on_spark.spark_rewrite import on_spark
from penstock.snapshots.rewrite.prepared import Preparation, RewritePlan, key_change
from penstock.snapshots.rewrite.repartition import repartition as plain_repartition
from penstock.snapshots.rewrite.repartition import run_sequentially
from penstock.snapshots.rewrite.split_points import SnapshotLimits

#: The first use of Spark starts a JVM and Python workers; PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


#: Numbers of key groups, one after the other: one that is no power of two, and a large one.
GROUPS = (128, 192, 1024) if depth() == "nightly" else (192, 1024)
#: With small cuts.
repartition = functools.partial(plain_repartition, limits=SnapshotLimits(range_bytes=2000))


def content(uri):
    manifest = open_snapshot(uri).manifest
    blank = {"note": "", "origin": ""}
    names = [("people", "profile"), ("people", "__timers_event"), ("totals", "panes")]
    frames = [ps.snapshots.read(uri, uid=uid, name=name, with_hash=True).collect() for uid, name in names]
    return msgspec.structs.replace(manifest, **blank), [frame.rows() for frame in frames]


def test_from_128_to_192_to_1024_groups_it_is_what_the_local_way_gives(spark_context, job, tmp_path):  # noqa: F811
    here = there = str(job.folder)
    for groups in GROUPS:
        here = repartition(open_snapshot(here), str(tmp_path / f"local-{groups}"), key_groups=groups)
        there = repartition(
            open_snapshot(there), str(tmp_path / f"spark-{groups}"), key_groups=groups, run=on_spark(spark_context)
        )
        assert content(there) == content(here)
        report = verify(there)
        assert (report.damaged, report.unknown) == ([], [])
        assert len(list((tmp_path / f"spark-{groups}" / "people" / "profile").iterdir())) > 2
    first = content(str(repartition(open_snapshot(str(job.folder)), str(tmp_path / "whole"))))[1]
    assert [sorted(rows, key=repr) for rows in content(there)[1]] == [sorted(rows, key=repr) for rows in first]


def test_a_task_that_runs_twice_writes_the_same(job, tmp_path):  # noqa: F811
    def twice(cuts, source, target):
        run_sequentially(cuts, source, target)
        return run_sequentially(cuts, source, target)

    once = repartition(open_snapshot(str(job.folder)), str(tmp_path / "once"), key_groups=256)
    again = repartition(open_snapshot(str(job.folder)), str(tmp_path / "again"), key_groups=256, run=twice)
    assert content(again) == content(once)


def test_a_task_that_fails_leaves_no_savepoint_and_says_why(spark_context, job, tmp_path):  # noqa: F811
    snapshot = open_snapshot(str(job.folder))
    segments = [s for part in snapshot.manifest.subtasks for state in part.keyed for s in state.segments]
    file = max((segment.file for segment in segments), key=lambda file: file.length)
    victim = job.folder / file.path
    data = bytearray(victim.read_bytes())
    data[file.offset + file.length // 2] ^= 0xFF
    victim.write_bytes(bytes(data))
    with pytest.raises(StorageError, match=r"a Spark task failed.*damaged"):
        repartition(snapshot, str(tmp_path / "sp"), key_groups=256, run=on_spark(spark_context))
    assert not (tmp_path / "sp" / "manifest.json").exists()


def test_rows_of_all_cuts_are_the_rows(spark_context, tmp_path, job):  # noqa: F811
    uri = repartition(open_snapshot(str(job.folder)), str(tmp_path / "sp"), key_groups=64, run=on_spark(spark_context))
    found = ps.snapshots.read(uri, uid="people", name="profile").collect()
    assert {row[0]: row[2:] for row in found.rows()} == job.profiles
    assert found.select(pl.col("user_id").is_duplicated().any()).item() is False


@pytest.mark.nightly
def test_files_that_spark_prepares_while_the_job_runs(spark_context, job, tmp_path):  # noqa: F811
    limits = SnapshotLimits(large_file_bytes=3000, run_file_bytes=4000)
    made = {}
    key = ["user=CAST(user_id AS VARCHAR)"]
    for where, run in (("here", run_sequentially), ("spark", on_spark(spark_context))):
        snapshot = open_snapshot(str(job.folder), checkpoint=2)
        change = key_change(snapshot, "people", key)
        done = Preparation.of(snapshot, str(tmp_path / f"{where}-files"), change=change, limits=limits).write(run)
        assert done.written > 2
        if where == "here":
            job.set({i: (i, "later") for i in range(100, 120)})
            job.clear([3, 110])
            job.checkpoint()
        newest = open_snapshot(str(job.folder))
        change = key_change(newest, "people", key)
        plan = RewritePlan.of(newest, str(tmp_path / f"{where}-files"), change=change, key_groups=64, limits=limits)
        assert len(plan.missing) < sum(len(runs) for _, runs in plan.states)
        uri = plan.write(str(tmp_path / where), run)
        assert verify(uri).damaged == []
        profiles = ps.snapshots.read(uri, uid="people", name="profile").collect().sort("user")
        made[where] = (profiles.rows(), (tmp_path / f"{where}-files" / "runs"))
    assert {int(user): value for user, _, *value in made["here"][0]} == {i: [*v] for i, v in job.profiles.items()}
    assert made["spark"][0] == made["here"][0]
    assert names(made["spark"][1]) == names(made["here"][1])


def names(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.nightly
def test_the_command_line_uses_spark_where_there_is_much(job, tmp_path):  # noqa: F811
    command = [sys.executable, "-m", "penstock.cli.main", "state", "repartition", str(job.folder), str(tmp_path / "sp")]
    options = ["--key-groups", "64", "--master", "local[1]", "--spark-above", "0", "--json"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert open_snapshot(str(tmp_path / "sp")).manifest.key_groups == 64
    assert not (tmp_path / "artifacts").exists()
    assert "Spark" in done.stderr, "it was done without"
    found = ps.snapshots.read(str(tmp_path / "sp"), uid="people", name="profile").collect()
    assert {row[0]: row[2:] for row in found.rows()} == job.profiles
