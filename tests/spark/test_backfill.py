"""A backfill on Spark is what it is in one process; the live job that goes on from it ends as the canonical result."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from tests.spark.executors import MASTER, OnExecutors, executors
from tests.spark.golden import KINDS, SECOND, TWO, Golden
from tests.support.files import files_below

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.backfill.spark import BackfillFailedError, SparkEngine
from penstock.core.clock import SystemClock
from penstock.core.rand import SystemRand
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.verify import verify
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import DatagenSourceFactory
from penstock_connectors.files import FileSink

#: The first use of Spark starts a JVM and Python workers; PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
#: One of each family: windows, two shuffles, joins, process functions, streams that meet.
GATE = ("windows", "join", "process")
CUTS = (510, 300, 700)


@pytest.fixture
def engine(spark):
    engine = SparkEngine(spark.sparkContext)
    yield engine
    engine.close()


def positions(uri):
    states = [state for part in open_snapshot(uri).manifest.subtasks for state in part.operator]
    return sorted((state.uid, state.name, repr(state.items)) for state in states)


def keyed(uri):
    manifest = open_snapshot(uri).manifest
    return {(state.uid, state.state) for part in manifest.subtasks for state in part.keyed}


@pytest.mark.parametrize(
    "kind", [kind if kind in GATE else pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS]
)
def test_spark_gives_what_one_process_gives(engine, kind, tmp_path, monkeypatch):
    golden = Golden(kind, tmp_path)
    here = golden.backfill(monkeypatch, LocalEngine(), CUTS, "here")
    there = golden.backfill(monkeypatch, engine, CUTS, "there")
    assert (there.rows_read, there.rows_staged, there.watermark) == (here.rows_read, here.rows_staged, here.watermark)
    assert golden.staged(there.uri) == golden.staged(here.uri)
    assert positions(there.uri) == positions(here.uri)
    assert keyed(there.uri) == keyed(here.uri) != set()
    for uid, name in keyed(here.uri):
        assert golden.state(uid, name, there.uri) == golden.state(uid, name, here.uri)
    report = verify(there.uri)
    assert (report.damaged, report.unknown) == ([], [])


@pytest.mark.parametrize("kind", ["union", pytest.param("windows", marks=pytest.mark.nightly)])
def test_tables_and_the_rest_of_the_source_give_what_the_source_gives(engine, kind, tmp_path, monkeypatch):
    golden = Golden(kind, tmp_path)
    uids = ["orders", "others"] if kind in TWO else ["orders"]
    tables = tuple(golden.archive((400, 390, 0), uid, rand=random.Random(3)) for uid in uids)
    here = golden.backfill(monkeypatch, LocalEngine(), CUTS, "here")
    there = golden.backfill(monkeypatch, engine, CUTS, "there", tables=tables)
    assert there.tables["orders"] == {"orders-0": (0, 400), "orders-1": (0, 300)}
    assert (there.rows_read, there.rows_staged, there.watermark) == (here.rows_read, here.rows_staged, here.watermark)
    assert golden.staged(there.uri) == golden.staged(here.uri)
    assert positions(there.uri) == positions(here.uri)


def test_an_iceberg_table_and_the_rest_of_the_source_give_what_the_source_gives(engine, tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path)
    known = golden.archive((400, 390, 200), rand=random.Random(5))
    with closing(SqlCatalog("lake", uri="sqlite://", warehouse=f"file://{tmp_path}/lake")) as lake:
        lake.create_namespace("shop")
        parts = [pq.read_table(path) for path in sorted((tmp_path / "table-orders").iterdir())]
        made = lake.create_table("shop.orders", parts[0].schema)
        for part in parts:
            made.append(part)
    known = replace(known, uris=(made.metadata_location,))
    here = golden.backfill(monkeypatch, LocalEngine(), CUTS, "here")
    there = golden.backfill(monkeypatch, engine, CUTS, "there", tables=(known,))
    assert there.histories["orders"] == (f"{known.uris[0]}?snapshot={made.current_snapshot().snapshot_id}",)
    assert there.tables["orders"] == {"orders-0": (0, 400), "orders-1": (0, 300), "orders-2": (0, 200)}
    assert (there.rows_read, there.rows_staged, there.watermark) == (here.rows_read, here.rows_staged, here.watermark)
    assert golden.staged(there.uri) == golden.staged(here.uri)
    assert positions(there.uri) == positions(here.uri)
    for uid, name in keyed(here.uri):
        assert golden.state(uid, name, there.uri) == golden.state(uid, name, here.uri)


def test_a_gap_that_only_a_task_sees_ends_the_backfill(engine, tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path)
    declared = golden.archive((400, 400, 400))
    path = tmp_path / "table-orders" / "part-1.parquet"
    rows = pq.read_table(path)
    offsets = [390 if at == 5 else at for at in rows["offset"].to_pylist()]
    pq.write_table(rows.set_column(4, "offset", pa.array(offsets, pa.int64())), path, row_group_size=97)
    with pytest.raises(BackfillFailedError, match=r"partition 1 has a gap: offsets 5 to 5 are missing"):
        golden.backfill(monkeypatch, engine, CUTS, tables=(declared,))
    assert not (tmp_path / "savepoint" / "manifest.json").exists()


def test_a_source_without_splits_has_no_rows(engine, tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path)
    monkeypatch.setattr(DatagenSourceFactory, "history", lambda *_: ())
    made = golden.backfill(monkeypatch, engine, CUTS)
    assert (made.rows_read, made.rows_staged, made.watermark) == (0, 0, None)
    assert verify(made.uri).damaged == []


def test_a_task_that_fails_leaves_no_savepoint_and_says_why(engine, tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path)
    graph = golden.graph(monkeypatch)
    sinks = [o for vertex in graph.vertices for o in vertex.operators if o.kind == "sink"]
    sinks[0].config["sink"]["schema"] = "none that an executor can read"
    monkeypatch.setattr(Golden, "graph", lambda *_: graph)
    with pytest.raises(BackfillFailedError, match=r"stage '.*Sink: .*' failed on Spark: "):
        golden.backfill(monkeypatch, engine, CUTS)
    assert not (tmp_path / "savepoint" / "manifest.json").exists()


def test_a_function_that_raises_is_told_with_its_lines_and_the_row(engine, tmp_path):
    env = ps.Environment(checkpoint_interval="1s")
    source = DatagenSource(rows=20, users=5)
    times = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")
    orders = env.from_source(source, watermarks=times, uid="orders")
    # in this function, because executors do not have this module
    scored = orders.map(
        lambda row: {"score": 1 // (row.user_id - row.user_id)}, returns=pa.schema({"score": pa.int64()})
    )
    scored.uid("scored").sink_to(FileSink(str(tmp_path / "out")), uid="out")
    work = Backfill(env.job_graph(), BackfillOptions(target=str(tmp_path / "s")), SystemClock(), SystemRand())
    with pytest.raises(BackfillFailedError, match=r"failed on Spark: .*map 'scored': ZeroDivisionError") as raised:
        work.run(engine, lambda *_: None)
    (note,) = raised.value.__notes__
    assert note.startswith("In your code:\n")
    assert re.search(r"^row 1 of a batch of \d+: .*user_id=\d+[^\n]*\Z", note, re.MULTILINE), note


def test_the_live_job_goes_on_from_the_command_line_with_late_rows_accounted_for(tmp_path, monkeypatch):
    golden = Golden("windows", tmp_path, disorder_ms=2_000, bound_ms=300)
    environment = {**os.environ, **golden.environment}
    (tmp_path / "events").mkdir()
    given = ["app.name=x y", "eventLog.enabled=true", "eventLog.compress=false", f"eventLog.dir={tmp_path}/events"]
    conf = [part for setting in given for part in ("--spark-conf", f"spark.{setting}")]
    done = subprocess.run(
        [sys.executable, *golden.command(CUTS, "--master", "local[2]", *conf)], env=environment, cwd=tmp_path,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    log = "".join(file.read_text() for file in (tmp_path / "events").rglob("events*") if file.is_file())
    assert '"App Name":"x y"' in log, "settings of Spark did not reach it"
    begun = [event for event in map(json.loads, log.splitlines()) if event["Event"] == "SparkListenerJobStart"]
    shown = {event["Properties"].get("spark.job.description") for event in begun}
    assert shown == {f"backfill of golden-windows: {vertex.name}" for vertex in golden.graph(monkeypatch).vertices}
    assert told["watermark"] == golden.watermark(CUTS)
    before = golden.staged(told["savepoint"])
    assert before == golden.expected(CUTS, told["watermark"])
    golden.run_live(told["savepoint"])
    given = golden.published()
    assert not before - given, "staged output was lost"
    assert max(given.values()) == 1, "staged output came out twice"
    rows, amounts = Counter(), Counter()
    for user, start, n, total in given:
        rows[user, start] += n
        amounts[user, start] += total
    late = [json.loads(line) for part in (tmp_path / "late").glob("part-*") for line in part.read_text().splitlines()]
    assert late, "no row was late: the test shows nothing"
    for row in late:
        user, _, at = next(iter(Golden("dedup", tmp_path).counted([row])))
        rows[user, at // SECOND * SECOND] += 1
        amounts[user, at // SECOND * SECOND] += row["amount"]
    wanted = {(user, start): (n, total) for user, start, n, total in golden.expected()}
    assert {key: (rows[key], amounts[key]) for key in rows} == wanted


@pytest.mark.nightly
def test_an_executor_that_is_killed_changes_nothing(tmp_path):
    golden = Golden("process", tmp_path, rows=6_000)
    cuts = (1_500, 1_400, 1_990)
    with OnExecutors(tmp_path, *golden.command(cuts, "--master", MASTER), **golden.environment) as program:
        program.wait(lambda: files_below(tmp_path / "savepoint", "*.parquet"), "the first file of a part")
        # others are still to come, and rows of the stage before lie on this executor
        program.kill(executors(program.process.pid)[:1])
        code, out, said = program.end()
    assert program.lost()
    assert code == 0, said[-2000:]
    told = json.loads(out)
    assert golden.staged(told["savepoint"]) == golden.expected(cuts, golden.watermark(cuts))
    report = verify(told["savepoint"])
    assert (report.damaged, report.unknown) == ([], [])
