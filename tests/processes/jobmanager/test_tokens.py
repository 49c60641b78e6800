"""Tokens of requests: each is for one request of one job, under every leader."""

from types import SimpleNamespace

import msgspec
import pytest
from tests.processes.jobmanager.test_jobmanager_process import _connectors, cluster_of, encoded, running

from penstock.checkpoint.ha_records import UpgradePolicy
from penstock.core.errors import UsageError
from penstock.graph.job_graph import decode_graph, encode_graph
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.checkpoints.checkpointing import FinalCheckpoint
from penstock.jobmanager.jobs.recorded_jobs import SubmitOptions
from penstock.jobmanager.messages.commands import OperationEnded

__all__ = ["_connectors", "cluster_of", "encoded"]


async def test_a_token_of_another_jobs_request_is_refused_by_every_leader(cluster_of, encoded, tmp_path):
    old, _ = await cluster_of()
    target = str(tmp_path / "saved")

    async def stopped(manager, job):
        request = await manager.dispatcher.stop(job, uri=target, token="nightly")
        return await manager.dispatcher.wait_operation(request, 10_000)

    async def refuse(manager, job):
        ask = manager.dispatcher
        for made in (
            ask.stop(job, uri=target, token="nightly"),
            ask.savepoint(job, target, token="nightly"),
            ask.rescales.request(job, RescaleTo(1, token="nightly")),
            ask.upgrades.upgrade(job, other, UpgradePolicy(), "nightly"),
        ):
            with pytest.raises(UsageError, match=r"'nightly' is already used by a request of job 'job'"):
                await made
        assert ask.summary(job).state == "RUNNING"

    other = encode_graph(msgspec.structs.replace(decode_graph(encoded(parallelism=1)), name="other"))
    first = await old.dispatcher.submit(encoded(parallelism=1))
    await running(old, first)
    assert (await stopped(old, first)).status == "COMPLETED"
    running_id = await old.dispatcher.submit(other)
    await running(old, running_id)
    await refuse(old, running_id)
    await old.close()
    new, _ = await cluster_of()
    await running(new, running_id)
    await refuse(new, running_id)
    again = await new.dispatcher.submit(encoded(parallelism=1))
    assert (await stopped(new, again)).job_id == first, "the run that was stopped, not the one of that name now"
    assert not new.dispatcher.summary(again).terminal


async def test_a_token_is_for_one_kind_of_request_under_every_leader(cluster_of, encoded, tmp_path):
    """What is asked for with the token of something else is refused, not answered with what that came to."""
    old, _ = await cluster_of()
    ask, target = old.dispatcher, str(tmp_path / "saved")
    job = await ask.submit(encoded(parallelism=1), SubmitOptions(token="begun"))
    other = encode_graph(msgspec.structs.replace(decode_graph(encoded(parallelism=1)), name="other"))
    with pytest.raises(UsageError, match="'job' was already submitted with token 'begun'"):
        await ask.submit(other, SubmitOptions(token="begun"))
    await running(old, job)
    assert (await ask.wait_operation(await ask.savepoint(job, target, token="saved"), 10_000)).status == "COMPLETED"
    for made in (
        ask.stop(job, uri=target, token="saved"),
        ask.rescales.request(job, RescaleTo(1, token="saved")),
        ask.upgrades.upgrade(job, encoded(parallelism=1), UpgradePolicy(), "saved"),
    ):
        with pytest.raises(UsageError, match="'saved' is already used by a savepoint request"):
            await made
    assert await ask.savepoint(job, target, token="saved") == "saved"
    assert ask.summary(job).state == "RUNNING"
    request = await ask.stop(job, uri=target, token="stopped")
    assert (await ask.wait_operation(request, 10_000)).status == "COMPLETED"
    assert (await ask.wait(job, 10_000)).state == "FINISHED"
    await old.close()
    new, _ = await cluster_of()
    with pytest.raises(UsageError, match="'stopped' is already used by a stop request"):
        await new.dispatcher.savepoint(job, target, token="stopped")
    assert await new.dispatcher.stop(job, uri=target, token="stopped") == "stopped"


@pytest.mark.parametrize("kind", ["savepoint", "stop"])
async def test_what_has_failed_may_be_asked_for_again_with_its_token(cluster_of, encoded, tmp_path, kind):
    """Such as what was refused because the job was just being restarted."""
    manager, _ = await cluster_of()
    ask = manager.dispatcher
    job = await ask.submit(encoded(parallelism=1))
    await running(manager, job)
    ask._operations.end(OperationEnded("nightly", error="the job is not running", kind=kind), job)
    for _ in range(2):
        request = await getattr(ask, kind)(job, uri=str(tmp_path / "saved"), token="nightly")
        assert (await ask.wait_operation(request, 10_000)).status == "COMPLETED"
    assert [entry.kind for entry in await ask.story(job)].count("request") == 1, "what is done is not done again"


async def test_the_token_of_a_stop_that_an_earlier_leader_took_is_for_stops_alone(cluster_of, encoded, tmp_path):
    """It has ended, and the record of the job does not say so yet."""
    manager, _ = await cluster_of()
    ask, target = manager.dispatcher, str(tmp_path / "saved")
    job = await ask.submit(encoded(parallelism=1))
    await running(manager, job)
    manifest = SimpleNamespace(checkpoint_id=1)
    ask._operations.end(FinalCheckpoint(manifest, target, "stopped", 0).answer, job)
    with pytest.raises(UsageError, match="'stopped' is already used by a stop request"):
        await ask.savepoint(job, target, token="stopped")
    assert await ask.stop(job, uri=target, token="stopped") == "stopped"
    assert ask.operation("stopped").status == "COMPLETED"
    assert ask.summary(job).state == "RUNNING"
