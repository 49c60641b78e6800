"""Upgrades against a real cluster: healthy, taken back, and that whoever goes on with a task asks for no second one."""

import asyncio

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.airflow.provider.stand_in import Instance, deferral, finish, run
from tests.support.waiting import wait_until

from penstock_airflow.operators.upgrade import CheckJobOperator, UpgradeJobOperator

pytestmark = pytest.mark.timeout(180)
FAST = {"poll_seconds": 0.1, "timeout_seconds": 90}


@pytest.fixture
def version(tmp_path, name, running):
    """Writes another version of the running job: with one more step in front of its sink, or other text."""

    def write(step="filter(lambda row: True)", **changes):
        text = (tmp_path / f"{name}.py").read_text().replace(".sink_to(", f".{step}\n       .sink_to(")
        for old, new in changes.values():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"{name}-new.py"
        path.write_text(text)
        return path

    return write


def upgrade(name, path, **options):
    on_kill = options.pop("on_kill", "take_back")
    return UpgradeJobOperator(
        task_id="upgrade", job=name, job_file=str(path), on_kill=on_kill, **FAST,
        options={"checkpoints": "2", "max_restarts": "0", "deadline": "60s", **options},
    )  # fmt: skip


def names(client, job_id):
    return " ".join(vertex["name"] for vertex in client.job(job_id)["vertices"])


def test_a_healthy_version_takes_over_whoever_waits_for_it(client, name, running, version):
    path, instance = (
        version(environment=("parallelism=1", "parallelism=int(__import__('os').environ['WIDTH'])")),
        Instance(name),
    )
    task = upgrade(name, path, environment={"WIDTH": 2})
    deferral(task, instance)  # a worker that died after it had asked
    first = deferral(task, instance)
    done = finish(task, instance, first)
    assert done["job_id"] == running
    assert "savepoint" in done["location"]
    assert client.newest_upgrade(running)["phase"] == "completed"
    counts = client.newest_upgrade(running)["parallelism"].values()
    assert {(count["file"], count["now"]) for count in counts} == {(2, 1)}, "the running version's is kept"
    assert {v["parallelism"] for v in client.job(running)["vertices"]} == {1}
    assert [job["jid"] for job in client.jobs() if job["name"] == name] == [running]


def test_one_that_fails_is_taken_back_with_its_reason_in_one_line(client, name, running, version):
    before = names(client, running)
    path, instance = version("filter(lambda row: 1 / 0 > 1)"), Instance(name)
    with pytest.raises(AirflowFailException, match=r"upgrade failed: .*ZeroDivisionError") as failed:
        run(upgrade(name, path, checkpoints=50), instance)
    assert "\n" not in str(failed.value)
    assert "the old version is running again" in str(failed.value)
    assert instance.stored["penstock"]["ended"]
    wait_until(lambda: client.job(running)["state"] == "RUNNING", "the old version", step=0.1)
    assert names(client, running) == before


@pytest.mark.parametrize("wish", ["take_back", "keep"])
def test_a_user_ends_the_task_while_it_waits(client, name, running, version, wish):
    task, instance = upgrade(name, version(), checkpoints=4, on_kill=wish), Instance(name)
    deferred = deferral(task, instance)
    asyncio.run(deferred.trigger.on_kill())
    if wish == "keep":
        assert finish(task, instance, deferred)["job_id"] == running
    else:
        with pytest.raises(AirflowException, match="by a user's verdict"):
            finish(task, instance, deferred)
        assert client.newest_upgrade(running)["phase"] == "rolled-back"


def test_a_worker_is_ended_while_it_waits_itself(client, name, running, version):
    task, instance = upgrade(name, version(), checkpoints=1000), Instance(name)
    deferral(task, instance)
    wait_until(lambda: client.newest_upgrade(running)["phase"] == "trial", "a trial", step=0.1)
    task.on_kill()
    wait_until(lambda: client.newest_upgrade(running)["phase"] == "rolled-back", "the old version", step=0.1)


def test_what_is_looked_at_beforehand(client, name, running, version):
    fits = CheckJobOperator(task_id="check", job=name, job_file=str(version())).execute(Instance(name).context())
    assert fits["job_id"] == running
    assert set(fits["states"]) <= {"same", "new"}
    other = version(key=('key_by("user_id")', 'key_by("amount")'))
    with pytest.raises(
        AirflowFailException, match=r"does not fit: totals \(.*\.py:\d+\): .* keyed by .*\(key by the old columns"
    ):
        CheckJobOperator(task_id="check", job=name, job_file=str(other)).execute(Instance(name).context())
    with pytest.raises(AirflowFailException, match="there is no job file"):
        CheckJobOperator(task_id="check", job=name, job_file="none.py").execute(Instance(name).context())
    assert client.job(running)["state"] == "RUNNING"


def test_what_makes_no_sense_stops_nothing(client, name, running, version):
    with pytest.raises(AirflowFailException, match="on_kill='perhaps'"):
        run(upgrade(name, version(), on_kill="perhaps"), Instance(name))
    with pytest.raises(AirflowFailException, match="unknown options chekpoints"):
        run(upgrade(name, version(), chekpoints=3), Instance(name))
    with pytest.raises(AirflowFailException, match="deadline"):
        run(upgrade(name, version(), deadline="soon"), Instance(name))
    assert client.job(running)["state"] == "RUNNING"
