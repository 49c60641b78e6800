"""The folder with certificates, tokens and the secret: what of it counts, and what may listen where."""

import pytest

from penstock.cli import serve
from penstock.config.config_file import SharedSettings
from penstock.config.security import (
    Security,
    Tls,
    TokenEntry,
    check_data_port,
    check_listening,
    load_security,
    token_digest,
)
from penstock.core import secrets
from penstock.core.errors import UsageError
from penstock.core.secrets import Secret

WHOLE = Security(
    cluster=Tls("c", "k", "ca"), rest=Tls("c", "k", "ca"), tokens=(TokenEntry("admin", "a", "d"),), secret=Secret("s")
)


@pytest.fixture
def folder(tmp_path):
    for name in ("ca.pem", "cluster.pem", "rest.pem"):
        (tmp_path / name).write_text(name)
    for name in ("cluster.key", "rest.key"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "tokens").write_text(f"# who\nadmin me {token_digest('t')}  # mine\n\nviewer you {token_digest('u')}\n")
    (tmp_path / "tokens").chmod(0o644)
    (tmp_path / "cluster.secret").write_text("s" * 64 + "\n")
    (tmp_path / "cluster.secret").chmod(0o600)
    return tmp_path


def test_a_whole_folder(folder):
    found = load_security({"PENSTOCK_SECURITY": str(folder)})
    assert found.cluster == Tls(folder / "cluster.pem", folder / "cluster.key", folder / "ca.pem")
    assert found.rest is not None
    assert found.client_ca is None
    assert found.secret.reveal() == "s" * 64
    assert found.role_of("t").name == "me"
    assert found.role_of("u").role == "viewer"
    assert found.role_of("v") is None
    assert "s" * 64 not in repr(found)
    check_listening(found, "10.0.0.7")


def test_nothing_is_named():
    found = load_security({})
    assert found == Security(secret=found.secret)
    assert not found.secret
    assert load_security({"PENSTOCK_CLUSTER_SECRET": "x" * 32}).secret.reveal() == "x" * 32
    with pytest.raises(UsageError, match="PENSTOCK_CLUSTER_SECRET has 1 characters"):
        load_security({"PENSTOCK_CLUSTER_SECRET": "x"})


def test_a_process_that_was_given_no_secret_takes_its_users(tmp_path, monkeypatch):
    """A JobManager with --insecure too: its TaskManagers have no such option, and must find the same."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_SECURITY", raising=False)
    monkeypatch.delenv("PENSTOCK_CLUSTER_SECRET", raising=False)
    monkeypatch.setattr(secrets, "_remembered", set())
    taskmanager, jobmanager = serve._security(SharedSettings()), serve._security(SharedSettings(insecure=True))
    assert len(taskmanager.secret.reveal()) >= 32
    assert jobmanager.secret.reveal() == taskmanager.secret.reveal()
    secrets._of_this_process.cache_clear()


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda f: (f / "ca.pem").unlink(), "ca.pem is missing"),
        (lambda f: (f / "rest.key").unlink(), "rest.key is missing"),
        (lambda f: (f / "cluster.key").chmod(0o640), "cluster.key can be read by other users"),
        (lambda f: (f / "cluster.secret").chmod(0o604), "cluster.secret can be read by other users"),
        (lambda f: (f / "cluster.secret").write_text("short"), "has 5 characters"),
        (lambda f: (f / "tokens").chmod(0o664), "tokens is writable by other users"),
        (lambda f: (f / "tokens").write_text("admin me"), "tokens:1 is not"),
        (lambda f: (f / "tokens").write_text(f"\nroot me {token_digest('t')}"), "tokens:2 is not"),
        (lambda f: (f / "tokens").write_text("admin me plain-token"), "tokens:1 is not"),
    ],
)
def test_what_is_wrong_is_named(folder, break_it, named):
    break_it(folder)
    with pytest.raises(UsageError, match=named):
        load_security({}, str(folder))


def test_a_folder_that_is_not_there():
    with pytest.raises(UsageError, match="penstock cluster certs /none"):
        load_security({}, "/none")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host):
    check_listening(Security(), host)


@pytest.mark.parametrize("host", ["::", "10.0.0.7", "node7"])
def test_workers_listen_for_other_hosts_with_certificates_alone(host):
    check_data_port(WHOLE, host)
    check_data_port(Security(insecure=True), host)
    check_data_port(Security(), "127.0.0.2")
    with pytest.raises(UsageError, match=r"without TLS between the processes .*--insecure"):
        check_data_port(Security(secret=Secret("s")), host)


@pytest.mark.parametrize("host", ["::", "10.0.0.7", "node7", "localhost.example"])
def test_other_addresses_need_everything_or_a_word(host):
    check_listening(WHOLE, host)
    check_listening(Security(insecure=True), host)
    with pytest.raises(
        UsageError, match=r"without TLS between .*, TLS on REST .*, tokens, a cluster secret .*--insecure"
    ):
        check_listening(Security(), host)
    for part in ("cluster", "rest", "secret"):
        from dataclasses import replace

        with pytest.raises(UsageError, match="penstock cluster certs"):
            check_listening(replace(WHOLE, **{part: Secret() if part == "secret" else None}), host)
    with pytest.raises(UsageError, match="without tokens"):
        check_listening(replace(WHOLE, tokens=()), host)
