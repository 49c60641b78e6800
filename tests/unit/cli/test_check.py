"""`penstock check`: a job file against a snapshot of the same job, of an older one, of one with other keys."""

import json
import re
import sys

import msgspec
import pytest

from penstock.api.environment import use_executor
from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest, key_of
from penstock.cli import main
from penstock.cli.start.run import execute_file
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, OperatorStateSnapshot, Segment, SubtaskSnapshot
from penstock.graph.executor import JobResult
from penstock.snapshots.access.declared import with_states

JOB = """
from collections.abc import Iterator
from typing import NamedTuple

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Total(ps.Schema):
    user_id: int
    total: int


class Pair(NamedTuple):
    orders: int
    {field}


class Totals(ps.KeyedProcessFunction):
    pair: ps.ValueState[Pair] = ps.value_state()
    {states}

    def open(self, ctx):
        raise RuntimeError("a check does not open functions")

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Total]:
        yield Total(user_id=row.user_id, total=row.amount)


env = ps.Environment(parallelism=2, checkpoint_interval="1s", checkpoint_root="root")
orders = env.from_source(
    DatagenSource(rows=10),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="orders",
)
keyed = orders.key_by({key!r})
keyed.process(Totals()).uid({uid!r}).sink_to(FileSink("a"), uid="out")
keyed.window(ps.Tumbling("10s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("windows").sink_to(
    FileSink("b"), uid="panes-out"
)
keyed.aggregate(n=ps.count()).uid("running").sink_to(FileSink("c"), uid="running-out")
keyed.deduplicate(keep="last").uid("newest").sink_to(FileSink("d"), uid="newest-out")
keyed.window(ps.Session("1s")).aggregate(n=ps.count()).uid("sessions").sink_to(FileSink("e"), uid="sessions-out")
env.execute("checked")
"""
PLAIN = {"field": "amount: int", "states": "", "key": "user_id", "uid": "people"}


class Planned:
    def execute(self, graph, **limits):
        self.graph = graph
        return JobResult(job_id="0" * 32, name=graph.name, state="FINISHED", duration_ms=0.0)


@pytest.fixture
def job(tmp_path):
    """Write a job file."""

    def write(**changes):
        path = tmp_path / "job.py"
        path.write_text(JOB.format(**{**PLAIN, **changes}))
        return path

    return write


@pytest.fixture
def savepoint(job, tmp_path):
    """A savepoint of the plain job, every state of which has rows."""
    planned = Planned()
    with use_executor(planned):
        execute_file(job())
    segment = Segment(
        file=FileRef(inline=b"x"), position=1, writer="w", rows=3, hash_min=0, hash_max=1, namespace_min=0,
        namespace_max=0,
    )  # fmt: skip
    graph = with_states(planned.graph)
    keyed = tuple(
        KeyedStateSnapshot(
            uid=operator.uid, state=state, schema=text, hash_low=HASH_MIN, hash_high=HASH_MAX, segments=(segment,)
        )
        for vertex in graph.vertices
        for operator in vertex.operators
        for state, text in operator.states.items()
    )
    splits = OperatorStateSnapshot(uid="orders", name="splits", mode="split", items=(1,))
    part = SubtaskSnapshot(vertex_id="v", subtask=0, keyed=keyed, operator=(splits,))
    manifest = Manifest(
        kind="savepoint", sequence=3, job_id="0" * 32, job_name="checked", run_id="r", generation=1, nonce="n",
        created_ms=0, checkpoint_id=2, key_groups=1024, subtasks=(part,),
    )  # fmt: skip
    LocalStore(str(tmp_path / "sp")).put("manifest.json", encode_manifest(manifest))
    return tmp_path / "sp"


@pytest.fixture
def check(savepoint, monkeypatch, capsys):
    def run(path, *arguments, code=0):
        against = () if "--against" in arguments else ("--against", str(savepoint))
        monkeypatch.setattr(sys, "argv", ["penstock", "check", str(path), *against, *arguments])
        with pytest.raises(SystemExit) as ended:
            main.app()
        said = capsys.readouterr()
        assert ended.value.code == code, said
        return json.loads(said.out) if "--json" in arguments else said.out + said.err

    return run


def states(found):
    return {(row["uid"], row["state"]): row["verdict"] for row in found["states"]}


def test_the_same_job_fits(job, check):
    found = check(job(), "--json")
    assert found["ok"] is True
    assert found["key_groups"] == {"snapshot": 1024, "job": 1024}
    assert {place: verdict for place, verdict in states(found).items() if verdict == "same"} == dict.fromkeys(
        [
            ("newest", "kept"), ("orders", "splits"), ("people", "__timers_event"), ("people", "__timers_processing"),
            ("people", "pair"), ("running", "running"), ("sessions", "__timers_due"),
            ("sessions", "sessions"), ("windows", "panes"),
        ],
        "same",
    )  # fmt: skip
    assert {uid for (uid, _), verdict in states(found).items() if verdict == "new"} == {
        "out", "panes-out", "running-out", "newest-out", "sessions-out",
    }  # fmt: skip
    assert "fits checked" in check(job())


def test_another_number_of_key_groups_is_said(job, check):
    found = check(job(), "--set", "key_groups=128", "--parallelism", "3")
    assert "1024 in the snapshot, 128 in the job" in found


def test_a_state_that_is_new_and_one_of_another_type(job, check):
    found = check(job(states="more: ps.MapState[str, int] = ps.map_state()"), "--json")
    assert states(found)["people", "more"] == "new"
    found = check(job(field="amount: str"), "--json", code=1)
    assert states(found)["people", "pair"] == "blocked"


def test_other_keys_block_every_keyed_state(job, check):
    found = check(job(key="amount"), "--json", code=1)
    blocked = [row for row in found["states"] if row["verdict"] == "blocked"]
    assert {row["uid"] for row in blocked} == {"people", "windows", "running", "newest", "sessions"}
    assert all("was keyed by (user_id" in row["reason"] for row in blocked)


def test_an_operator_that_is_gone_is_named_to_be_dropped(job, check):
    path = job(uid="peoples")
    found = check(path, code=1)
    names = r"people/timers \(event time\), people/timers \(processing time\), people/pair"
    assert re.search(rf"{names} \(\S+\.py:\d+\): the snapshot has state of operator 'people'", found)
    assert found.count("change the uid 'peoples' back, or drop its state") == 1
    assert "did it have the uid 'people'?" in found
    assert "--allow-non-restored-state people" in found
    found = check(path, "--allow-non-restored-state", "people", "--json")
    assert states(found)["people", "pair"] == "dropped"
    assert "no state of that name" in check(path, "--allow-non-restored-state", "peoples", code=3)


@pytest.fixture
def checkpoint(savepoint, job, tmp_path):
    """The same as a checkpoint of the plain job, in its folder."""
    planned = Planned()
    with use_executor(planned):
        execute_file(job())
    manifest = decode_manifest((savepoint / "manifest.json").read_bytes())
    cut = msgspec.structs.replace(manifest, kind="checkpoint", graph_fingerprint=planned.graph.fingerprint)
    LocalStore(str(tmp_path / "root" / "checked")).put(key_of(3), encode_manifest(cut))
    return str(tmp_path / "root" / "checked")


def test_a_changed_job_goes_on_from_a_savepoint_only_and_is_told(job, check, checkpoint):
    assert "fits checked" in check(job(), "--against", checkpoint)
    assert check(job(), "--against", checkpoint, "--parallelism", "3", "--json")["needs_savepoint"] == ""
    more = job()
    another = 'keyed.deduplicate(keep="first").uid("x").sink_to(FileSink("f"), uid="y")\n'
    more.write_text(more.read_text().replace("env.execute", f"{another}env.execute"))
    assert "fits checked" in check(more)  # of a savepoint
    said = check(more, "--against", checkpoint)
    assert "fits checked" in said, "a forecast of the start from a savepoint"
    assert "have changed since checkpoint 2, and a changed job continues only from a savepoint" in said
    assert "with --from a savepoint" in said
    assert "have changed" in check(more, "--against", checkpoint, "--json")["needs_savepoint"]


def test_a_changed_job_is_told_the_savepoint_of_its_stop(job, check, checkpoint, tmp_path):
    store = LocalStore(str(tmp_path / "root" / "checked"))
    stopped = msgspec.structs.replace(decode_manifest(store.read(key_of(3))), barrier="stop", note="file:///sp/1")
    store.put(key_of(4), encode_manifest(msgspec.structs.replace(stopped, sequence=4, graph_fingerprint="before")))
    said = check(job(), "--against", checkpoint)
    assert "the job was stopped with a savepoint: start with --from file:///sp/1" in said


def test_nothing_of_a_checkpoint_is_left_behind(job, check, checkpoint):
    path = job()
    path.write_text(path.read_text().replace("pair: ps.ValueState", "pears: ps.ValueState"))
    name = ("--allow-non-restored-state", "people/pair")
    assert check(path, *name, "--json")["ok"] is True
    found = check(path, *name, "--against", checkpoint, "--json")
    assert "only at a start from a savepoint" in found["needs_savepoint"]


def test_bad_usage(job, check, tmp_path):
    assert "no job file" in check(tmp_path / "none.py", code=2)
    empty = tmp_path / "empty.py"
    empty.write_text("import penstock as ps\n")
    assert "without calling env.execute" in check(empty, code=2)
    (tmp_path / "sp" / "manifest.json").unlink()
    assert "no snapshot at" in check(job(), code=3)


def test_the_graph_carries_its_states(job):
    planned = Planned()
    with use_executor(planned):
        execute_file(job())
    assert not any(operator.states for vertex in planned.graph.vertices for operator in vertex.operators)
    graph = with_states(planned.graph)
    assert msgspec.structs.replace(graph, vertices=()) == msgspec.structs.replace(planned.graph, vertices=())
    assert graph.fingerprint == planned.graph.fingerprint
