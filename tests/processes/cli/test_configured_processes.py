"""A JobManager and a TaskManager whose settings come from `penstock.toml` in their working folder."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest
from tests.support.waiting import wait_until

CONTENT = """
[cluster]
ha_root = "state/ha"

[jobmanager]
rest_port = 0
rpc_port = 0
heartbeat_interval = "300ms"

[taskmanager]
slots = 3
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def start_process(*arguments):
        ready = tmp_path / f"{arguments[0]}.ready"
        log = (tmp_path / f"{arguments[0]}.log").open("ab")
        environment = {**os.environ, "PENSTOCK_HOME": str(tmp_path / "home")}
        with log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "penstock.cli.main", *arguments, "--ready-file", str(ready)],
                    cwd=tmp_path, env=environment, stdout=log, stderr=log,
                )
            )  # fmt: skip
        wait_until(ready.exists, lambda: f"{arguments[0]} is ready; its log: {(tmp_path / log.name).read_text()}")
        return ready.read_text()

    yield start_process
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def test_both_take_the_file_and_the_taskmanager_finds_the_leader_by_the_ha_root_in_it(tmp_path, start):
    (tmp_path / "penstock.toml").write_text(CONTENT)
    url = json.loads(start("jobmanager"))["rest"]
    start("taskmanager")
    with urllib.request.urlopen(f"{url}/jobmanager/config") as answer:
        shown = {entry["key"]: entry["value"] for entry in json.load(answer)}
    assert shown["heartbeat_interval_ms"] == "300"
    with urllib.request.urlopen(f"{url}/overview") as answer:
        assert json.load(answer)["slots-total"] == 3
    assert (tmp_path / "state" / "ha").is_dir()
