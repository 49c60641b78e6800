"""Credentials of a client and its trusted CAs: token, certificate, CA; from the environment or from files.

Used by `client.rest_client`. None of them is ever a command line argument, because other users can read those.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config.config_file import configuration
from penstock.config.security import CA_FILE
from penstock.core.errors import UsageError
from penstock.core.secrets import NO_SECRET, Secret, register_secret

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_VARIABLE = "PENSTOCK_TOKEN_FILE"  # noqa: S105 - a name
CA_VARIABLE = "PENSTOCK_CA"
CERTIFICATE_VARIABLE = "PENSTOCK_CLIENT_CERT"
KEY_VARIABLE = "PENSTOCK_CLIENT_KEY"
#: The token files that `penstock cluster certs` writes for clients, most rights first.
_TOKEN_FILES = ("admin.token", "operator.token", "viewer.token")
_CLIENT_FILES = ("client.pem", "client.key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """The credentials of a client."""

    token: Secret = NO_SECRET
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    #: Where the token was read, for errors; empty: the caller gave it.
    token_from: str = ""

    def __post_init__(self) -> None:
        """Refuse a token that would be shown.

        Raises:
            UsageError: it is a plain text.
        """
        if not isinstance(self.token, Secret):
            raise UsageError(
                "ClientAccess: token is a plain text", hint="write token=Secret(...) of penstock.core.secrets"
            )

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}

    def context(self) -> ssl.SSLContext:
        """Return the TLS context; without a configured CA it trusts those of the system.

        Raises:
            UsageError: a file is unreadable or invalid.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            msg = f"cannot load certificates ({files}): {error}"
            raise UsageError(msg, hint=f"check {CA_VARIABLE}, {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}") from error
        return context


def access_of(environment: Mapping[str, str] = os.environ, folder: str | None = None) -> ClientAccess:
    """Return the credentials from the environment; files without a variable are read from `folder`.

    Without `folder`, the configured one is used.

    Raises:
        UsageError: a configured file cannot be read.
    """
    named = folder or configuration(environment=environment).settings.cluster.security
    security = Path(named) if named else None
    text, place = environment.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if not text:
        text, place = _token_of(environment, security)
    token = Secret(text)
    if token:
        register_secret(token.reveal())
    certificate = _named(environment, CERTIFICATE_VARIABLE) or _beside(security, _CLIENT_FILES[0])
    return ClientAccess(
        token=token,
        token_from=place,
        ca=_named(environment, CA_VARIABLE) or _beside(security, CA_FILE),
        certificate=certificate,
        key=_named(environment, KEY_VARIABLE) or (_beside(security, _CLIENT_FILES[1]) if certificate else None),
    )


def _token_of(environment: Mapping[str, str], folder: Path | None) -> tuple[str, str]:
    """Return the token of a file, and the file; both empty without one."""
    path = _named(environment, TOKEN_FILE_VARIABLE)
    if path is None:
        path = next((found for name in _TOKEN_FILES if (found := _beside(folder, name)) is not None), None)
    if path is None:
        return "", ""
    try:
        return path.read_text(encoding="utf-8").strip(), str(path)
    except OSError as error:
        msg = f"cannot read the token in {path}: {error.strerror}"
        raise UsageError(msg, hint=f"check {TOKEN_FILE_VARIABLE}") from error


def _named(environment: Mapping[str, str], variable: str) -> Path | None:
    return Path(environment[variable]) if environment.get(variable) else None


def _beside(folder: Path | None, name: str) -> Path | None:
    return folder / name if folder is not None and (folder / name).exists() else None
