"""What a client shows to a cluster and whom it believes: token, certificate, CA; from the environment or from files.

Used by `client.rest_client`. Nothing of it is ever an argument of a command: those can be read by everyone.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config.security import CA_FILE, FOLDER_VARIABLE
from penstock.core.errors import UsageError
from penstock.core.secrets import NO_SECRET, Secret, remember

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_VARIABLE = "PENSTOCK_TOKEN_FILE"  # noqa: S105 - a name
CA_VARIABLE = "PENSTOCK_CA"
CERTIFICATE_VARIABLE = "PENSTOCK_CLIENT_CERT"
KEY_VARIABLE = "PENSTOCK_CLIENT_KEY"
#: What `penstock cluster certs` leaves for clients, the one with most rights first.
_TOKEN_FILES = ("admin.token", "operator.token", "viewer.token")
_CLIENT_FILES = ("client.pem", "client.key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """How a client makes itself known."""

    token: Secret = NO_SECRET
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def headers(self) -> dict[str, str]:
        """Return what goes with every request."""
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}

    def context(self) -> ssl.SSLContext:
        """Return how to speak TLS; without a CA of one's own those of the system count.

        Raises:
            UsageError: a file cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            msg = f"certificates cannot be used ({files}): {error}"
            raise UsageError(msg, hint=f"look at {CA_VARIABLE}, {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}") from error
        return context


def access_of(environment: Mapping[str, str] = os.environ) -> ClientAccess:
    """Return what the environment says; `$PENSTOCK_SECURITY` stands in for what is not named by itself.

    Raises:
        UsageError: a file is named that cannot be read.
    """
    folder = Path(environment[FOLDER_VARIABLE]) if environment.get(FOLDER_VARIABLE) else None
    token = Secret(environment.get(TOKEN_VARIABLE, "").strip() or _token_of(environment, folder))
    if token:
        remember(token.reveal())
    certificate = _named(environment, CERTIFICATE_VARIABLE) or _beside(folder, _CLIENT_FILES[0])
    return ClientAccess(
        token=token,
        ca=_named(environment, CA_VARIABLE) or _beside(folder, CA_FILE),
        certificate=certificate,
        key=_named(environment, KEY_VARIABLE) or (_beside(folder, _CLIENT_FILES[1]) if certificate else None),
    )


def _token_of(environment: Mapping[str, str], folder: Path | None) -> str:
    path = _named(environment, TOKEN_FILE_VARIABLE)
    if path is None:
        path = next((found for name in _TOKEN_FILES if (found := _beside(folder, name)) is not None), None)
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        msg = f"the token in {path} cannot be read: {error.strerror}"
        raise UsageError(msg, hint=f"look at {TOKEN_FILE_VARIABLE}") from error


def _named(environment: Mapping[str, str], variable: str) -> Path | None:
    return Path(environment[variable]) if environment.get(variable) else None


def _beside(folder: Path | None, name: str) -> Path | None:
    return folder / name if folder is not None and (folder / name).exists() else None
