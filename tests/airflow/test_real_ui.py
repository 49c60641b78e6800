"""Every DAG of the repository, and connections, from Airflow's own UI, in a headless Chromium."""

import os

import pytest
from tests.airflow.connections import Connections
from tests.airflow.driver import Reader
from tests.airflow.job_file import write_job
from tests.airflow.stage import DAGS
from tests.cluster.tokens import protected_cluster
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import chromium

from penstock_lab.servers.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
#: Orders a second, so that there are some for as long as a user takes.
SLOW = 150
#: Label -> placeholder of a standard field, value of an extra one.
FORM = {
    "Description": "", "Host": "127.0.0.1", "API token": "", "Port": "8081 (fill it in to test)", "Scheme": "http",
    "Time-out": "5", "Job page": "", "CA file": "", "Python of the jobs": "",
}  # fmt: skip


def test_a_dag_from_the_ui(stage, name, tmp_path):
    """Its documentation is shown, its form filled in, and its run leads to the job's page."""
    with chromium() as browser:
        reader = Reader(browser, stage.airflow)
        assert "parameter" in reader.docs("job_submit")
        run = reader.run("job_submit", job_file=write_job(tmp_path, name))
        job_id = stage.airflow.result("job_submit", run, "submit")["job_id"]
        assert reader.link("job_submit", run, "submit") == f"{stage.cluster.rest_url}/ui/#/jobs/{job_id}"
    assert stage.rest.job(job_id)["state"] == "RUNNING"


@pytest.mark.nightly
def test_every_dag_from_the_ui(stage, orders):
    """A job's life: begun with its history, rescaled, saved, upgraded, verified, stopped, cut anew, started again."""
    airflow, other = stage.airflow, f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    with chromium() as browser:
        reader = Reader(browser, airflow, os.environ.get("PENSTOCK_PICTURES"))
        for dag in DAGS:
            assert "parameter" in reader.docs(dag)
        wait_until(lambda: orders.feed.sent > 1_000, "orders", step=0.2)
        orders.feed.rate = SLOW
        run = reader.run("job_backfill", job_file=orders.write(), target=orders.savepoints, parts=2)
        job_id = airflow.result("job_backfill", run, "submit")["job_id"]
        reader.run("job_rescale", job=orders.name, parallelism=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}
        reader.run("savepoint_schedule", job=orders.name, target=orders.savepoints, keep=2)
        same = 'with_columns(total=pl.col("total") + 0)'
        new = orders.write("v2", step=same)
        run = reader.run("job_upgrade", picture="airflow-form", job=orders.name, job_file=new, checkpoints=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}, "an upgrade keeps the parallelism"
        link = reader.link("job_upgrade", run, "upgrade", picture="airflow-task")
        assert link == f"{stage.cluster.rest_url}/ui/#/jobs/{job_id}"
        reader.run(
            "savepoint_verify", job=orders.name, target=orders.savepoints, job_file=new, span_seconds=1,
            scratch_root=f"{orders.root}-verify", environment={"OUTPUT": other},
            live=f"kafka://{orders.bootstrap}/{orders.sink}", scratch=f"kafka://{orders.bootstrap}/{other}",
        )  # fmt: skip
        reader.look("savepoint_verify", picture="airflow-grid")
        run = reader.run("job_stop", job=orders.name, target=orders.savepoints)
        assert stage.rest.job(job_id)["state"] == "FINISHED"
        stopped = airflow.result("job_stop", run, "stop")["location"]
        run = reader.run("state_repartition", snapshot=stopped, target=orders.savepoints, key_groups=16)
        anew = airflow.result("state_repartition", run, "repartition")["location"]
        last = orders.write("v3", step=same, environment="key_groups=16")
        run = reader.run("job_submit", job_file=last, from_uri=anew)
        assert reader.done == set(DAGS)
    stage.exact(orders, airflow.result("job_submit", run, "submit")["job_id"])


@pytest.fixture
def protected(tmp_path):
    with protected_cluster(tmp_path, slots=2) as found:
        yield found


@pytest.mark.nightly
def test_a_connection_is_made_tested_and_used(stage, protected, tmp_path):
    """Filled in wrongly it says what is wrong, in one line; filled in rightly a task waits with it for a job."""
    (cluster, tokens), ok, failed = protected, "Test Connection Successful", "Test Connection Failed"
    host, _, port = cluster.rest_url.removeprefix("http://").rpartition(":")
    given = {"host": host, "port": port, "password": tokens.of["viewer"]}
    nobody = free_port()
    with chromium() as browser:
        page = Connections(Reader(browser, stage.airflow, os.environ.get("PENSTOCK_PICTURES")))
        page.add("of-nobody", **{**given, "port": nobody})
        title, text = page.tested("of-nobody")
        assert (title, text.partition(": ")[0]) == (failed, f"no JobManager answers at http://{host}:{nobody}")
        page.add("of-others", **{**given, "password": "a token of some other cluster"})
        title, text = page.tested("of-others")
        assert (title, text.partition(" (")[0]) == (failed, "the token is not valid for this cluster")
        page.add("as-address", **{**given, "host": cluster.rest_url})
        title, text = page.tested("as-address")
        assert (title, text.partition(" (")[0]) == (failed, f"the connection has the host '{cluster.rest_url}'")
        shown = page.add("protected", picture="airflow-connection", extra={"timeout": 5}, **given)
        assert shown == FORM
        assert page.tested("protected") == (ok, "penstock 0.1.0: 1 TaskManagers, 2 of 2 slots free")
    # the job is known to this cluster alone, which tells nobody of it who has no token
    job_id = tokens.client(cluster.rest_url).submit(jobs.encoded(tmp_path, rate=500, work=10), token="one")
    run = stage.run("wait_by_connection", job="order-risks", connection="protected")
    assert stage.airflow.result("wait_by_connection", run, "runs")["job_id"] == job_id
    run = stage.run("wait_by_connection", "failed", job="order-risks", connection="of-others")
    assert "the token is not valid for this cluster" in stage.airflow.log("wait_by_connection", run, "runs")
