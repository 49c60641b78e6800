"""A rescale through the whole JobManager and its REST application: one request, one record, the next leader."""

import asyncio

import pytest
from tests.processes.jobmanager.test_jobmanager_process import _connectors, cluster_of, encoded
from tests.support.waiting import until

from penstock.checkpoint.ha_records import read_records
from penstock.checkpoint.stores import open_store
from penstock.core import failpoints
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions
from penstock.rest.server.app import create_app

__all__ = ["_connectors", "cluster_of", "encoded"]


@pytest.fixture(autouse=True)
def _failpoints():
    failpoints.reset()
    yield
    failpoints.reset()


async def running(cluster_of, encoded, **options):
    manager, machine = await cluster_of()
    dispatcher = manager.dispatcher
    job_id = await dispatcher.submit(encoded(), SubmitOptions(**options))
    await until(lambda: dispatcher.checkpoints(job_id).completed >= 1, "a checkpoint")
    return manager, machine, job_id


def widths(dispatcher, job_id):
    return [vertex.parallelism for vertex in dispatcher.detail(job_id).vertices]


async def test_the_chosen_parallelism_is_recorded_and_outlives_the_leader(cluster_of, encoded, tmp_path):
    manager, machine, job_id = await running(cluster_of, encoded, fresh=True)
    dispatcher = manager.dispatcher
    request = await dispatcher.rescales.request(job_id, RescaleTo(3, token="mine"))
    assert request == "mine"
    assert (await dispatcher.wait_operation(request, 5000)).status == "COMPLETED"
    assert widths(dispatcher, job_id) == [3, 3]
    assert dispatcher.summary(job_id).state == "RUNNING"
    record = read_records(open_store(str(tmp_path / "ha")))[0][0]
    assert (record.rescale_token, record.options) == ("mine", {})
    await machine.close()
    await manager.close()
    second, _ = await cluster_of()
    await until(lambda: second.dispatcher.summary(job_id).state == "RUNNING", "a running job")
    assert widths(second.dispatcher, job_id) == [3, 3]
    assert second.dispatcher.operation("mine").status == "COMPLETED"
    assert await second.dispatcher.rescales.request(job_id, RescaleTo(1, token="mine")) == "mine"
    assert widths(second.dispatcher, job_id) == [3, 3]


@pytest.mark.parametrize("point", ["before_rescale_record", "after_rescale_record"])
async def test_a_record_that_fails_leaves_the_job_at_its_parallelism(cluster_of, encoded, tmp_path, monkeypatch, point):
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", f"jobmanager.{point}=error")
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(tmp_path / "evidence"))
    failpoints.reset()
    manager, _, job_id = await running(cluster_of, encoded)
    dispatcher = manager.dispatcher
    request = await dispatcher.rescales.request(job_id, RescaleTo(3))
    status = await dispatcher.wait_operation(request, 5000)
    assert (status.status, point in status.error) == ("FAILED", True)
    await until(lambda: dispatcher.summary(job_id).state == "RUNNING", "a running job")
    assert widths(dispatcher, job_id) == [2, 2]
    done = dispatcher.checkpoints(job_id).completed
    await until(lambda: dispatcher.checkpoints(job_id).completed > done, "another checkpoint")


async def test_what_stands_against_it_is_told_and_the_job_goes_on(cluster_of, encoded):
    manager, _, job_id = await running(cluster_of, encoded)
    dispatcher = manager.dispatcher
    request = await dispatcher.rescales.request(job_id, RescaleTo(5))
    status = await dispatcher.wait_operation(request, 5000)
    refused = "no slots: 3 more slots are needed, 2 of 4 are free (start another TaskManager, or ask for less)"
    assert status.error == refused
    with pytest.raises(UsageError, match="key groups") as impossible:
        await dispatcher.rescales.request(job_id, RescaleTo(5000))
    told = [entry.text for entry in await dispatcher.story(job_id) if entry.kind == "rescale"]
    assert told[-2:] == [f"abandoned: {refused}", f"refused: {impossible.value}"]
    assert dispatcher.summary(job_id).restarts == 0


async def call(app, method, path, body=b""):
    """One request to an ASGI application: status and JSON text."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "headers": [(b"content-type", b"application/json")],
        "scheme": "http", "root_path": "", "server": ("x", 1), "client": ("x", 2),
    }  # fmt: skip
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]).decode()


async def test_flinks_paths(cluster_of, encoded):
    import json

    manager, _, job_id = await running(cluster_of, encoded)
    dispatcher = manager.dispatcher
    app = create_app(dispatcher, SystemClock(), lambda: None)
    status, text = await call(app, "PATCH", f"/v1/jobs/{job_id}/rescaling?parallelism=3")
    assert status == 202
    request = json.loads(text)["request-id"]
    await dispatcher.wait_operation(request, 5000)
    status, text = await call(app, "GET", f"/jobs/{job_id}/rescaling/{request}")
    assert json.loads(text) == {"status": {"id": "COMPLETED"}, "operation": {}}
    status, text = await call(app, "GET", f"/jobs/{job_id}/resource-requirements")
    required = json.loads(text)
    assert [bound["parallelism"] for bound in required.values()] == [{"lowerBound": 1, "upperBound": 3}] * 2
    for bound in required.values():
        bound["parallelism"]["upperBound"] = 9
    path = f"/jobs/{job_id}/resource-requirements"
    assert (await call(app, "PUT", path, json.dumps(required).encode()))[0] == 200
    await until(
        lambda: widths(dispatcher, job_id) == [4, 4] and dispatcher.summary(job_id).state == "RUNNING",
        "the new parallelism",
    )
    for bad in ({}, {"x": 1}, {next(iter(required)): {"parallelism": {"lowerBound": 0, "upperBound": 1}}}):
        assert (await call(app, "PUT", path, json.dumps(bad).encode()))[0] == 400
    assert (await call(app, "PATCH", f"/jobs/{job_id}/rescaling?vertices=out"))[0] == 400
    status, text = await call(app, "PATCH", f"/jobs/{job_id}/rescaling?vertices=out=2")
    await asyncio.wait_for(dispatcher.wait_operation(json.loads(text)["request-id"], 5000), 60)
    assert widths(dispatcher, job_id) == [4, 2]
    path = f"/jobs/{job_id}/checkpoints"
    answers = {
        body: await call(app, "POST", path, body) for body in (b"", b'{"unaligned": false}', b'{"unaligned": true}')
    }
    assert [status for status, _ in answers.values()] == [202, 202, 400]
