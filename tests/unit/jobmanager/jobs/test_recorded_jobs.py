"""What a new leader makes of the records it finds."""

from __future__ import annotations

import base64
import re

import msgspec
import pytest
from tests.unit.jobmanager.conftest import make_graph

from penstock.checkpoint.ha_records import JobRecord, read_records, write_record
from penstock.core.errors import StorageError
from penstock.graph.job_graph import encode_graph
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions, recorded_jobs, start_options_of

ODD = JobRecord(job_id="1" * 32, name="old", run_id="r", token="", submitted_ms=1, graph=b"{}", ended="FINISHED")


def test_a_job_that_ended_under_another_version_keeps_no_leader_from_starting(store):
    mine = msgspec.structs.replace(ODD, job_id="2" * 32, submitted_ms=2, graph=encode_graph(make_graph()), ended="")
    for record in (ODD, mine):
        write_record(store, record)
    assert recorded_jobs(store) == (((mine, make_graph()),), ())


def test_jobs_that_ended_long_ago_are_forgotten(store):
    graph = encode_graph(make_graph())
    for n, ended_ms in enumerate((50, 20, 40, 30, -1)):
        state = "FINISHED" if ended_ms > 0 else ""
        record = msgspec.structs.replace(ODD, job_id=str(n) * 32, graph=graph, ended=state, ended_ms=ended_ms)
        write_record(store, record)
    kept = ["0" * 32, "2" * 32, "4" * 32]
    assert [record.job_id for record, _ in recorded_jobs(store, retained=2)[0]] == kept
    assert [record.job_id for record in read_records(store)[0]] == kept


def test_a_record_that_cannot_be_deleted_keeps_nobody_from_leading(store, monkeypatch, caplog):
    def refuse(store, job_id):
        raise StorageError("cannot delete")

    monkeypatch.setattr("penstock.jobmanager.jobs.recorded_jobs.delete_record", refuse)
    for n in "12":
        write_record(store, msgspec.structs.replace(ODD, job_id=n * 32))
    assert recorded_jobs(store, retained=1) == ((), ())
    assert "cannot delete" in caplog.text


def damaged(store):
    """The error of the one record that cannot be read, beside a job that can."""
    mine = msgspec.structs.replace(ODD, job_id="2" * 32, graph=encode_graph(make_graph()), ended="")
    write_record(store, mine)
    found, (error,) = recorded_jobs(store)
    assert found == ((mine, make_graph()),)
    return error


def test_a_job_that_runs_and_cannot_be_read_is_named(store):
    write_record(store, msgspec.structs.replace(ODD, ended=""))
    error = damaged(store)
    assert (error.job_id, error.name) == ("1" * 32, "old")
    assert re.search(r"jobs/1{32}\.json cannot be read.*another version: start that, or restore the file", error.error)


def test_a_record_that_is_no_record_is_named(store):
    store.put("jobs/x.json", b"{")
    error = damaged(store)
    assert (error.job_id, error.name) == ("x", "x")
    assert re.search(r"jobs/x\.json is damaged: .*\(restore the file and restart", error.error)


def test_what_may_be_left_behind_is_remembered(store):
    options = msgspec.to_builtins(SubmitOptions(from_uri="sp", allow_non_restored_state=("a", "b/c")))
    mine = msgspec.structs.replace(ODD, ended="", graph=encode_graph(make_graph()), options=options)
    write_record(store, mine)
    (((found, _),), ()) = recorded_jobs(store)
    for record in (mine, found):
        assert start_options_of(record).allow_non_restored_state == ("a", "b/c")


@pytest.mark.parametrize("switch", [False, True])
def test_a_record_from_before_state_was_left_behind_by_name_is_read(store, switch):
    options = {"from_uri": "sp", "fresh": False, "claim": False, "allow_non_restored_state": switch}
    old = msgspec.structs.replace(ODD, ended="", graph=encode_graph(make_graph()), options=options)
    write_record(store, old)
    (((found, _),), ()) = recorded_jobs(store)
    start = start_options_of(found)
    assert (start.from_uri, start.claim, start.allow_non_restored_state) == ("sp", False, ())


def test_options_that_cannot_be_read_are_named(store):
    odd = msgspec.structs.replace(ODD, ended="", graph=encode_graph(make_graph()), options={"claim": "perhaps"})
    write_record(store, odd)
    assert "options of job 'old' in jobs/1" in damaged(store).error


def test_a_graph_that_was_changed_in_the_store_is_not_started(store):
    mine = msgspec.structs.replace(ODD, job_id="2" * 32, graph=encode_graph(make_graph()), ended="")
    write_record(store, mine)
    assert recorded_jobs(store) == (((mine, make_graph()),), ())
    (key,) = store.list("jobs/")
    document = msgspec.json.decode(store.read(key))
    other = msgspec.json.decode(encode_graph(make_graph()))
    other["vertices"][0]["operators"][0]["payload"] = "AAAA"
    document["graph"] = base64.b64encode(msgspec.json.encode(other)).decode()
    store.put(key, msgspec.json.encode(document))
    found, (error,) = recorded_jobs(store)
    assert (found, error.name) == ((), "old")
    assert "SHA-256" in error.error
