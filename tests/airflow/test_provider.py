"""The provider's own tests, under the real Airflow's libraries, in Airflow's environment."""

import re
import subprocess

import pytest
from tests.airflow.conftest import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(2700)]


def test_under_airflow(airflow_python):
    command = [str(airflow_python), "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/airflow/provider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-12_000:]}\n{done.stderr[-2_000:]}"
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 10
