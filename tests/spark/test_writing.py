"""A savepoint that Spark writes is the one that is written here, and a job starts from it; nothing less shows."""

import os
import subprocess
import sys
from itertools import pairwise

import polars as pl
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from tests.cluster.test_offline_state import JOB, Jobs, begun_with, expected, held

import penstock as ps
from penstock.api.job_file import planned
from penstock.core.keygroup import first_hash_of
from penstock.graph.job_graph import encode_graph
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff
from penstock.snapshots.access.verify import verify

#: The first use of Spark starts a JVM and Python workers; PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
VALUES = {
    "name": "offline", "rows": 400, "users": 50, "rate": 4_000, "parallelism": 2, "key_groups": 128, "state": "pair",
    "extra": "",
}  # fmt: skip


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB.format(**VALUES, root=str(tmp_path / "root")))
    return path


def people(count):
    return pl.DataFrame({"user_id": range(count), "orders": range(count), "amount": [7 * i for i in range(count)]})


def frame(spark, rows):
    return spark.createDataFrame(rows.to_arrow())


def save(frame, uri, job, uid="people", mode="append", **options):
    frame.write.format("penstock").options(job=str(job), uid=uid, **options).mode(mode).save(str(uri))


def verdicts(uri, other):
    return {(d.uid, d.state): d.verdict for d in diff(open_snapshot(str(uri)), open_snapshot(str(other)))}


def whole(uri):
    report = verify(str(uri))
    return (report.damaged, report.unknown) == ([], [])


def by_hash(rows, tasks):
    return rows.repartitionByRange(tasks, F.xxhash64("user_id"))


def test_it_is_what_is_written_here_and_spark_reads_it_by_key_group(spark, job_file, tmp_path):
    rows = people(3_000)
    here = ps.snapshots.write(str(tmp_path / "here"), {("people", "pair"): rows}, job=planned(job_file, {}, ""))
    save(frame(spark, rows).repartition(3), tmp_path / "any", job_file)
    save(by_hash(frame(spark, rows), 5), tmp_path / "ranged", job_file, name="pair")
    for uri in (tmp_path / "any", tmp_path / "ranged"):
        assert verdicts(here, uri) == {("people", "pair"): "same"}
        assert whole(uri)
    parts = [s for part in open_snapshot(str(tmp_path / "ranged")).manifest.subtasks for s in part.keyed]
    spans = sorted((segment.hash_min, segment.hash_max) for state in parts for segment in state.segments)
    assert len(spans) >= 5
    assert all(left[1] < right[0] for left, right in pairwise(spans)), "Spark's hash is ours"
    known = ps.snapshots.read(here, uid="people", with_hash=True).collect()
    for low, high in ((0, 30), (31, 31), (32, 127)):
        asked = {"uid": "people", "keyGroups": f"{low}-{high}", "withHash": "true", "partitionBytes": 4_000}
        found = pl.from_arrow(spark.read.format("penstock").options(**asked).load(str(tmp_path / "any")).toArrow())
        within = pl.col("__key_hash").is_between(first_hash_of(low, 128), first_hash_of(high + 1, 128) - 1)
        assert found.sort("user_id").equals(known.filter(within).sort("user_id"))
    victim = next(s for s in parts[-1].segments if s.hash_min > first_hash_of(100, 128))
    (tmp_path / "ranged" / victim.file.path).unlink()
    pruned = spark.read.format("penstock").options(uid="people", keyGroups="0-63").load(str(tmp_path / "ranged"))
    assert pruned.count() == known.filter(pl.col("__key_hash") < 0).height, "files of other groups are not opened"


def test_one_state_after_the_other_and_a_state_that_is_changed_with_spark(spark, job_file, tmp_path):
    graph = planned(job_file, {}, "")
    written = tmp_path / "job.json"
    written.write_bytes(encode_graph(graph))
    tables = begun_with(list(range(500)))
    save(frame(spark, tables["people", "pair"]), tmp_path / "one", written)
    running = frame(spark, tables["running", "running"])
    save(running, tmp_path / "two", written, uid="running", **{"from": str(tmp_path / "one")})
    assert set(verdicts(ps.snapshots.write(str(tmp_path / "here"), tables, job=graph), tmp_path / "two").values()) == {
        "same"
    }
    read = spark.read.format("penstock").option("uid", "people").load(str(tmp_path / "two"))
    changed = read.withColumn("amount", F.when(F.col("user_id") < 10, F.lit(-1)).otherwise(F.col("amount")))
    save(changed, tmp_path / "two", job_file, mode="overwrite", **{"from": str(tmp_path / "two")})
    tables["people", "pair"] = tables["people", "pair"].with_columns(
        amount=pl.when(pl.col("user_id") < 10).then(-1).otherwise("amount")
    )
    patched = ps.snapshots.write(str(tmp_path / "patched"), tables, job=graph)
    assert set(verdicts(patched, tmp_path / "two").values()) == {"same"}
    assert whole(tmp_path / "two")


def test_frames_without_rows_or_partitions(spark, job_file, tmp_path):
    here = ps.snapshots.write(str(tmp_path / "here"), {("people", "pair"): people(0)}, job=planned(job_file, {}, ""))
    empty = spark.createDataFrame([], "user_id long, orders long, amount long")
    save(empty, tmp_path / "none", job_file)
    save(frame(spark, people(5)).where("user_id < 0"), tmp_path / "all", job_file)
    for uri in (tmp_path / "none", tmp_path / "all"):
        assert verdicts(here, uri) == {("people", "pair"): "same"}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"job": ""}, 'needs the option "job" to write'),
        ({}, {"uid": "peeple"}, "no keyed state of uid 'peeple'"),
        ({}, {"name": "pairs"}, "declares no state 'pairs'"),
        ({}, {"nam": "pair"}, "has no option 'nam' for writing"),
        ({}, {"job": "none.job"}, "job none.job cannot be read"),
        ({}, {"from": "/nowhere"}, "there is no snapshot at"),
        ({"orders": "'x' as order"}, {}, "it has no column 'order'"),
        ({"orders": "1 as amount2"}, {}, "it has no column 'amount2'"),
        ({"orders": None}, {}, "the column 'orders' .* is missing"),
        ({"orders": "array(1) as orders"}, {}, "column 'orders' of type .*list.* cannot be int64"),
    ],
)
def test_what_cannot_be_written_is_said_before_a_task_runs(spark, job_file, tmp_path, columns, options, message):
    rows = frame(spark, people(3)).selectExpr(
        *[found for name in ("user_id", "orders", "amount") if (found := columns.get(name, name)) is not None]
    )
    given = {"job": str(job_file), "uid": "people", **options}
    with pytest.raises(AnalysisException, match=message):
        rows.write.format("penstock").options(**given).mode("append").save(str(tmp_path / "sp"))
    assert not (tmp_path / "sp").exists()


@pytest.mark.parametrize(
    ("rows", "tasks", "message"),
    [
        (pl.concat([people(300), people(300)]), 4, "rows share their key with another row, for example user_id="),
        (people(9).with_columns(orders=None), 2, "column 'orders' holds nulls"),
    ],
)
def test_a_write_that_fails_leaves_nothing(spark, job_file, tmp_path, rows, tasks, message):
    rows = rows.with_columns(pl.col("orders").cast(pl.Int64))
    with pytest.raises(PySparkException, match=message):
        save(frame(spark, rows).repartition(tasks), tmp_path / "sp", job_file)
    assert [path for path in (tmp_path / "sp").rglob("*") if path.is_file()] == []
    with pytest.raises(PySparkException, match=message):
        save(frame(spark, rows).repartition(tasks), tmp_path / "sp", job_file, mode="overwrite")
    save(frame(spark, people(4)), tmp_path / "sp", job_file)
    with pytest.raises(PySparkException, match=message):
        save(frame(spark, rows).repartition(tasks), tmp_path / "sp", job_file, mode="overwrite")
    assert ps.snapshots.read(str(tmp_path / "sp"), uid="people").collect().height == 4
    assert whole(tmp_path / "sp")


def test_a_savepoint_is_replaced_only_when_that_is_asked_for(spark, job_file, tmp_path):
    save(frame(spark, people(20)), tmp_path / "sp", job_file)
    with pytest.raises(AnalysisException, match="already holds a savepoint"):
        save(frame(spark, people(5)), tmp_path / "sp", job_file)
    save(frame(spark, people(5)), tmp_path / "sp", job_file, mode="overwrite")
    assert ps.snapshots.read(str(tmp_path / "sp"), uid="people").collect().height == 5
    assert whole(tmp_path / "sp")


@pytest.mark.processes
@pytest.mark.slow
def test_the_job_starts_from_it_and_is_exact(spark, tmp_path):
    jobs = Jobs(tmp_path)
    jobs.cluster.start()
    try:
        graph = jobs.graph(rate=None)
        tables = begun_with(list(range(200)))
        job = tmp_path / "job.py"
        save(by_hash(frame(spark, tables["people", "pair"]), 3), tmp_path / "one", job)
        running = frame(spark, tables["running", "running"]).repartition(3)
        save(running, tmp_path / "two", job, uid="running", **{"from": str(tmp_path / "one")})
        handle = jobs.submit(graph, from_uri=str(tmp_path / "two"))
        assert handle.wait(timeout_ms=100_000) == "FINISHED"
        for uid, columns in (("people", ["orders", "amount"]), ("running", ["__rows", "sum_amount"])):
            assert held(f"{jobs.root}/offline", uid, columns) == expected()
    finally:
        jobs.cluster.close()


#: The first try of each task is killed when all its files are there.
DIES = """
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.snapshots.on_spark.spark_entry import PenstockDataSource
from penstock.snapshots.on_spark.spark_writing import StateWriter, state_writer

folder, job = Path(sys.argv[1]), sys.argv[2]


class DyingWriter(StateWriter):
    def write(self, iterator):
        told = super().write(iterator)
        mark = folder / f"died-{TaskContext.get().partitionId()}"
        if not mark.exists():
            mark.write_text(str(len(list((folder / "sp").rglob("*.parquet")))))
            os.kill(os.getpid(), signal.SIGKILL)
        return told


class Dying(PenstockDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def writer(self, schema, overwrite):
        return DyingWriter(state_writer(self.options, schema, overwrite=overwrite)._plan)


builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Dying)
rows = pa.table({"user_id": range(3_000), "orders": range(3_000), "amount": [7 * i for i in range(3_000)]})
given = spark.createDataFrame(rows).repartition(3)
given.write.format("dying").options(job=job, uid="people").mode("append").save(str(folder / "sp"))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_tasks_that_are_killed_are_tried_again_without_harm(job_file, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(job_file)], env=environment, cwd=tmp_path, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [int(mark.read_text()) > 0 for mark in tmp_path.glob("died-*")] == [True] * 3
    here = ps.snapshots.write(str(tmp_path / "h"), {("people", "pair"): people(3_000)}, job=planned(job_file, {}, ""))
    assert verdicts(here, tmp_path / "sp") == {("people", "pair"): "same"}
    assert whole(tmp_path / "sp")
