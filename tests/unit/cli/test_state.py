"""`penstock state ...` on a savepoint and a job's folder: listings as JSON and as text, exit codes, clear errors."""

import json
import sys

import polars as pl
import pyarrow as pa
import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, encode_manifest, key_of
from penstock.checkpoint.stores import checksum_of
from penstock.cli import main
from penstock.core.errors import extra_hint
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, SubtaskSnapshot
from penstock.kernels.keys.hashing import hash_columns
from penstock.state.log.row_spec import RowSpec
from penstock.state.log.segments import SegmentWriter

SPEC = RowSpec(pa.schema([pa.field("user_id", pa.int64())]), (pa.field("value", pa.string()),))


def snapshot_of(values):
    """Return one subtask's state of uid `seen`, whose file lies inline."""
    batch = pa.record_batch({"user_id": pa.array(list(values), pa.int64())})
    hashes = hash_columns(batch, ("user_id",))
    rows = len(values)
    columns = [
        pa.array(hashes), batch.column(0), pa.array([0] * rows), pa.array(list(values.values())),
        pa.array([False] * rows), pa.array(range(rows)),
    ]  # fmt: skip
    table = pa.Table.from_arrays(columns, schema=SPEC.segment_schema).sort_by("__key_hash")
    writer = SegmentWriter(SPEC.segment_schema, 1)
    writer.add(table)
    done = writer.finish()
    file = FileRef(inline=done.data, length=len(done.data), checksum=checksum_of(done.data))
    segment = done.stored(file, "w")
    state = KeyedStateSnapshot(
        uid="seen", state="text", schema=schema_to_text(SPEC.segment_schema), hash_low=HASH_MIN, hash_high=HASH_MAX,
        segments=(segment,),
    )  # fmt: skip
    return SubtaskSnapshot(vertex_id="v", subtask=0, keyed=(state,))


def manifest_of(sequence, values, **more):
    fields = {
        "kind": "checkpoint", "sequence": sequence, "job_id": "0" * 32, "job_name": "words", "run_id": "r",
        "generation": 1, "nonce": "n", "created_ms": 1000 * sequence, "checkpoint_id": sequence, "key_groups": 128,
        "subtasks": (snapshot_of(values),), "operators": {"seen": (1, "v")},
    }  # fmt: skip
    return Manifest(**{**fields, **more})


@pytest.fixture
def root(tmp_path):
    """A checkpoint root with two checkpoints of one job and a savepoint of it."""
    store = LocalStore(str(tmp_path / "words"))
    for sequence, values in ((1, {1: "a", 2: "b"}), (2, {1: "a", 2: "c", 3: "d"})):
        store.put(key_of(sequence), encode_manifest(manifest_of(sequence, values)))
    savepoint = manifest_of(2, {1: "a", 2: "c", 3: "d"}, kind="savepoint")
    store.put("savepoints/sp/manifest.json", encode_manifest(savepoint))
    return tmp_path


@pytest.fixture
def penstock(monkeypatch, capsys):
    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["penstock", "state", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.app()
        said = capsys.readouterr()
        assert ended.value.code == code, said
        if code and not said.out:
            return said.err
        return json.loads(said.out) if "--json" in arguments else said.out + said.err

    return run


def test_ls(root, penstock):
    found = penstock("ls", root, "--json")
    assert [(row["job"], row["kind"], row["sequence"], row["rows"]) for row in found] == [
        ("words", "checkpoint", 1, 2),
        ("words", "checkpoint", 2, 3),
        ("words", "savepoint", 2, 3),
    ]
    assert penstock("ls", root / "words", "--json") == found
    assert penstock("ls", root / "words/savepoints/sp", "--json") == found[2:]
    assert penstock("ls", root / "words/savepoints", "--json") == found[2:]
    assert "1970-01-01 00:00:02" in penstock("ls", root)
    assert "no snapshot at" in penstock("ls", root / "nothing", code=3)


def test_show(root, penstock):
    found = penstock("show", root / "words", "--json")
    assert found["operators"] == [{"uid": "seen", "parallelism": 1}]
    (state,) = found["states"]
    assert {k: v for k, v in state.items() if k != "bytes"} == {
        "uid": "seen", "state": "text", "kind": "keyed", "key": ["user_id int64"], "value": ["value string"],
        "subtasks": 1, "files": 1, "rows": 3,
    }  # fmt: skip
    assert penstock("show", root / "words", "--checkpoint", 1, "--json")["states"][0]["rows"] == 2
    assert "128 key groups" in penstock("show", root / "words")


def test_read(root, penstock, tmp_path):
    rows = penstock("read", root / "words", "seen", "--json")
    assert sorted((row["user_id"], row["value"]) for row in rows) == [(1, "a"), (2, "c"), (3, "d")]
    (row,) = penstock("read", root / "words", "seen", "text", "--where", "user_id = 2", "--json")
    assert row["value"] == "c"
    assert "the first 1 rows" in penstock("read", root / "words", "seen", "--limit", 1)
    target = tmp_path / "rows.parquet"
    assert "3 rows written" in penstock("read", root / "words", "seen", "--output", target)
    assert pl.read_parquet(target).height == 3
    assert "did you mean 'seen'" in penstock("read", root / "words", "sen", code=3)
    assert "columns: user_id" in penstock("read", root / "words", "seen", "--where", "usr = 2", code=2)
    assert ".parquet or .csv" in penstock("read", root / "words", "seen", "--output", "rows.txt", code=2)


def test_diff(root, penstock):
    first = root / "words/manifests" / f"{1:020d}.json"
    (found,) = penstock("diff", first, root / "words", "--json", code=1)
    assert found == {
        "uid": "seen", "state": "text", "verdict": "changed", "added": 1, "removed": 0, "changed": 1, "unchanged": 1,
    }  # fmt: skip
    (found,) = penstock("diff", root / "words", root / "words/savepoints/sp", "--json")
    assert (found["verdict"], found["unchanged"]) == ("same", 3)


def test_fsck(root, penstock):
    found = penstock("fsck", root / "words", "--json")
    assert (found["ok"], found["manifests"], found["damaged"]) == (True, 2, [])
    assert penstock("fsck", root / "words").startswith("0 damaged; 2 manifests, 2 files")
    path = root / "words" / key_of(2)
    path.write_bytes(path.read_bytes().replace(b'"rows":3', b'"rows":4'))
    found = penstock("fsck", root / "words", "--json", code=1)
    (damage,) = found["damaged"]
    assert (damage["problem"], damage["state"]) == ("has 3 rows, but its manifest says 4", "seen/text")
    assert "1 damaged" in penstock("fsck", root / "words", code=1)


def test_repartition(root, penstock, tmp_path):
    target = tmp_path / "moved"
    found = penstock("repartition", root / "words", target, "--key-groups", 16, "--checkpoint", 1, "--json")
    assert (found["kind"], found["sequence"], found["key-groups"], found["rows"]) == ("savepoint", 1, 16, 2)
    assert penstock("fsck", target, "--json")["ok"] is True
    assert "already holds a savepoint" in penstock("repartition", root / "words", target, code=2)
    assert "savepoint written" in penstock("repartition", root / "words", tmp_path / "again")
    (tmp_path / "file").touch()
    refused = penstock("repartition", root / "words", tmp_path / "file", code=3)
    assert "/file" in refused
    assert "a file is where a folder should be" in refused


def test_rekey(root, penstock, tmp_path):
    target = tmp_path / "by-text"
    key = "user=CAST(user_id AS VARCHAR)"
    found = penstock("rekey", root / "words", target, "--uid", "seen", "--key", key, "--json")
    assert (found["kind"], found["rows"]) == ("savepoint", 3)
    assert penstock("fsck", target, "--json")["ok"] is True


COMMANDS = [["repartition"], ["rekey", "--uid", "seen", "--key", "user_id"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("options", "above", "spark"),
    [
        ([], None, False), ([], "0", True), (["--spark-above", "0"], None, True), (["--engine", "spark"], None, True),
        (["--spark-above", "1000000000"], "0", False), (["--engine", "local"], "0", False),
        (["--engine", "local", "--spark-above", "0"], None, False),
    ],
)  # fmt: skip
def test_spark_does_what_is_much(root, penstock, tmp_path, monkeypatch, command, options, above, spark):
    if above is not None:
        monkeypatch.setenv("PENSTOCK_SPARK_ABOVE", above)
    words = [command[0], root / "words", tmp_path / "new", *command[1:], *options, "--master", "local[1]", "--json"]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = penstock(*words, code=2 if spark else 0)
    assert ("Spark needs Java, but JAVA_HOME" in said) == spark
    assert (tmp_path / "new" / "manifest.json").exists() != spark
    if spark:
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "Spark needs Java, but none was found (install" in penstock(*words, code=2)
        monkeypatch.setitem(sys.modules, "penstock.snapshots.on_spark.spark_context", None)
        said = penstock(*words, code=2)
        assert f"Spark is not installed ({extra_hint('spark')}; --engine local works without it)" in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_setting_of_spark_that_makes_no_sense_is_told_whoever_does_the_work(root, penstock, tmp_path, command):
    words = [command[0], root / "words", tmp_path / "new", *command[1:], "--spark-conf", "spark.a"]
    assert "--spark-conf 'spark.a' has no value" in penstock(*words, code=2)
    assert not (tmp_path / "new").exists()


def test_without_spark_a_repartition_is_done_here_unless_spark_was_asked_for(root, penstock, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    missing = f"Spark needs Java, but JAVA_HOME={tmp_path} contains none"
    much = ["--spark-above", "0"]
    rekeyed = penstock("rekey", root / "words", tmp_path / "a", *COMMANDS[1][1:], *much, code=2)
    assert missing in rekeyed, "it would be in memory whole"
    for options in (["--engine", "spark"], ["--master", "local[1]", *much]):
        assert missing in penstock("repartition", root / "words", tmp_path / "a", *options, code=2)
    said = penstock("repartition", root / "words", tmp_path / "a", *much)
    assert f"{missing}: running in this process\n" in said
    assert penstock("fsck", tmp_path / "a", "--json")["ok"] is True
    monkeypatch.setitem(sys.modules, "penstock.snapshots.on_spark.spark_context", None)
    assert penstock("repartition", root / "words", tmp_path / "b", *much, "--json")["rows"] == 3
    said = penstock("repartition", root / "words", tmp_path / "c", *much)
    assert "Spark is not installed: running in this process\n" in said
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "local[1]")
    assert "Spark is not installed" in penstock("repartition", root / "words", tmp_path / "d", *much, code=2)


def test_bytes_that_are_none(root, penstock, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SPARK_ABOVE", "1GB")
    assert "PENSTOCK_SPARK_ABOVE='1GB' is not a number of bytes" in penstock(
        "repartition", root / "words", tmp_path / "new", code=2
    )


def test_a_rewrite_is_prepared_and_finished(root, penstock, tmp_path):
    files, target = tmp_path / "files", tmp_path / "new"
    assert "nothing was prepared" in penstock("repartition", root / "words", target, "--prepared", files, code=2)
    done = penstock("prepare", root / "words", files, "--json")
    assert done == {"written": 0, "written-bytes": 0, "reused": 0, "gone": 0}, "no file is large"
    assert "0 files (0 bytes) rewritten, 0 there already" in penstock("prepare", root / "words", files)
    found = penstock("repartition", root / "words", target, "--key-groups", 16, "--prepared", files, "--json")
    assert (found["kind"], found["key-groups"], found["rows"]) == ("savepoint", 16, 3)
    key = ["--uid", "seen", "--key", "user=CAST(user_id AS VARCHAR)"]
    said = penstock("rekey", root / "words", tmp_path / "by-text", *key, "--prepared", files)
    assert "0 of 1 parts are prepared" in said
    rows = penstock("read", tmp_path / "by-text", "seen", "--json")
    assert sorted((row["user"], row["value"]) for row in rows) == [("1", "a"), ("2", "c"), ("3", "d")]
    assert "--uid and --key belong together" in penstock("prepare", root / "words", files, "--uid", "seen", code=2)
