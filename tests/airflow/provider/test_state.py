"""State written anew, by the worker and by Spark; savepoints verified with a scratch job."""

import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.airflow.conftest import ROOT
from tests.airflow.provider.stand_in import Instance, run
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.savepoints import list_savepoints
from penstock.snapshots.access.opening import open_snapshot
from penstock_airflow.operators.job import CancelJobOperator
from penstock_airflow.operators.savepoint import NewestSavepointOperator
from penstock_airflow.operators.state import PrepareStateOperator, RepartitionStateOperator
from penstock_airflow.operators.submit import SubmitJobOperator
from penstock_airflow.operators.verify import CompareOutputsOperator

pytestmark = pytest.mark.timeout(300)
FAST = {"poll_seconds": 0.1, "timeout_seconds": 60}


def repartition(snapshot, target, **more):
    return RepartitionStateOperator(task_id="cut", snapshot=str(snapshot), target=str(target), **more)


def key_groups(uri):
    return open_snapshot(uri).manifest.key_groups


def test_cut_anew_once_whoever_goes_on_with_it(cluster, client, tmp_path, name, running):
    savepoint = JobHandle(client, running, name).savepoint(str(tmp_path / "s"))
    instance, target = Instance(name), tmp_path / "cut"
    died = repartition(savepoint, target, key_groups="64")
    died.attempts(instance.context()).begin()
    died._write(f"{target}/repartitioned-{died.attempts(instance.context()).token[:12]}-1")  # and then it was killed
    done = repartition(savepoint, target, key_groups="64").execute(instance.context())
    assert [found.uri for found in list_savepoints(str(target))] == [done["location"]]
    assert key_groups(done["location"]) == 64
    again = repartition(savepoint, target, key_groups="32").execute(instance.context())  # cleared after its success
    assert key_groups(again["location"]) == 32
    assert len(list_savepoints(str(target))) == 2


def test_state_that_is_prepared_while_the_job_runs(cluster, client, tmp_path, name, running):
    checkpoints, files = tmp_path / "checkpoints" / name, str(tmp_path / "files")
    task = PrepareStateOperator(task_id="prepare", snapshot=str(checkpoints), folder=files)
    for _ in range(2):
        assert task.execute(Instance(name).context())["folder"] == files
    assert client.job(running)["state"] == "RUNNING"
    run(CancelJobOperator(task_id="cancel", job=name, **FAST), Instance(f"cancel-{name}"))
    done = repartition(checkpoints, tmp_path / "cut", key_groups=64, options={"prepared": files})
    assert key_groups(done.execute(Instance(name).context())["location"]) == 64


def test_what_a_killed_try_has_left_is_removed(cluster, client, tmp_path, name, running):
    instance, target = Instance(name), tmp_path / "cut"
    task = repartition(JobHandle(client, running, name).savepoint(str(tmp_path / "s")), target)
    left = target / f"repartitioned-{task.attempts(instance.context()).begin()[:12]}-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    instance.ids["try_number"] = 2
    done = task.execute(instance.context())
    assert [found.uri for found in list_savepoints(str(target))] == [
        f"file://{done['location'].removeprefix('file://')}"
    ]
    assert not left.exists() or not list(left.iterdir())


@pytest.mark.nightly
def test_by_spark(cluster, client, tmp_path, name, running, monkeypatch):
    host, _, port = cluster.rest_url.removeprefix("http://").rpartition(":")
    python = ROOT / ".venv" / "bin" / "python"
    monkeypatch.setenv("AIRFLOW_CONN_WITH_SPARK", f"penstock://{host}:{port}?python={python}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    savepoint = JobHandle(client, running, name).savepoint(str(tmp_path / "s"))
    task = repartition(
        savepoint, tmp_path / "cut", key_groups=16, options={"master": "local[1]", "spark_above": "0"},
        penstock_conn_id="with_spark",
    )  # fmt: skip
    assert key_groups(task.execute(Instance(name).context())["location"]) == 16


def test_what_makes_no_sense_is_not_tried_again(cluster, tmp_path):
    with pytest.raises(AirflowFailException, match="there is no snapshot"):
        repartition(tmp_path / "nothing", tmp_path / "cut").execute(Instance().context())
    with pytest.raises(AirflowFailException, match="checkpoint='x'"):
        repartition(tmp_path / "nothing", tmp_path / "cut", options={"checkpoint": "x"}).execute(Instance().context())


@pytest.fixture
def scratch(client, tmp_path, name, running):
    """A scratch job of the running one's newest savepoint: (what `newest` returned, its output)."""
    path, output = tmp_path / f"{name}.py", tmp_path / "scratch-out"
    own = f"{tmp_path}/{name}-out"
    path.write_text(path.read_text().replace(f"{own!r}", f"__import__('os').environ.get('OUTPUT', {own!r})"))
    savepoint = JobHandle(client, running, name).savepoint(str(tmp_path / "s"))
    reached = wait_until(lambda: client.summary(running)["watermark"], "event time", step=0.1)
    wait_until(lambda: client.summary(running)["watermark"] > reached + 4_000, "event time", step=0.1)
    newest = NewestSavepointOperator(task_id="newest", job=name, target=str(tmp_path / "s"))
    found = newest.execute(Instance("newest").context())
    assert (found["location"], found["name"]) == (f"file://{savepoint.removeprefix('file://')}", name)
    options = {
        "name": f"{name}-verify", "no_claim": "True", "environment": {"OUTPUT": str(output)},
        "settings": {"checkpoint_root": f"{tmp_path}/scratch"},
    }  # fmt: skip
    run(
        SubmitJobOperator(task_id="r", job_file=str(path), from_uri=found["location"], options=options, **FAST),
        Instance(name),
    )
    return found, str(output)


def compare(newest, live, scratch, **more):
    return CompareOutputsOperator(
        task_id="compare", live=str(live), scratch=str(scratch), column="window_start", span_seconds="1", newest=newest,
        **{**FAST, **more},
    )  # fmt: skip


def test_a_scratch_job_counts_as_the_job_does(client, tmp_path, name, running, scratch):
    newest, output = scratch
    live = tmp_path / f"{name}-out"
    found = compare(newest, live, output).execute(Instance().context())
    assert found["compared"] >= 1
    assert found["rows"] > 0
    exact = compare(newest, live, output, window_seconds="1").execute(Instance().context())
    assert exact["compared"] >= found["compared"]
    # the job runs: its unfinished files, which are hidden, get other names meanwhile
    shutil.copytree(output, tmp_path / "late", ignore=shutil.ignore_patterns(".*"))
    parts = {path: pq.read_table(path) for path in (tmp_path / "late").glob("part-*")}
    opened = min(pc.min(table["window_start"]).as_py() for table in parts.values() if table.num_rows)
    for path, table in parts.items():
        pq.write_table(table.filter(pc.field("window_start") != opened), path)
    with pytest.raises(AirflowException, match=" rows, 0 of the scratch"):
        compare(newest, live, tmp_path / "late", window_seconds=1, timeout_seconds=0.1).execute(Instance().context())
    windows = pa.concat_tables(parts.values()).column("window_start").unique()
    for path in live.glob("part-*"):
        if pc.any(pc.is_in(pq.read_table(path).column("window_start"), windows)).as_py():
            path.unlink()
    with pytest.raises(AirflowException, match="of the scratch"):
        compare(newest, live, output, timeout_seconds=0.5).execute(Instance().context())
    with pytest.raises(AirflowException, match="nothing to compare: the scratch job has written nothing"):
        compare(newest, live, tmp_path / "none", timeout_seconds=0.1).execute(Instance().context())
    for _ in range(2):
        cancel = CancelJobOperator(task_id="cancel", job=f"{name}-verify", or_ended=True, **FAST)
        assert run(cancel, Instance(f"cancel-{name}"))["state"] == "CANCELED"
    assert client.job(running)["state"] == "RUNNING"


def test_tidying_up_after_a_job_that_never_was(cluster):
    tidy = {"task_id": "cancel", "job": "never-was", **FAST}
    assert CancelJobOperator(or_ended=True, **tidy).execute(Instance().context())["state"] is None
    with pytest.raises(AirflowFailException, match="no job 'never-was'"):
        CancelJobOperator(**tidy).execute(Instance().context())


def test_there_is_no_savepoint(client, tmp_path, name, running):
    with pytest.raises(AirflowException, match=f"no savepoint of {name}"):
        NewestSavepointOperator(task_id="n", job=name, target=str(tmp_path / "none")).execute(Instance().context())
