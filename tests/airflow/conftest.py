"""Airflow's environment: made once, by the command that a person would use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def airflow_python():
    """The interpreter of Airflow's environment; `infra/bootstrap.py` installs it when it is not there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "bootstrap.py"), "airflow"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return ROOT / ".venv-airflow" / "bin" / "python"
