"""The script of the local servers reports what runs, and refuses to count a server that does not run as started."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "infra" / "servers.sh"


@pytest.fixture
def script(tmp_path):
    """Return a call of the script beside running servers, of which there is only Kafka."""
    (tmp_path / "servers.pid").write_text(f"{os.getpid()}\n")
    (tmp_path / "servers.out").write_text(json.dumps({"server": "Kafka", "endpoint": "127.0.0.1:1", "pid": 1}) + "\n")

    def run(*arguments):
        environment = {**os.environ, "PENSTOCK_SERVERS_DATA": str(tmp_path)}
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)

    return run


def test_a_server_that_runs_counts_as_started(script):
    done = script("start", "kafka")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["endpoint"] == "127.0.0.1:1"


@pytest.mark.parametrize("arguments", [["start"], ["start", "minio"], ["start", "kafka", "minio"]])
def test_a_server_that_does_not_run_beside_others_is_an_error(script, arguments):
    done = script(*arguments)
    assert done.returncode == 1
    assert "the running servers have no minio; run infra/servers.sh stop" in done.stderr
