"""The record of an ended job."""

from __future__ import annotations

import math

import msgspec
from tests.unit.jobmanager.conftest import JOB, make_graph

from penstock.checkpoint.ha_records import JobRecord, delete_record, write_archive
from penstock.config.settings import RestartStrategy
from penstock.core.errors import StorageError
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.jobs.job_archive import archive_of, read_archives, save_archive
from penstock.jobmanager.jobs.job_views import checkpoints_of

GRAPH = make_graph(restart=RestartStrategy(kind="none"))
RECORD = JobRecord(
    job_id=JOB, name="job", run_id="r", token="", submitted_ms=0, graph=encode_graph(GRAPH),
    ended="FAILED", ended_ms=9, generation=4,
)  # fmt: skip


def ended(world_of):
    world = world_of(GRAPH).start().pass_time(2_500)
    world.kill(next(iter(world.workers)), "it was killed: password=hush99")
    assert world.terminal.state == "FAILED"
    return archive_of(RECORD, world.graph, world.master, 9)


def test_an_archive_is_read_as_it_was_written_but_for_secrets(world_of, store):
    written = ended(world_of)
    (vertex, *others) = written.vertices
    measured = tuple(msgspec.structs.replace(s, metrics={"rows": 3.0, "odd": math.inf}) for s in vertex.subtasks)
    vertices = (msgspec.structs.replace(vertex, subtasks=measured), *others)
    save_archive(store, msgspec.structs.replace(written, vertices=vertices))
    (read,) = read_archives(store, [RECORD], 50).values()
    assert read.checkpoints == written.checkpoints
    assert read.checkpoints.completed == 2
    assert [worker.taskmanager_id for worker in read.workers] == ["tm"]
    assert "password=******" in read.exceptions[0].error
    assert read.metrics == {f"{vertex.id}/0": {"rows": 3.0}, f"{vertex.id}/1": {"rows": 3.0}}
    same = {"exceptions": (), "summary": written.summary, "vertices": ()}
    assert msgspec.structs.replace(read, **same) == msgspec.structs.replace(written, **same)
    delete_record(store, JOB)
    assert read_archives(store, [RECORD], 50) == {}


def test_the_leader_that_ran_the_job_is_believed_not_the_one_that_recorded_its_end(world_of, store):
    whole = ended(world_of)
    save_archive(store, whole)
    record = msgspec.structs.replace(RECORD, generation=5)
    assert read_archives(store, [record], 50) == {}, "the leader that wrote it did not record the end"
    successor = world_of(GRAPH, generation=2).start()
    empty = archive_of(record, GRAPH, successor.master, 10)
    assert (empty.summary.state, empty.checkpoints.completed) == ("FAILED", 0)
    assert save_archive(store, empty).checkpoints.completed == 2
    assert read_archives(store, [record], 50)[JOB].checkpoints == whole.checkpoints


def test_no_job_depends_on_an_archive(world_of, store, monkeypatch, caplog):
    write_archive(store, JOB, b"{}")
    assert read_archives(store, [RECORD], 50) == {}
    assert "of another version or damaged" in caplog.text
    assert read_archives(store, [RECORD], 0) == {}
    archive = ended(world_of)

    def refuse(key, data):
        raise StorageError("no room")

    monkeypatch.setattr(store, "put", refuse)
    assert save_archive(store, archive) == archive
    assert "no room" in caplog.text


def test_an_archive_has_the_subtasks_of_the_newest_checkpoint_alone(world_of):
    world = world_of(GRAPH).start().pass_time(2_500)
    whole = checkpoints_of(RECORD, world.master)
    checkpoints = archive_of(RECORD, world.graph, world.master, 9).checkpoints
    newest, *older = checkpoints.history
    assert newest == whole.history[0]
    assert checkpoints.latest_completed == whole.latest_completed
    assert [len(checkpoint.subtasks) for checkpoint in (newest, *older)] == [4, 0]
    assert older == [msgspec.structs.replace(checkpoint, subtasks=()) for checkpoint in whole.history[1:]]
