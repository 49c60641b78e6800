"""An upgrade through the whole JobManager and its REST application: one request, its record, the next leader."""

import json

import msgspec
import pytest
from tests.processes.jobmanager.test_jobmanager_process import _connectors, cluster_of, encoded
from tests.processes.jobmanager.test_rescale_process import call
from tests.support.waiting import until

from penstock.checkpoint.ha_records import UpgradePolicy, read_records, read_refusals
from penstock.checkpoint.stores import open_store
from penstock.config.settings import JobSettings
from penstock.core import failpoints
from penstock.core.clock import SystemClock
from penstock.core.errors import StorageError, UsageError
from penstock.graph.job_graph import decode_graph, encode_graph
from penstock.jobmanager.jobs import job_driver
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.rest.server.app import create_app

__all__ = ["_connectors", "cluster_of", "encoded"]

TRIAL = UpgradePolicy(checkpoints=3, deadline_ms=8000)


@pytest.fixture(autouse=True)
def _failpoints():
    failpoints.reset()
    yield
    failpoints.reset()


def newer(graph, **changes):
    return encode_graph(msgspec.structs.replace(decode_graph(graph), fingerprint="new", **changes))


async def running(cluster_of, encoded, **limits):
    manager, machine = await cluster_of(**limits)
    dispatcher = manager.dispatcher
    job_id = await dispatcher.submit(encoded())
    await until(lambda: dispatcher.checkpoints(job_id).completed >= 1, "a checkpoint")
    return manager, machine, job_id


async def test_it_is_recorded_released_and_outlives_the_leader(cluster_of, encoded, tmp_path):
    manager, machine, job_id = await running(cluster_of, encoded)
    dispatcher = manager.dispatcher
    before = dispatcher.summary(job_id).run_id
    request = await dispatcher.upgrades.upgrade(job_id, newer(encoded()), TRIAL, "mine")
    assert request == "mine"
    done = await dispatcher.wait_operation(request, 9000)
    assert (done.status, done.error) == ("COMPLETED", "")
    assert done.uri.startswith(str(tmp_path / "root" / "job" / "savepoints"))
    await until(
        lambda: read_records(open_store(str(tmp_path / "ha")))[0][0].upgrade.phase == "completed",
        "the end of the upgrade",
    )
    assert dispatcher.summary(job_id).run_id != before
    assert dispatcher.upgrades.view(job_id).checkpoints >= 3
    assert any(entry.kind == "upgrade" for entry in await dispatcher.story(job_id))
    await machine.close()
    await manager.close()
    second, _ = await cluster_of()
    await until(lambda: second.dispatcher.summary(job_id).state == "RUNNING", "a running job")
    assert second.dispatcher.operation("mine").status == "COMPLETED"
    assert await second.dispatcher.upgrades.upgrade(job_id, newer(encoded()), TRIAL, "mine") == "mine"


async def test_the_next_leader_goes_on_with_the_trial_and_a_user_ends_it(cluster_of, encoded):
    manager, machine, job_id = await running(cluster_of, encoded)
    policy = msgspec.structs.replace(TRIAL, confirm=True, from_checkpoint=True, deadline_ms=60_000)
    await manager.dispatcher.upgrades.upgrade(job_id, newer(encoded()), policy, "mine")
    await until(lambda: manager.dispatcher.upgrades.view(job_id).phase == "trial", "the trial")
    await until(lambda: manager.dispatcher.upgrades.view(job_id).checkpoints >= 1, "a checkpoint of the trial")
    await machine.close()
    await manager.close()
    second, _ = await cluster_of()
    dispatcher = second.dispatcher
    assert dispatcher.operation("mine").status == "IN_PROGRESS"
    app = create_app(dispatcher, SystemClock(), lambda: None)
    await until(lambda: dispatcher.summary(job_id).state == "RUNNING", "a running job")
    status, text = await call(app, "GET", f"/v1/penstock/jobs/{job_id}/upgrade")
    assert (status, json.loads(text)["phase"], json.loads(text)["confirm"]) == (200, "trial", True)
    assert (await call(app, "POST", f"/v1/penstock/jobs/{job_id}/upgrade/verdict?healthy=false"))[0] == 202
    done = await dispatcher.wait_operation("mine", 9000)
    assert (done.status, "by a user's verdict" in done.error) == ("FAILED", True)
    await until(lambda: dispatcher.summary(job_id).state == "RUNNING", "a running job")
    view = dispatcher.upgrades.view(job_id)
    assert (view.phase, dispatcher.summary(job_id).run_id) == ("rolled-back", view.back_run_id)
    assert (await call(app, "POST", f"/v1/penstock/jobs/{job_id}/upgrade/verdict?healthy=true"))[0] == 400
    _, text = await call(app, "GET", f"/v1/penstock/jobs/{job_id}/upgrade/mine")
    assert json.loads(text)["status"]["id"] == "COMPLETED"
    assert "failure-cause" in json.loads(text)["operation"]


async def test_a_verdict_is_taken_when_it_is_durable_and_was_not_too_late(cluster_of, encoded, monkeypatch):
    manager, _machine, job_id = await running(cluster_of, encoded, verdict_ms=300)
    dispatcher = manager.dispatcher
    path = f"/v1/penstock/jobs/{job_id}/upgrade/verdict?healthy="

    def on_trial():
        view = dispatcher.upgrades.view(job_id)
        return view is not None and view.phase == "trial" and view.checkpoints

    app = create_app(dispatcher, SystemClock(), lambda: None)
    policy = msgspec.structs.replace(TRIAL, confirm=True, from_checkpoint=True, rollback=False, deadline_ms=60_000)
    await dispatcher.upgrades.upgrade(job_id, newer(encoded()), policy, "mine")
    await until(on_trial, "the trial")

    def away(*_):
        raise StorageError("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr(job_driver, "write_record", away)
        status, text = await call(app, "POST", path + "true")
        assert (status, "not recorded yet" in text) == (504, True)
        assert dispatcher.operation("mine").status == "IN_PROGRESS"
    assert (await dispatcher.wait_operation("mine", 9000)).status == "COMPLETED"
    await dispatcher.upgrades.upgrade(job_id, newer(encoded()), policy, "other")
    await until(on_trial, "the trial")

    def lost(_):
        dispatcher._operations.end(OperationEnded("other", error="it failed 9 times"), job_id)

    monkeypatch.setattr(dispatcher._jobs[job_id].driver, "post", lost)
    status, text = await call(app, "POST", path + "true")
    assert (status, "was too late: it failed 9 times" in text) == (400, True)


@pytest.mark.parametrize("point", ["before_upgrade_record", "after_upgrade_record"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_record_that_fails_once_is_written_the_next_time(
    cluster_of, encoded, tmp_path, monkeypatch, point, nth
):
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", f"jobmanager.{point}=error@{nth}")
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(tmp_path / "evidence"))
    failpoints.reset()
    manager, _, job_id = await running(cluster_of, encoded)
    request = await manager.dispatcher.upgrades.upgrade(job_id, newer(encoded()), TRIAL)
    assert (await manager.dispatcher.wait_operation(request, 9000)).status == "COMPLETED"
    await until(lambda: (tmp_path / "evidence").exists(), "the evidence of the failpoint")
    await until(lambda: manager.dispatcher.upgrades.view(job_id).phase == "completed", "the end of the upgrade")


async def test_what_cannot_be_an_upgrade_is_refused_at_once(cluster_of, encoded):
    manager, _, job_id = await running(cluster_of, encoded)
    app = create_app(manager.dispatcher, SystemClock(), lambda: None)
    path = f"/v1/penstock/jobs/{job_id}/upgrade"
    assert (await call(app, "GET", path))[0] == 404
    bad = {
        "": b"not a graph",
        "?checkpoint=3": newer(encoded()),
        "?checkpoints=many": newer(encoded()),
        "?accept=nobody": newer(encoded()),
        "?deadline=soon": newer(encoded()),
        "?checkpoints=1": newer(encoded(checkpoint_interval_ms=None)),
        "?token=a": newer(encoded(), name="another"),
        "?token=b&keep-parallelism=false": newer(encoded(parallelism=9)),
        "?token=c": newer(encoded(delivery="at-least-once")),
        "?token=d": newer(encoded(), settings=JobSettings(checkpoint_root="elsewhere", checkpoint_interval_ms=20)),
    }
    for query, graph in bad.items():
        status, text = await call(app, "POST", path + query, graph)
        assert status == 400, (query, status, text)
    with pytest.raises(UsageError, match=r"--accept out.*--no-rollback"):
        await manager.dispatcher.upgrades.upgrade(job_id, newer(encoded(delivery="at-least-once")), TRIAL)
    with pytest.raises(UsageError, match="no new version on trial"):
        await manager.dispatcher.upgrades.judge(job_id, healthy=True)
    assert manager.dispatcher.summary(job_id).restarts == 0
    assert manager.dispatcher.upgrades.view(job_id).phase == "refused"


async def test_a_savepoint_that_cannot_be_written_is_refused_before_the_old_version_stops(
    cluster_of, encoded, tmp_path
):
    manager, _machine, job_id = await running(cluster_of, encoded)
    dispatcher, file = manager.dispatcher, tmp_path / "file"
    file.touch()
    policy = msgspec.structs.replace(TRIAL, target=str(file))
    before = dispatcher.summary(job_id).run_id
    with pytest.raises(UsageError, match="is not writable"):
        await dispatcher.upgrades.upgrade(job_id, newer(encoded()), policy, "mine")
    assert "is not writable" in dispatcher.upgrades.view(job_id).reason
    done = dispatcher.checkpoints(job_id).completed
    await until(lambda: dispatcher.checkpoints(job_id).completed > done, "another checkpoint")
    assert (dispatcher.summary(job_id).run_id, dispatcher.summary(job_id).restarts) == (before, 0)
    policy = msgspec.structs.replace(policy, from_checkpoint=True)
    await dispatcher.upgrades.upgrade(job_id, newer(encoded()), policy, "mine")
    assert (await dispatcher.wait_operation("mine", 9000)).status == "COMPLETED", "it needs no savepoint"
    view = dispatcher.upgrades.view(job_id)
    assert view.phase == "completed", "the refused one is older"


async def test_an_upgrade_that_the_job_refuses_is_shown_by_the_next_leader_too(cluster_of, encoded, tmp_path):
    manager, machine, job_id = await running(cluster_of, encoded)
    dispatcher, policy = manager.dispatcher, msgspec.structs.replace(TRIAL, file="v2.py")
    without_sink = decode_graph(newer(encoded()))
    vertex = without_sink.vertices[0]
    renamed = (msgspec.structs.replace(vertex.operators[0], uid="other"),)
    vertices = (msgspec.structs.replace(vertex, operators=renamed), *without_sink.vertices[1:])
    await dispatcher.upgrades.upgrade(job_id, newer(encoded(), vertices=vertices), policy, "mine")
    done = await dispatcher.wait_operation("mine", 9000)
    assert (done.status, "with this uid" in done.error) == ("FAILED", True)
    view = dispatcher.upgrades.view(job_id)
    assert (view.phase, view.file, done.error in view.reason, view.begun_ms > 0) == ("refused", "v2.py", True, True)
    (told,) = [entry.text for entry in await dispatcher.story(job_id) if entry.kind == "upgrade"]
    assert told == f"refused (v2.py): {done.error}"
    await until(lambda: read_refusals(open_store(str(tmp_path / "ha"))), "the record")
    await machine.close()
    await manager.close()
    second, _ = await cluster_of()
    await until(lambda: second.dispatcher.upgrades.view(job_id) == view, "the refused upgrade")
