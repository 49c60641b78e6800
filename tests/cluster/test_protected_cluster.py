"""A cluster with certificates, tokens and a secret, made by two commands; a scan of what it listens on."""

import contextlib
import http.client
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pytest
from tests.cluster import proc_tree
from tests.cluster.ports import listening, own_addresses, reaches, unix_folders
from tests.cluster.savepoints import rows_read
from tests.support.waiting import wait_until

from penstock.client.access import ClientAccess
from penstock.client.rest_client import RestClient
from penstock.core.errors import UsageError
from penstock.core.secrets import Secret
from penstock_connectors.datagen.source import OrderPattern, orders

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS = 100
#: Of a command that hangs.
LIMIT_S = 300
JOB = f"""
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism=2, checkpoint_interval="300ms", checkpoint_root="checkpoints")
source = DatagenSource(splits=1, users={USERS}, rows_per_second=500, event_rate=100)
orders = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
counted = orders.key_by("user_id").window(ps.Tumbling("5s")).aggregate(n=ps.count()).uid("counts")
counted.sink_to(FileSink("out"), uid="out")
env.execute("protected")
"""


class Console:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "PENSTOCK_HOME": str(folder / "home")}

    def __call__(self, *arguments, code=0, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)],
            cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def console(tmp_path):
    found = Console(tmp_path)
    yield found
    record = tmp_path / "home" / "cluster.json"
    if record.exists():  # a test that failed: nothing may stay behind
        pid = json.loads(record.read_text())["pid"]
        proc_tree.signal_all([pid, *proc_tree.descendants(pid)], signal.SIGKILL)


def ask(url, folder, *, certificate=True, ca="ca.pem", token="admin.token"):
    """GET the overview; the status, or what the handshake came to."""
    context = ssl.create_default_context(cafile=folder / ca)
    if certificate:
        context.load_cert_chain(folder / "client.pem", folder / "client.key")
    place = urlsplit(url)
    connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=60, context=context)
    headers = {"Authorization": f"Bearer {(folder / token).read_text().strip()}"} if token else {}
    try:
        connection.request("GET", "/v1/overview", headers=headers)
        return connection.getresponse().status
    except (ssl.SSLError, ConnectionError, http.client.HTTPException) as error:
        return type(error)
    finally:
        connection.close()


def refuses_other_tokens(console, url, folder):
    """Command line and Python client say which token was refused, and where a valid one belongs."""
    files = {"ca": folder / "ca.pem", "certificate": folder / "client.pem", "key": folder / "client.key"}
    variables = dict(zip(("PENSTOCK_CA", "PENSTOCK_CLIENT_CERT", "PENSTOCK_CLIENT_KEY"), files.values(), strict=True))
    environment = {name: str(path) for name, path in variables.items()}
    without = f"{url}: this cluster requires a token (clients read it from PENSTOCK_TOKEN_FILE or PENSTOCK_TOKEN"
    invalid = "the token is not valid for this cluster (it may have been replaced: ask the cluster's administrator)"
    for token, told in (("", without), ("0" * 64, f"{url} does not accept the token of PENSTOCK_TOKEN: {invalid}")):
        said = console("list", "--cluster", url, code=2, **environment, PENSTOCK_TOKEN=token)
        assert told in " ".join(said.split())
    for token, told in (("", without), ("0" * 64, f"{url} does not accept the given token: {invalid}")):
        with pytest.raises(UsageError) as raised:
            RestClient(url, ClientAccess(token=Secret(token), **files)).jobs()
        assert raised.value.message.startswith(told)


def test_mutual_tls_in_two_commands(console, tmp_path):
    folder = tmp_path / "certs"
    console("cluster", "certs", folder, "--client-certificates")
    started = console("cluster", "start", "--security", folder, "--taskmanagers", 2, "--slots", 1, "--rest-port", 0)
    assert started.startswith("starting a cluster; its log is ")
    url = next(word for word in started.split() if word.startswith("https://"))
    record = json.loads((tmp_path / "home" / "cluster.json").read_text())

    # The local cluster is found with its tokens; by its URL it asks for what it should.
    assert "2 TaskManagers" in console("cluster", "status")
    assert "cannot be used" not in console("list", "--cluster", url, PENSTOCK_SECURITY=str(folder))
    assert "PENSTOCK_CA" in console("list", "--cluster", url, code=1)
    assert ask(url, folder) == 200
    assert ask(url, folder, token="") == 401
    refuses_other_tokens(console, url, folder)
    assert issubclass(ask(url, folder, certificate=False), (ssl.SSLError, ConnectionError, http.client.HTTPException))
    assert "certificate" in console("list", "--cluster", url.replace("https", "http"), code=1)
    console("cluster", "certs", tmp_path / "others", "--client-certificates")
    assert ask(url, tmp_path / "others") is ssl.SSLCertVerificationError, "it is not the cluster they trust"

    (tmp_path / "job.py").write_text(JOB)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "run", "job.py", "--cluster", url],
        cwd=tmp_path, env={**console.environment, "PENSTOCK_SECURITY": str(folder)},
    ) as run:  # fmt: skip
        wait_until(lambda: "RUNNING" in console("list"), "a running job", step=0.2)
        ports = scan(record["pid"])
        assert urlsplit(url).port in ports
        assert sorted(bare(port) for port in ports) == ["401", "401", "nothing", "nothing"], (
            "metrics ask; TLS has no answer"
        )
        show_no_secret(record["pid"], folder)
        console("stop", "protected", "--drain")
        assert run.wait(LIMIT_S) == 0
    (savepoint,) = (tmp_path / "checkpoints" / "protected" / "savepoints").iterdir()
    parts = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and not path.name.startswith(".")]
    counted = pl.concat([pl.read_parquet(path) for path in parts]).group_by("user_id").agg(pl.col("n").sum())
    read = orders(OrderPattern(splits=1, users=USERS), 0, 0, rows_read(savepoint))["user_id"].to_pylist()
    assert dict(counted.rows()) == Counter(read)
    assert read
    console("cluster", "stop")


def bare(port):
    """What a request without certificate and token gets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        return "nothing"
    finally:
        connection.close()


def scan(pid):
    """Nothing of the cluster listens but on loopback, and in folders of its user alone; returns the ports."""
    pids = [pid, *proc_tree.descendants(pid)]
    assert len(pids) > 5, "JobManager, TaskManagers, templates, workers"
    found = listening(pids)
    assert len(found) == 4, f"REST, the processes' own, the metrics of two TaskManagers: {found}"
    assert {address for address, _ in found} == {"127.0.0.1"}
    ports = {port for _, port in found}
    for port in ports:
        assert reaches("127.0.0.1", port)
        for address in own_addresses():
            assert not reaches(address, port), f"{address}:{port}"
    folders = unix_folders(pids)
    assert folders, "workers meet there"
    for folder in folders:
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700, folder
    return ports


def show_no_secret(pid, folder):
    """No command line, which everybody may read, holds a token or the secret."""
    secrets = [path.read_text().strip() for path in (*folder.glob("*.token"), folder / "cluster.secret")]
    for one in [pid, *proc_tree.descendants(pid)]:
        with contextlib.suppress(FileNotFoundError):
            command = Path(f"/proc/{one}/cmdline").read_bytes().decode(errors="replace")
            assert not any(secret in command for secret in secrets)


def test_by_default_nothing_listens_but_on_loopback(console, tmp_path):
    started = console("cluster", "start", "--taskmanagers", 2, "--slots", 1, "--rest-port", 0)
    url = next(word for word in started.split() if word.startswith("http://"))
    record = json.loads((tmp_path / "home" / "cluster.json").read_text())
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "penstock.cli.main", "run", "job.py", "--cluster", url]
    with subprocess.Popen(command, cwd=tmp_path, env=console.environment) as run:
        wait_until(lambda: "RUNNING" in console("list"), "a running job", step=0.2)
        scan(record["pid"])
        console("stop", "protected")
        assert run.wait(LIMIT_S) == 0
    console("cluster", "stop")


@pytest.mark.parametrize(
    "command", [("jobmanager", "--rest-port", "0", "--rpc-port", "0"), ("cluster", "start", "--rest-port", "0")]
)
def test_other_addresses_need_protection(console, command):
    code = 2 if command[0] == "jobmanager" else 1
    said = console(*command, "--host", "0.0.0.0", code=code)  # noqa: S104 - it is refused
    assert "cannot listen on 0.0.0.0" in said
    assert "penstock cluster certs" in said, said.splitlines()
    assert "--insecure" in said
    assert said.count("penstock: ") == 1
