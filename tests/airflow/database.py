"""Airflow's home as `airflow db migrate` makes it: once per machine, in the cache; each Airflow starts from a copy."""

import hashlib
import os
import shutil
import subprocess

from tests.airflow.conftest import ROOT

from penstock_lab.servers.provision import cache_root, fresh, locked


def migrated(home):
    """Make the folder `home` with a database, and with the configuration whose secrets all components share."""
    version = hashlib.sha256((ROOT / "infra" / "airflow.lock").read_bytes()).hexdigest()[:16]
    kept = cache_root() / "airflow" / version
    with locked("airflow-home", lambda _text: None):
        if not kept.exists():
            _migrate(kept)
    home.mkdir()
    shutil.copy(kept / "airflow.db", home)
    text = (kept / "airflow.cfg").read_text()
    (home / "airflow.cfg").write_text(text.replace(str(_stage(kept)), str(home)))


def _migrate(kept):
    """Do it in a folder beside, so that what lies in its place is whole."""
    stage = fresh(_stage(kept))
    stage.mkdir(parents=True)
    own = {"AIRFLOW_HOME": str(stage), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [ROOT / ".venv-airflow" / "bin" / "airflow", "db", "migrate"]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    stage.rename(kept)


def _stage(kept):
    return kept.with_name(f"{kept.name}.new")
