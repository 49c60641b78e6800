"""A change of keys on Spark gives the files that it gives here, and the same errors; nothing half where it fails."""

from itertools import permutations

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.snapshots.test_rekey import LISTS, PANES, PROFILES, TIMERS, job

import penstock as ps
from penstock.core.errors import StorageError, UsageError
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import KeyedStateSnapshot
from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff
from penstock.snapshots.access.verify import verify
from penstock.snapshots.on_spark import spark_rewrite
from penstock.snapshots.on_spark.spark_rewrite import SparkRekey
from penstock.snapshots.rewrite.rekey import RekeyedRange, rekey
from penstock.snapshots.rewrite.repartition import StateRange
from penstock.snapshots.rewrite.split_points import SnapshotLimits
from penstock.state.log.row_spec import RowSpec
from penstock.state.log.segment_columns import KEY_HASH

#: The first use of Spark starts a JVM and Python workers; PySpark leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
USERS = range(3_000)
SMALL = SnapshotLimits(range_bytes=10_000, file_bytes=40_000)
ENTRIES = [(user, n, user * 10 + n) for user in range(0, 3_000, 7) for n in range(user % 40)]


@pytest.fixture
def savepoint(tmp_path):
    profiles = pl.DataFrame({"user_id": USERS, "orders": [2 * i for i in USERS], "user_id_": [i + 7 for i in USERS]})
    lists = pl.DataFrame(ENTRIES, ["user_id", "__entry", "value"], orient="row")
    timers = pl.DataFrame({"user_id": [i // 2 for i in range(900)], "__namespace": [i % 2 * 50 for i in range(900)]})
    panes = pl.DataFrame(
        [(user, pane * 10_000_000, user + 1, pane) for user in range(500) for pane in range(3)],
        ["user_id", "__namespace", "__rows", "sum_amount"],
        orient="row",
    )
    tables = {
        ("people", "profile"): profiles, ("people", "recent"): lists, ("people", "__timers_event"): timers,
        ("windows", "panes"): panes,
    }  # fmt: skip
    return ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))


def manifest(uri):
    return msgspec.structs.replace(open_snapshot(uri).manifest, note="", origin="")


KEYS = {
    "cast": ["user=CAST(user_id AS VARCHAR)"],
    "three": ["region='eu'", "user_id", "part=CASE WHEN user_id % 3 = 0 THEN 'a' ELSE NULL END"],
}


@pytest.mark.parametrize("kind", [pytest.param("cast", marks=pytest.mark.nightly), "three"])
def test_it_gives_the_files_that_it_gives_here(spark_context, savepoint, tmp_path, kind):
    snapshot = open_snapshot(savepoint)
    wanted = {"uid": "people", "key": KEYS[kind], "limits": SMALL}
    here = rekey(snapshot, str(tmp_path / "here"), **wanted)
    there = rekey(snapshot, str(tmp_path / "there"), engine=SparkRekey(spark_context), **wanted)
    assert manifest(there) == manifest(here), "all files are named with their checksums"
    assert {row.verdict for row in diff(open_snapshot(here), open_snapshot(there))} == {"same"}
    assert (verify(there).damaged, verify(there).unknown) == ([], [])
    assert len(list((tmp_path / "there" / "people" / "profile").iterdir())) > 5
    people = ps.snapshots.read(there, uid="people", name="profile").collect()
    assert sorted(people["orders"]) == [2 * i for i in USERS]
    lists = ps.snapshots.read(there, uid="people", name="recent").collect()
    assert sorted(lists["value"]) == sorted(value for *_, value in ENTRIES)
    sizes = [s.file.length for part in manifest(there).subtasks for k in part.keyed if k.state == "profile"
             for s in k.segments]  # fmt: skip
    assert max(sizes) < 2 * min(sizes), "files are of about the same size"


@pytest.mark.nightly
def test_now_is_one_moment_in_all_tasks_of_both_jobs(spark_context, savepoint, tmp_path):
    wanted = {"uid": "people", "key": ["user_id", "at=NOW()"], "limits": SMALL}
    made = rekey(open_snapshot(savepoint), str(tmp_path / "new"), engine=SparkRekey(spark_context), **wanted)
    states = [ps.snapshots.read(made, uid="people", name=name) for name in ("profile", "recent", "__timers_event")]
    assert pl.concat([state.select("at") for state in states]).collect()["at"].n_unique() == 1
    assert verify(made).damaged == []


def test_of_timers_that_fall_together_one_stays(spark_context, tmp_path):
    timers = pl.DataFrame({"user_id": range(100), "__namespace": [i // 50 for i in range(100)]})
    uri = ps.snapshots.write(str(tmp_path / "sp"), {("people", "__timers_event"): timers}, job=job("user_id"))
    made = rekey(
        open_snapshot(uri),
        str(tmp_path / "new"),
        uid="people",
        key=["all=user_id * 0"],
        engine=SparkRekey(spark_context),
    )
    assert sorted(ps.snapshots.read(made, uid="people", name="__timers_event").collect().rows()) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (
            ["part=user_id % 10"],
            r"300 old keys collide, for example \(part=.\) of \(user_id=.*\) and",
        ),
        (["word=CAST(orders AS VARCHAR)"], "key column 'word=CAST.*the old key has: user_id"),
        (["n=CAST(CONCAT('x', user_id) AS INT)"], "key column .n=CAST.*conversion"),
        (["of=MAX(user_id)"], "may read more than one key.*--engine local"),
        ([], "no key is given"),
    ],
)
def test_what_gives_no_key_is_refused_before_anything_is_written(spark_context, tmp_path, key, error):
    tables = {
        ("people", "profile"): PROFILES, ("people", "recent"): LISTS, ("people", "__timers_event"): TIMERS,
        ("windows", "panes"): PANES,
    }  # fmt: skip
    uri = ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))
    with pytest.raises(UsageError, match=error):
        rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=key, engine=SparkRekey(spark_context))
    assert not (tmp_path / "new").exists()


def test_keys_of_two_states_that_would_be_one_are_seen(spark_context, tmp_path):
    tables = {
        ("people", "profile"): PROFILES[:1],
        ("people", "recent"): pl.DataFrame({"user_id": [10], "__entry": [0], "value": [5]}),
    }
    uri = ps.snapshots.write(str(tmp_path / "sp"), tables, job=job("user_id"))
    said = r"2 old keys collide, for example \(part=0\) of \(user_id=0\) and \(user_id=10\)"
    for engine in (None, SparkRekey(spark_context)):
        with pytest.raises(UsageError, match=said):
            rekey(open_snapshot(uri), str(tmp_path / "new"), uid="people", key=["part=user_id % 10"], engine=engine)


def test_a_damaged_file_leaves_no_savepoint_and_is_named(spark_context, savepoint, tmp_path):
    victim = min((tmp_path / "sp" / "people" / "profile").iterdir())
    victim.write_bytes(victim.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(StorageError, match=r"a Spark task failed.*damaged"):
        rekey(
            open_snapshot(savepoint),
            str(tmp_path / "new"),
            uid="people",
            key=KEYS["cast"],
            engine=SparkRekey(spark_context),
        )
    assert not (tmp_path / "new").exists()


def test_a_cut_is_the_same_bytes_in_whatever_order_its_rows_come(tmp_path):
    """A shuffle hands rows out as tasks are done; those of one hash keep the order in which they were read."""
    number = pa.int64()
    spec = RowSpec(pa.schema([("k", number)]), (pa.field("value", number),), (pa.field("__entry", number),))
    schema = spec.segment_schema
    state = KeyedStateSnapshot(uid="people", state="recent", schema=schema_to_text(schema), hash_low=0, hash_high=9)
    cut = msgspec.msgpack.encode(RekeyedRange(number=0, state=state))
    moved = []
    for entry, (piece, step) in enumerate([(2, 0), (2, 1), (10, 0)]):
        row = {"__key_hash": 5, "k": 1, "__namespace": 0, "__entry": entry, "value": 7, "__deleted": False, "__seq": 0}
        moved.append((0, (piece, step, spark_rewrite._encoded(pa.Table.from_pylist([row], schema)))))
    written = set()
    for turn, order in enumerate(permutations(moved)):
        folder = tmp_path / str(turn)
        (made,) = spark_rewrite._write_rekeyed([cut], str(folder), 0, order)
        (file,) = folder.rglob("*.parquet")
        assert pq.read_table(file).column("__entry").to_pylist() == [0, 1, 2]
        written.add((made, file.read_bytes()))
    assert len(written) == 1


def test_rows_go_to_the_range_of_their_hash(monkeypatch):
    low, high = -(1 << 63), (1 << 63) - 1
    hashes = [high, 10, 9, low, 11, 10, -1, 0]
    rows = pa.table({KEY_HASH: pa.array(hashes, pa.int64()), "row": list(range(len(hashes)))})
    monkeypatch.setattr(spark_rewrite.msgspec.msgpack, "decode", lambda *_, **__: Piece(rows))
    bounds = [(low, 4), (0, 7), (10, 5)]
    found = {
        number: spark_rewrite._decoded(data)["row"].to_pylist()
        for number, (*_, data) in spark_rewrite._rekey_rows({"s": bounds}, b"")
    }
    assert found == {4: [3, 6], 7: [7, 2], 5: [1, 5, 4, 0]}


class Piece:
    """One table of a range, in place of a `_ReadTask`."""

    state, state_range = "s", StateRange(number=0, held=(), low=0, high=0)

    def __init__(self, rows):
        self.rows = rows

    def rekeyed(self):
        yield self.rows, self.rows
