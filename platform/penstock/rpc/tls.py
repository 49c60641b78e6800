"""TLS credentials of the control stream between TaskManager and JobManager; used by `rpc.stream`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from penstock.config.security import INTERNAL_NAME, Tls
from penstock.core.errors import UsageError

#: The certificate is the cluster's, not a host's: it must contain this name, for any address.
TLS_OPTIONS = (("grpc.ssl_target_name_override", INTERNAL_NAME),)
_NAMES = "x509_subject_alternative_name"


def server_credentials(tls: Tls) -> Any:
    """Return server credentials that require certificates of the cluster's CA.

    Raises:
        UsageError: a file cannot be read.
    """
    certificate, key, ca = _read_files(tls)
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


def channel_credentials(tls: Tls) -> Any:
    """Return client credentials with the cluster's certificate.

    Raises:
        UsageError: a file cannot be read.
    """
    certificate, key, ca = _read_files(tls)
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


def is_cluster_certificate(context: Mapping[str, Any]) -> bool:
    """Return whether a certificate is that of the cluster's processes; a client's of the same CA is not."""
    return INTERNAL_NAME.encode() in context.get(_NAMES, ())


def _read_files(tls: Tls) -> tuple[bytes, bytes, bytes]:
    try:
        return tls.certificate.read_bytes(), tls.key.read_bytes(), tls.ca.read_bytes()
    except OSError as error:
        msg = f"cannot read {error.filename}: {error.strerror}"
        raise UsageError(msg, hint="`penstock cluster certs DIR` creates the cluster's certificates") from error
