"""The main job with every protection on, over SASL and TLS to a real Kafka: exact, and its secrets are in no output."""

import contextlib
import itertools
import re
import secrets
from pathlib import Path

import pytest
from tests.cluster import proc_tree
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, Orders, create_topics, read_windows, verdict
from tests.cluster.stage import cli, graph_of
from tests.support.waiting import wait_until

from penstock.cli.start.certs import certs
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import encode_graph
from penstock.rest.server.app import create_app
from penstock_lab.servers import minio_local
from penstock_lab.servers.kafka_local import LocalKafka
from penstock_lab.servers.minio_local import LocalMinio
from penstock_lab.servers.process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

BUCKET = "secrets"
FAILING = """
import os
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


def log_in(row) -> bool:
    raise ConnectionError("nobody is " + os.environ["SHOP_SASL_PASSWORD"])


env = ps.Environment(checkpoint_root="checkpoints")
rows = env.from_source(DatagenSource(rows=10), watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
rows.filter(log_in).uid("login").sink_to(FileSink("out"), uid="out")
env.execute("failing")
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "certs"
    certs(made, host=None, days=1)
    return made


@pytest.fixture
def planted(folder):
    """Every secret of the run, by what it is."""
    files = {path.name: path.read_text().strip() for path in (*folder.glob("*.token"), folder / "cluster.secret")}
    return {**files, "kafka": secrets.token_hex(16), "s3": secrets.token_hex(16)}


@pytest.fixture
def kafka(tmp_path, folder, planted):
    """A broker with a plain port for the test, and one that takes SASL over TLS for the job."""
    port, secure = free_port(), free_port()
    store = tmp_path / "broker.pem"
    store.write_bytes((folder / "rest.key").read_bytes() + (folder / "rest.pem").read_bytes())
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_shop="{planted["kafka"]}";'
    controller = free_port()
    settings = {
        "listeners": f"CLIENT://127.0.0.1:{port},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{port},SECURE://127.0.0.1:{secure}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": login,
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(store),
    }
    server = LocalKafka(tmp_path / "kafka", port=port, settings=settings)
    server.start()
    server.secure = f"127.0.0.1:{secure}"
    yield server
    server.remove()


@pytest.fixture
def minio(tmp_path, planted):
    server = LocalMinio(tmp_path / "minio", secret_key=planted["s3"])
    server.start()
    minio_local.ensure_bucket(server, BUCKET)
    yield server
    server.remove()


def properties(folder, variable="SHOP_SASL_PASSWORD"):
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": f"${{ENV:{variable}}}",
        "ssl.ca.location": str(folder / "ca.pem"),
    }
    return f"properties={given!r}"


def answers(rest, job_id, *, but=()):
    """What REST answers to every question about the cluster, the job, its parts, its processes and its state.

    `but`: ends of paths that are left out.
    """
    paths = create_app(None, None, None).openapi()["paths"]
    parts = {
        "job_id": [job_id],
        "vertex_id": [vertex["id"] for vertex in rest.job(job_id)["vertices"]],
        "index": ["0"],
        "checkpoint_id": [str(entry["id"]) for entry in rest.checkpoints(job_id)["history"][:2]],
        "taskmanager_id": [manager["id"] for manager in rest.taskmanagers()],
        "worker_id": [worker["id"] for worker in rest.workers(job_id)],
        "uid": ["totals"],
        "name": ["panes"],
    }
    for path, verbs in paths.items():
        names = re.findall(r"{(\w+)}", path)
        if "get" not in verbs or not set(names) <= set(parts) or path.endswith(but):
            continue
        for values in itertools.product(*(parts[name] for name in names)):
            asked = path.format(**dict(zip(names, values, strict=True)))
            # as it stands, a log's plain text too
            yield asked, rest._request(rest.url, "GET", asked, None, {})[1].decode()


def outputs(tmp_path, minio, cluster, jobs, environment):
    """Everything the run has said or left anywhere."""
    with cluster.client() as rest:
        for job_id in jobs:
            yield from answers(rest, job_id)
            for worker in rest.workers(job_id):
                yield "log", rest.log(worker["id"])
            for command in ("show", "story", "logs", "explain"):
                said = cli(command, job_id, "--cluster", cluster.rest_url, cwd=tmp_path, environment=environment)
                yield command, said.out + said.err
    for pid in proc_tree.descendants(cluster.jobmanager.pid) + [child.pid for child in cluster.taskmanagers]:
        yield "command line", Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    store = minio_local.client(minio)
    for found in store.list_objects(BUCKET, recursive=True):
        yield found.object_name, store.get_object(BUCKET, found.object_name).read().decode("latin-1")
    own = {"certs", "kafka", "minio", "broker.pem"}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.relative_to(tmp_path).parts[0] not in own:
            yield str(path), path.read_bytes().decode("latin-1")


def test_no_secret_is_in_any_output(tmp_path, folder, planted, kafka, minio):
    orders = Orders(7, 8_000)
    create_topics(kafka.bootstrap, orders=orders.partitions, totals=2)
    environment = {
        "PENSTOCK_SECURITY": str(folder),
        "SHOP_SASL_PASSWORD": planted["kafka"],
        "OTHER_PASSWORD": "not-the-password",
        "PENSTOCK_S3_ENDPOINT": minio.url,
        "PENSTOCK_S3_ACCESS_KEY": minio.access_key,
        "PENSTOCK_S3_SECRET_KEY": minio.secret_key,
    }
    options = {"source_options": properties(folder), "sink_options": properties(folder)}
    job = Job("shop", kafka.secure, "orders", "totals", f"s3://{BUCKET}/jobs", stops=orders.stops("orders"), **options)
    config = LocalClusterConfig(
        taskmanagers=2, slots_per_taskmanager=2, directory=tmp_path / "cluster", environment=environment
    )
    feed = Feed(kafka.bootstrap, "orders", orders, 4_000)
    with contextlib.ExitStack() as stack, LocalCluster(config) as cluster, cluster.client() as rest:
        stack.callback(feed.end)
        assert cluster.rest_url.startswith("https://")
        shop = rest.submit(encode_graph(graph_of(job, tmp_path)), token="1")
        wait_until(lambda: rest.job(shop)["state"] == "RUNNING", lambda: rest.exceptions(shop))
        feed.start()
        while_running = list(answers(rest, shop, but=("/wait",)))
        assert any("/state/totals/panes/keys" in asked for asked, _ in while_running)

        wrong = Job("thief", kafka.secure, "orders", "totals", f"s3://{BUCKET}/jobs", stops=orders.stops("orders"),
                    source_options=properties(folder, "OTHER_PASSWORD"))  # fmt: skip
        with pytest.raises(PenstockError, match="that the security properties fit") as refused:
            rest.submit(encode_graph(graph_of(wrong, tmp_path)), token="2")
        assert "not-the-password" not in str(refused.value)

        (tmp_path / "failing.py").write_text(FAILING)
        failing = cli("run", "failing.py", "--cluster", cluster.rest_url, "--set", "restart.kind=none", "--json",
                      cwd=tmp_path, environment=environment)  # fmt: skip
        assert failing.code == 3
        assert "nobody is ******" in failing.err
        feed.join()
        wait_until(lambda: rest.job(shop)["state"] == "FINISHED", lambda: rest.exceptions(shop), seconds=120)
        found = verdict(orders, read_windows(kafka.bootstrap, "totals"))
        assert found.exact, found

        jobs = [job["jid"] for job in rest.jobs()]
        assert len(jobs) == 2
        seen = 0
        known = {**planted, "of this cluster": cluster.secret}
        for where, text in [
            ("command", failing.out + failing.err),
            *while_running,
            *outputs(tmp_path, minio, cluster, jobs, environment),
        ]:
            seen += 1
            for what, secret in known.items():
                assert secret not in text, f"{what} is in {where}"
        assert seen > 200, "or nothing was looked at"


def test_a_key_of_s3_that_is_wrong_is_named_and_not_shown(minio, tmp_path):
    environment = {
        "PENSTOCK_S3_ENDPOINT": minio.url,
        "PENSTOCK_S3_ACCESS_KEY": minio.access_key,
        "PENSTOCK_S3_SECRET_KEY": "another-key-altogether",
    }
    said = cli("state", "ls", f"s3://{BUCKET}/jobs", cwd=tmp_path, environment=environment)
    assert said.code != 0
    assert "check PENSTOCK_S3_SECRET_KEY" in said.err
    assert "another-key-altogether" not in said.out + said.err
