"""Renewal of a cluster's certificates: what was asked for when they were made holds on."""

import pytest
from cryptography import x509

from penstock.cli.start.certs import certs
from penstock.core.errors import UsageError


def names(folder):
    found = x509.load_pem_x509_certificate((folder / "rest.pem").read_bytes()).extensions
    told = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*told.get_values_for_type(x509.DNSName), *map(str, told.get_values_for_type(x509.IPAddress))}


def test_a_renewal_keeps_names_and_renews_the_certificates_of_clients(tmp_path):
    certs(tmp_path, host=["node7", "10.0.0.7"], days=1, client_certificates=True)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    certs(tmp_path, host=["node8"], days=2)
    assert names(tmp_path) == {"localhost", "127.0.0.1", "::1", "node7", "10.0.0.7", "node8"}
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != first[path.name]}
    assert changed == {f"{what}.{kind}" for what in ("cluster", "rest", "client") for kind in ("pem", "key")}


def test_what_cannot_be_renewed_is_named(tmp_path):
    (tmp_path / "rest.pem").write_text("no certificate")
    with pytest.raises(UsageError, match=r"rest\.pem is no certificate"):
        certs(tmp_path, host=None, days=1)
    assert not (tmp_path / "cluster.pem").exists()
