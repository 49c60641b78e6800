"""Flink's command line on a cluster with certificates: https, the cluster's CA, a token, a client's certificate."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.flink_tools.cluster import Place
from tests.flink_tools.installation import FlinkCli

from penstock.cli.start.certs import certs
from penstock_lab.servers.provision import java_program

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

PASSWORD = "changeit"
#: Flink's own choice of ciphers is for certificates of RSA keys; ours have shorter ones.
TLS = {
    "security.ssl.rest.enabled": "true",
    "security.ssl.protocol": "TLSv1.3",
    "security.ssl.algorithms": "TLS_AES_256_GCM_SHA384",
}
#: Asked for once: a connection that is refused is no reason to wait.
ONCE = {"rest.retry.max-attempts": 1}


@pytest.fixture
def secured(flink_home, tmp_path):
    """A cluster that asks for a token and for a client's certificate, and its folder."""
    folder = tmp_path / "certs"
    certs(folder, host=None, days=1, client_certificates=True)
    found = Place(tmp_path, tokens=SimpleNamespace(environment={"PENSTOCK_SECURITY": str(folder)}))
    with found.cluster:
        yield found, folder


def trust(folder):
    """Flink's options to believe in the cluster's CA."""
    store = folder / "ca.p12"
    keytool = Path(java_program()).resolve().with_name("keytool")
    given = ["-file", folder / "ca.pem", "-keystore", store, "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run([keytool, "-importcert", "-noprompt", "-alias", "penstock", *given], check=True, capture_output=True)
    return {"security.ssl.rest.truststore": store, "security.ssl.rest.truststore-password": PASSWORD}


def show(folder):
    """Flink's options to show a client's certificate."""
    store, text = folder / "client.p12", (folder / "client.pem").read_bytes()
    key = serialization.load_pem_private_key((folder / "client.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(PASSWORD.encode())
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", key, x509.load_pem_x509_certificate(text), None, locked)
    )
    names = ("keystore", "keystore-password", "key-password")
    given = {f"security.ssl.rest.{name}": PASSWORD for name in names} | {"security.ssl.rest.keystore": store}
    return {**given, "security.ssl.rest.authentication-enabled": "true"}


@pytest.mark.nightly
def test_list_cancel_and_stop_with_a_savepoint_over_mutual_tls(secured, tmp_path):
    place, folder = secured
    job = place.submit("secured")
    address, token = place.address, (folder / "operator.token").read_text().strip()
    believing, shown = {**TLS, **trust(folder)}, show(folder)
    safe = FlinkCli(tmp_path, address, token, {**believing, **shown})
    assert f"{job} : secured (RUNNING)" in safe("list")

    without = FlinkCli(tmp_path, address, "", {**believing, **shown})
    assert "this cluster requires a token" in without("cancel", job, code=1)
    others = tmp_path / "others"
    certs(others, host=None, days=1, client_certificates=True)
    for options in ({}, believing, {**TLS, **trust(others), **shown}):  # no TLS, nothing shown, another cluster's CA
        FlinkCli(tmp_path, address, token, {**options, **ONCE})("cancel", job, code=1)
    assert place.state(job) == "RUNNING"

    assert re.search(r"Path: \S+", safe("stop", "--savepointPath", str(tmp_path / "stopped"), job))
    place.wait(job, "FINISHED")
    again = place.submit("secured")
    safe("cancel", again)
    place.wait(again, "CANCELED")
