"""Security of a cluster: certificates, tokens and a secret from one folder, and the addresses that may be listened on.

`penstock cluster certs DIR` writes the folder; `$PENSTOCK_SECURITY` or `--security` names it to JobManager and
TaskManagers. Read once, at the start of a process. Clients use `penstock.client.access`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.core.errors import UsageError
from penstock.core.rand import SystemRand
from penstock.core.secrets import NO_SECRET, Secret

FOLDER_VARIABLE = "PENSTOCK_SECURITY"
SECRET_VARIABLE = "PENSTOCK_CLUSTER_SECRET"  # noqa: S105 - a name
#: The name in the certificate of the cluster's processes, on any host.
INTERNAL_NAME = "cluster.penstock.internal"
CA_FILE = "ca.pem"
CLUSTER_FILES = ("cluster.pem", "cluster.key")
REST_FILES = ("rest.pem", "rest.key")
CLIENT_CA_FILE = "client-ca.pem"
TOKENS_FILE = "tokens"
SECRET_FILE = "cluster.secret"  # noqa: S105 - a name
_OPEN_TO_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022
_SECRET_LENGTH = 32

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of one endpoint, all PEM."""

    certificate: Path
    key: Path
    #: Certificates of the trusted authorities.
    ca: Path


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the tokens file: role and name; the token itself is not stored."""

    role: Role
    name: str
    #: SHA-256 of the token, hexadecimal.
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of one process; the default relies on the operating system's user alone."""

    #: Mutual TLS between the processes.
    cluster: Tls | None = None
    #: TLS of the REST API.
    rest: Tls | None = None
    #: REST clients must show a certificate of this CA as well.
    client_ca: Path | None = None
    tokens: tuple[TokenEntry, ...] = ()
    #: The shared secret of which TaskManagers and JobManager prove knowledge.
    secret: Secret = NO_SECRET
    #: The user states that a reachable address needs no protection.
    insecure: bool = False

    def role_of(self, token: str) -> TokenEntry | None:
        """Return the entry of this token, in a time that does not reveal how close a wrong token is."""
        digest = token_digest(token)
        found = None
        for entry in self.tokens:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return found


#: The security of a process without settings.
UNPROTECTED = Security()


def token_digest(token: str) -> str:
    """Return the digest for the tokens file; tokens are long and random, so no salt is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def load_security(environment: Mapping[str, str], folder: str = "", *, insecure: bool = False) -> Security:
    """Return the security settings of the folder in `--security` or `$PENSTOCK_SECURITY`, and of the environment.

    Raises:
        UsageError: the folder or a file is missing, unreadable, or readable by other users; or a secret is short.
    """
    place = folder or environment.get(FOLDER_VARIABLE, "")
    given = environment.get(SECRET_VARIABLE, "")
    secret = _long_enough(given, SECRET_VARIABLE) if given else Secret()
    if not place:
        return Security(secret=secret, insecure=insecure)
    root = Path(place)
    if not root.is_dir():
        msg = f"there is no folder {place} with certificates and tokens"
        raise UsageError(msg, hint=f"`penstock cluster certs {place}` makes it")
    client_ca = root / CLIENT_CA_FILE
    return Security(
        cluster=_tls(root, CLUSTER_FILES),
        rest=_tls(root, REST_FILES),
        client_ca=client_ca if client_ca.exists() else None,
        tokens=_tokens(root / TOKENS_FILE),
        secret=secret or _secret(root / SECRET_FILE),
        insecure=insecure,
    )


def own_secret(home: Path) -> Secret:
    """Return the secret of this user's clusters on this machine, `<home>/cluster.secret`; create it if missing.

    Raises:
        UsageError: the file cannot be made, or others can read it.
    """
    path = home / SECRET_FILE
    if not path.exists():
        try:
            home.mkdir(parents=True, exist_ok=True)
            made = home / f".{SECRET_FILE}-{os.getpid()}"
            made.touch(mode=0o600)
            made.write_text(SystemRand().token(2 * _SECRET_LENGTH), encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(made, path)  # atomic and complete; the first of several processes wins
            made.unlink()
        except OSError as error:
            msg = f"cannot create the cluster's secret in {home}: {error.strerror}"
            raise UsageError(msg, hint=f"set PENSTOCK_HOME to a writable folder, or set {SECRET_VARIABLE}") from error
    return _secret(path)


def check_listening(security: Security, host: str) -> None:
    """Refuse to listen on an address that other machines reach without TLS, tokens and the secret.

    Raises:
        UsageError: `host` is more than loopback, and one of them is missing.
    """
    if security.insecure or is_loopback(host):
        return
    wanted = {
        "TLS between the processes (cluster.pem)": security.cluster,
        "TLS on REST (rest.pem)": security.rest,
        "tokens": security.tokens,
        "a cluster secret": security.secret,
    }
    missing = [name for name, there in wanted.items() if not there]
    if missing:
        msg = f"cannot listen on {host}, which other machines reach, without {', '.join(missing)}"
        hint = (
            "create them with `penstock cluster certs DIR` and pass --security DIR; --insecure is for closed networks"
        )
        raise UsageError(msg, hint=hint)


def check_data_port(security: Security, host: str) -> None:
    """Refuse to let workers listen for other hosts unless connections between the processes use TLS.

    Raises:
        UsageError: `host` is more than loopback, and there is no TLS between the processes.
    """
    if security.insecure or is_loopback(host) or security.cluster is not None:
        return
    msg = f"workers cannot listen at {host}, which other machines reach, without TLS between the processes"
    hint = (
        "create certificates with `penstock cluster certs DIR` and pass --security DIR; --insecure is for "
        "closed networks"
    )
    raise UsageError(msg, hint=hint)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _tls(root: Path, names: tuple[str, str]) -> Tls | None:
    certificate, key, ca = root / names[0], root / names[1], root / CA_FILE
    if not certificate.exists() and not key.exists():
        return None
    for path in (certificate, key, ca):
        if not path.is_file():
            msg = f"{path} is missing"
            raise UsageError(msg, hint=f"{certificate.name} needs {key.name} and {CA_FILE} in the same folder")
    _check_private(key)
    return Tls(certificate, key, ca)


def _tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Read lines `role name sha256`; `#` begins a comment."""
    if not path.exists():
        return ()
    if path.stat().st_mode & _WRITABLE_BY_OTHERS:
        msg = f"{path} is writable by other users, who could give themselves a role"
        raise UsageError(msg, hint=f"chmod go-w {path}")
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        parts = line.partition("#")[0].split()
        if not parts:
            continue
        role = next((known for known in ROLES if known == parts[0]), None)
        digest = parts[-1].lower()
        if len(parts) != 3 or role is None or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            msg = f"{path}:{number} is not `role name sha256`"
            raise UsageError(msg, hint=f"roles are {', '.join(ROLES)}; `penstock cluster certs` writes such a file")
        entries.append(TokenEntry(role, parts[1], digest))
    return tuple(entries)


def _secret(path: Path) -> Secret:
    if not path.exists():
        return Secret()
    _check_private(path)
    return _long_enough(path.read_text(encoding="utf-8").strip(), str(path))


def _long_enough(text: str, place: str) -> Secret:
    """Return the secret if it is long enough; a peer that sees a proof could guess a short one."""
    if len(text) < _SECRET_LENGTH:
        msg = f"the secret in {place} has {len(text)} characters, fewer than {_SECRET_LENGTH}"
        raise UsageError(msg, hint="put a long random text there, for example of `openssl rand -hex 32`")
    return Secret(text)


def _check_private(path: Path) -> None:
    if path.stat().st_mode & _OPEN_TO_OTHERS:
        msg = f"{path} can be read by other users"
        raise UsageError(msg, hint=f"chmod 600 {path}")
