"""Sensors, the hook and job events against a real cluster."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from tests.airflow.provider.stand_in import Instance, fired
from tests.support.leases import PATIENT
from tests.support.waiting import DEADLINE_S, wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.clock import ManualClock
from penstock.core.errors import PenstockError, UsageError
from penstock_airflow.conditions import Answer, WatermarkAt, encoded
from penstock_airflow.hooks.penstock import PenstockHook, place_of
from penstock_airflow.sensors.job import CheckpointSensor, JobStatusSensor, WatermarkSensor
from penstock_airflow.triggers import job as job_trigger
from penstock_airflow.triggers.events import JobEventTrigger

pytestmark = pytest.mark.timeout(120)
FAST = {"task_id": "sensor", "poke_interval": 0.1, "timeout": 60}


def sensed(sensor, instance):
    """Run a sensor to its end, deferred where it defers."""
    try:
        return sensor.execute(instance.context())
    except TaskDeferred as deferred:
        return sensor.execute_complete(instance.context(), fired(deferred))


def test_a_state(name, client, running):
    assert sensed(JobStatusSensor(job=name, **FAST), Instance())["state"] == "RUNNING"
    waiting = JobStatusSensor(job=name, states=["FINISHED"], **FAST)
    instance = Instance()
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(instance.context())
    client.cancel(running)
    with pytest.raises(AirflowException, match="is CANCELED"):
        waiting.execute_complete(instance.context(), fired(deferred.value))
    waiting.soft_fail = True
    with pytest.raises(AirflowSkipException):
        waiting.execute(Instance().context())


def test_a_checkpoint_after_the_task_began(name, client, running):
    before = client.checkpoints(running)["latest"]["completed"]["trigger_timestamp"]
    assert sensed(CheckpointSensor(job=name, **FAST), Instance())["trigger_timestamp"] > before
    found = CheckpointSensor(job=name, max_age_seconds="3600", **FAST).execute(Instance().context())
    assert found["job_id"] == running


def test_event_time(name, client, running):
    reached = wait_until(lambda: client.summary(running)["watermark"], "a watermark", step=0.1)
    wanted = datetime.fromtimestamp(reached / 1000 + 3, UTC)
    assert sensed(WatermarkSensor(job=name, watermark=wanted.isoformat(), **FAST), Instance())["watermark"] > reached
    late = WatermarkSensor(job=name, watermark="9999-01-01", task_id="sensor", poke_interval=0.1, timeout=0.5)
    with pytest.raises(AirflowSensorTimeout):
        sensed(late, Instance())


def test_in_a_worker(name, running):
    sensor = JobStatusSensor(job=name, deferrable=False, **FAST)
    assert sensor.poke(Instance().context()).is_done


def test_the_connection(cluster):
    found, text = PenstockHook().test_connection()
    assert found, text
    assert "1 TaskManagers" in text
    assert asyncio.run(PenstockHook().arun(lambda client: client.overview()))["taskmanagers"] == 1


def test_a_connection_that_leads_nowhere(monkeypatch, unused_port):
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", f"penstock://127.0.0.1:{unused_port}")
    found, text = PenstockHook("nowhere").test_connection()
    assert not found
    assert "no JobManager answers" in text


def test_what_a_connection_says():
    given = Connection(
        conn_id="c", conn_type="penstock", host="h", port=9, schema="https", password="secret",
        extra='{"timeout": 5, "job_page": "{url}/x/{job_id}", "python": "/p", "ca": "/ca.pem"}',
    )  # fmt: skip
    place = place_of(given)
    assert (place.url, place.timeout_seconds, place.python) == ("https://h:9", 5.0, "/p")
    assert place.page_of("j") == "https://h:9/x/j"
    assert place.environment == {"PENSTOCK_TOKEN": "secret", "PENSTOCK_CA": "/ca.pem"}
    assert "secret" not in repr(place)


def test_a_connection_to_several_jobmanagers():
    place = place_of(Connection(conn_id="c", conn_type="penstock", host="a, b:8082,c", port=9))
    assert place.url == "http://a:9,http://b:8082,http://c:9"


def leader(hook):
    """Return the URL of the leader; empty while none answers."""
    with contextlib.suppress(PenstockError):
        hook.run(lambda client: client.overview())
        return (hook.run(lambda client: client.leader()) or {}).get("url", "")
    return ""


def test_a_hook_follows_a_change_of_leader(tmp_path, monkeypatch):
    config = LocalClusterConfig(
        taskmanagers=0, jobmanagers=2, directory=tmp_path, restart_dead=False, environment=PATIENT
    )
    with LocalCluster(config) as cluster:
        hosts = cluster.address.replace("http://", "")
        monkeypatch.setenv("AIRFLOW_CONN_TWO", json.dumps({"conn_type": "penstock", "host": hosts}))
        hook, first = PenstockHook("two"), cluster.jobmanager
        wait_until(lambda: hook.run(lambda client: client.standbys()), "the standby", step=0.1)
        assert leader(hook) == cluster.rest_url
        first.kill()
        second = cluster.address.rpartition(",")[2]
        wait_until(lambda: leader(hook) == second, "the standby to lead", step=0.1)
        assert asyncio.run(hook.arun(lambda client: client.overview()))["taskmanagers"] == 0
        first.start()
        wait_until(lambda: hook.run(lambda client: client.standbys()), "the killed one as a standby", step=0.1)
        assert leader(hook) == second


@pytest.mark.parametrize(
    "wrong",
    [
        *({"host": ""}, {"host": "http://h"}, {"host": "h:p"}, {"host": "a,,b"}, {"schema": "ftp"}),
        *({"extra": f'{{"timeout": {timeout}}}'} for timeout in ('"soon"', "-1", '"nan"', "1e400", "[1]")),
    ],
)
def test_a_wrong_connection(wrong):
    with pytest.raises(UsageError, match="connection 'c'"):
        place_of(Connection(**{"conn_id": "c", "conn_type": "penstock", "host": "h", **wrong}))


def test_airflow_knows_the_provider():
    manager = ProvidersManager()
    assert manager.providers["penstock"].data["name"] == "penstock"
    hooks = ProvidersManagerTaskRuntime().hooks
    assert hooks["penstock"].hook_class_name == "penstock_airflow.hooks.penstock.PenstockHook"
    assert "penstock_airflow.links.JobLink" in manager.extra_links_class_names


class Kept:
    """What Airflow keeps with an asset."""

    def __init__(self):
        self.values = {}

    async def aget(self, key):
        return self.values.get(key)

    async def aset(self, key, value):
        self.values[key] = value


def test_events_of_a_job(name, client, running, tmp_path):
    kept = Kept()

    def watcher():
        path, arguments = JobEventTrigger(
            job=name, events=["savepoint", "window"], window_seconds=1, poll_seconds=0.1
        ).serialize()
        assert path == "penstock_airflow.triggers.events.JobEventTrigger"
        trigger = JobEventTrigger(**arguments)
        trigger.asset_state_store = kept
        return trigger

    async def first(kind, meanwhile=None):
        events = watcher().run()
        async for event in events:
            if event.payload["kind"] == kind:
                await events.aclose()
                return event.payload
            if meanwhile is not None:
                await asyncio.to_thread(meanwhile)
                meanwhile = None
        return None

    window = asyncio.run(asyncio.wait_for(first("window"), 60))
    assert window["window_end"] % 1000 == 0
    assert window["window_end"] > window["after"]
    handle = JobHandle(client, running, name)
    told = []
    told.append(asyncio.run(asyncio.wait_for(first("savepoint", lambda: told.append(handle.savepoint())), 60)))
    assert told[1]["location"] == told[0]
    while_nobody_looked = handle.savepoint()
    assert asyncio.run(asyncio.wait_for(first("savepoint"), 60))["location"] in (told[0], while_nobody_looked)


def test_from_when_on_events_are_told_is_kept_before_there_is_one(monkeypatch, unused_port):
    """A triggerer that ends before the first event has its successor tell what came meanwhile."""
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", f"penstock://127.0.0.1:{unused_port}")

    async def kept_at_once():
        kept, written = Kept(), asyncio.Event()

        async def aset(key, value):
            kept.values[key] = value
            written.set()

        kept.aset = aset
        trigger = JobEventTrigger(job="j", penstock_conn_id="nowhere", poll_seconds=0.1)
        trigger.asset_state_store, trigger.clock = kept, ManualClock(7_000)
        looking = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.wait_for(written.wait(), DEADLINE_S)
        looking.cancel()
        return kept.values

    assert asyncio.run(kept_at_once()) == {"penstock_events": {"savepoint_ms": 7_000, "failed_ms": 7_000}}


@pytest.mark.parametrize("wrong", [{"events": ["nothing"]}, {"events": []}, {"window_seconds": 0}])
def test_events_there_are_not(wrong):
    with pytest.raises(ValueError, match="events are savepoint, failed, window"):
        JobEventTrigger(job="j", **wrong)


@pytest.mark.parametrize("polls", [1, 5])
def test_a_trigger_fires_when_the_scheduler_has_seen_the_deferral(monkeypatch, polls):
    """Airflow fails a task that runs again before it has handled the end of the process that deferred."""
    clock, asked = ManualClock(), []

    async def ask(_hook, _question):
        asked.append(1)
        return Answer(kind="done" if len(asked) == polls else "wait")

    async def sleep(seconds):
        clock.sleep_ms(seconds * 1000)

    async def first(trigger):
        return await anext(trigger.run())

    monkeypatch.setattr(job_trigger, "ask", ask)
    monkeypatch.setattr(job_trigger.asyncio, "sleep", sleep)
    question = encoded(WatermarkAt(job_id="j", watermark_ms=1))
    trigger = job_trigger.JobTrigger(penstock_conn_id="nowhere", question=question, poll_seconds=2.0)
    trigger.clock, begun = clock, clock.monotonic_ms()
    assert asyncio.run(first(trigger)).payload["kind"] == "done"
    assert clock.monotonic_ms() - begun == max(5_000, 2_000 * (polls - 1))


def test_nobody_there(monkeypatch, unused_port):
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", f"penstock://127.0.0.1:{unused_port}")
    with pytest.raises(PenstockError):
        JobStatusSensor(job="j", penstock_conn_id="nowhere", **FAST).execute(Instance().context())
