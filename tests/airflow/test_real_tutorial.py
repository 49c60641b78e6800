"""The tutorial of Airflow runs as it is written, with the Airflow and the cluster of the stage."""

import shlex

import pytest
from tests.support.tutorials import Tutorial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_airflow(stage, name, tmp_path):
    lines = stage.airflow.exports().splitlines()
    own = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
    environment = {**own, "PENSTOCK_CLUSTER": stage.cluster.rest_url}
    _submitted, runs, stopped = Tutorial("airflow", tmp_path, {"airflow-live": name}, environment).run()
    assert "job_submit" in runs
    assert "savepoint" in stopped
