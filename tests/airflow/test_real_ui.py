"""The DAGs of the repository from Airflow's own UI, in a headless Chromium."""

import os

import pytest
from tests.airflow.driver import Reader
from tests.airflow.stage import DAGS
from tests.ui.browser import chromium

from penstock.client.savepoints import list_savepoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_dag_from_the_ui(stage, orders, tmp_path):
    airflow, path, other = stage.airflow, orders.write(stops=None), f"{orders.name}-verify"
    orders.more_topics(**{other: 2})
    with chromium() as browser:
        reader = Reader(browser, airflow, os.environ.get("PENSTOCK_PICTURES") or tmp_path)
        for dag in DAGS:
            assert "parameter" in reader.docs(dag)
        run = reader.run("job_submit", job_file=path, parallelism=1)
        job_id = airflow.result("job_submit", run, "submit")["job_id"]
        reader.run("job_rescale", job=orders.name, parallelism=2)
        assert {v["parallelism"] for v in stage.rest.job(job_id)["vertices"]} == {2}
        reader.run("savepoint_schedule", job=orders.name, target=orders.savepoints, keep=1)
        new = orders.write("v2", stops=None, step='with_columns(total=pl.col("total") + 0)')
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
        reader.run("state_repartition", snapshot=stopped, target=orders.savepoints, key_groups=16)
    assert len(list_savepoints(orders.savepoints)) == 3
