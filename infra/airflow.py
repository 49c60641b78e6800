"""A complete local Airflow with a penstock cluster: `infra/airflow.py start|stop|status|env`.

Starts the parts that do not run: a cluster (unless one is given), API server, scheduler, triggerer and dag-processor,
each in a separate process on the loopback interface, with the DAGs of `dags/` and the connection `penstock_default`.
Installs Airflow's environment first. The tests use the same command. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv-airflow" / "bin"
#: The log servers of scheduler and triggerer would listen on all interfaces; logs are read from the disk.
COMPONENTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
CONNECTION = "penstock_default"
HEALTH = ("metadatabase", "scheduler", "triggerer", "dag_processor")
READY_SECONDS = 240.0
STOP_SECONDS = 30.0


class AirflowError(Exception):
    """An error that is printed in one line."""


class LocalAirflow:
    """One Airflow in one folder; its processes are listed in `airflow.json`."""

    def __init__(self, home: Path, port: int, cluster: str) -> None:
        """Use `port` and `cluster` (a URL; empty: start one) for parts that do not exist yet."""
        self.home = home
        self._file = home / "airflow.json"
        self.record: dict[str, Any] = {"port": port, "cluster": cluster, "own_cluster": False, "pids": {}}
        if self._file.exists():
            self.record = json.loads(self._file.read_text())

    @property
    def url(self) -> str:
        """Return the address of UI and REST API."""
        return f"http://127.0.0.1:{self.record['port']}"

    @property
    def password(self) -> str:
        """Return the password of the user `admin`."""
        return str(json.loads((self.home / "passwords.json").read_text())["admin"])

    def start(self) -> None:
        """Start the parts that do not run and wait until all are healthy."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.record["cluster"]:
            self._start_cluster()
        passwords = self.home / "passwords.json"
        if not passwords.exists():
            passwords.touch(mode=0o600)
            passwords.write_text(json.dumps({"admin": secrets.token_urlsafe(12)}))
        self._save()
        if not (self.home / "airflow.db").exists():
            say("creating Airflow's database ...")
            self._run([str(BIN / "airflow"), "db", "migrate"])
        for name, arguments in COMPONENTS.items():
            if not alive(self.record["pids"].get(name)):
                say(f"starting Airflow's {name} ...")
                self._spawn(name, [str(BIN / "airflow"), *arguments])
        if not self.healthy():
            say("waiting until Airflow is healthy ...")
            self._wait_healthy()

    def stop(self) -> None:
        """Stop all parts."""
        pids = [pid for pid in self.record["pids"].values() if alive(pid)]
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            for pid in filter(alive, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)
            deadline = time.monotonic() + seconds
            while any(map(alive, pids)) and time.monotonic() < deadline:
                time.sleep(0.1)
        if self.record["own_cluster"]:
            self._run([str(BIN / "penstock"), "cluster", "stop"])
        self._file.unlink(missing_ok=True)

    def healthy(self) -> bool:
        """Return whether all components run and report that they are healthy."""
        if not all(alive(self.record["pids"].get(name)) for name in COMPONENTS):
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:  # noqa: S310  our own address
                found = json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return False
        return all(found[name]["status"] == "healthy" for name in HEALTH)

    def _start_cluster(self) -> None:
        say("starting a penstock cluster ...")
        said = self._run([str(BIN / "penstock"), "cluster", "start", "--rest-port", "0", "--slots", "4", "--json"])
        self.record |= {"cluster": json.loads(said.splitlines()[-1])["rest"], "own_cluster": True}

    def _run(self, argv: list[str]) -> str:
        done = subprocess.run(argv, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise AirflowError(f"{' '.join(argv[:3])} failed: {' | '.join(said[-3:])}")
        return done.stdout

    def _spawn(self, name: str, argv: list[str]) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        self.record["pids"][name] = process.pid
        self._save()

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self.record))
        new.replace(self._file)

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.healthy():
            dead = [name for name in COMPONENTS if not alive(self.record["pids"].get(name))]
            if dead or time.monotonic() > deadline:
                what = f"{dead[0]} has ended" if dead else f"it is not healthy after {READY_SECONDS:.0f} s"
                raise AirflowError(f"{what}; logs are in {self.home}")
            time.sleep(0.2)

    def exports(self) -> str:
        """Return lines for a shell, in which `airflow` and `penstock` then use this installation."""
        own = {name: value for name, value in self._environment().items() if os.environ.get(name) != value}
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(own.items()))

    def _environment(self) -> dict[str, str]:
        cluster = urlsplit(self.record["cluster"] or "http://127.0.0.1:8081")
        connection = {"conn_type": "penstock", "host": cluster.hostname, "port": cluster.port, "schema": cluster.scheme}
        return {
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            # time until a worker sees that its task has deferred; the default of 5 s races with triggers that fire
            # early
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            # the first request to an API server takes long on a machine with few processors
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            **os.environ,
            "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
            "PENSTOCK_HOME": str(self.home / "penstock"),
            "AIRFLOW_HOME": str(self.home),
            # SQLite gives up after 5 s of waiting for another writer; a busy machine takes longer
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}?timeout=60",
            # database errors are shown in full: only this machine reaches the server
            "AIRFLOW__API__EXPOSE_STACKTRACE": "True",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.record["port"]),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            # off by default, as a user could make the server connect to any address; here the developer is the only
            # user
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        }


def say(line: str) -> None:
    """Print a step to standard error: standard output has the answer."""
    print(line, file=sys.stderr, flush=True)


def alive(pid: int | None) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return bool(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="infra/airflow.py", description="A complete local Airflow and a cluster.")
    parser.add_argument("command", choices=["start", "stop", "status", "env"])
    parser.add_argument("--home", type=Path, default=ROOT / ".airflow", help="folder of its database and logs")
    parser.add_argument("--port", type=int, default=18080, help="of UI and REST API")
    parser.add_argument("--cluster", default="", help="URL of a penstock cluster; default: start one")
    given = parser.parse_args()
    airflow = LocalAirflow(given.home.resolve(), given.port, given.cluster)
    try:
        if given.command == "start":
            subprocess.run([sys.executable, str(ROOT / "infra" / "bootstrap.py"), "airflow"], check=True)
            airflow.start()
        if given.command == "stop":
            airflow.stop()
            print("stopped")
            return 0
    except AirflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    if not airflow.healthy():
        print("not running")
        return 3
    if given.command == "env":
        print(airflow.exports())
        return 0
    print(f"Airflow at {airflow.url} (user admin, password {airflow.password})")
    print(f"penstock at {airflow.record['cluster']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
