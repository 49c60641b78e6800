"""Every DAG of the repository from Airflow's own UI, in a headless Chromium."""

import os

import pytest
from tests.airflow.driver import Reader
from tests.airflow.stage import DAGS
from tests.cluster.proc_tree import wait_until
from tests.ui.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
#: Orders a second, so that there are some for as long as a user takes.
SLOW = 150


def test_every_dag_from_the_ui(stage, orders, tmp_path):
    """A job's life: begun with its history, rescaled, saved, upgraded, verified, stopped, cut anew, started again."""
    airflow, other = stage.airflow, f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    with chromium() as browser:
        reader = Reader(browser, airflow, os.environ.get("PENSTOCK_PICTURES") or tmp_path)
        for dag in DAGS:
            assert "parameter" in reader.docs(dag)
        wait_until(lambda: orders.feed.sent > 1_000, 60, "orders", 0.2)
        orders.feed.rate = SLOW
        run = reader.run("job_backfill", job_file=orders.write(), target=orders.savepoints, parts=2)
        job_id = airflow.result("job_backfill", run, "submit")["job_id"]
        reader.run("job_rescale", job=orders.name, parallelism=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}
        reader.run("savepoint_schedule", job=orders.name, target=orders.savepoints, keep=2)
        same = 'with_columns(total=pl.col("total") + 0)'
        new = orders.write("v2", step=same)
        run = reader.run("job_upgrade", picture="airflow-form", job=orders.name, job_file=new, checkpoints=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {1}
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
