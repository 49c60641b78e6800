"""Airflow's environment, made once by the command that a person would use; and a running Airflow with all it drives."""

import contextlib
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What is closed after the last test of this folder.
OPENED = contextlib.ExitStack()


@pytest.fixture(scope="session")
def airflow_python():
    """The interpreter of Airflow's environment; `infra/bootstrap.py` installs it when it is not there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "bootstrap.py"), "airflow"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return ROOT / ".venv-airflow" / "bin" / "python"


@pytest.fixture(scope="session")
def stage(airflow_python, kafka_server, minio_server, tmp_path_factory):
    """A real Airflow, a cluster, Kafka and S3 (`tests.airflow.stage`)."""
    from tests.airflow.stage import opened  # not where the provider's own tests run

    return OPENED.enter_context(opened(tmp_path_factory.mktemp("airflow"), kafka_server, minio_server))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """End Airflow after the last test of this folder.

    The folder cannot be a package, whose name would be `airflow`: so a fixture of that scope would last to the end.
    """
    if nextitem is None or HERE not in nextitem.path.parents:
        OPENED.close()


@pytest.fixture
def name(stage):
    """A job name of this test alone."""
    yield f"job-{secrets.token_hex(3)}"
    stage.end_all()


@pytest.fixture
def orders(stage, tmp_path):
    """Orders that come in, and the job that counts them."""
    from tests.airflow.orders_job import fed

    with fed(stage.servers, tmp_path) as found:
        yield found
        stage.end_all()
