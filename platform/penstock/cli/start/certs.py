"""`penstock cluster certs DIR`: creates CA, certificates, tokens and the secret of a protected cluster.

Writes the files that `penstock.config.security` and `penstock.client.access` read. The CA's key stays in the folder, so
that the same command can renew expiring certificates; keep it off the cluster's hosts.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import say
from penstock.config.security import (
    CA_FILE,
    CLUSTER_FILES,
    INTERNAL_NAME,
    REST_FILES,
    ROLES,
    SECRET_FILE,
    TOKENS_FILE,
    token_digest,
)
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError, extra_hint
from penstock.core.rand import SystemRand

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_CA_KEY = "ca.key"
_CLIENT_FILES = ("client.pem", "client.key")
_CA_DAYS = 3650
_TOKEN_DIGITS = 64
#: Allows for clock differences between hosts.
_BEFORE = dt.timedelta(hours=1)
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class _Issuer:
    """The certificate authority that signs."""

    key: EllipticCurvePrivateKey
    certificate: Certificate


def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; created if missing.")],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Additional name or address by which clients reach REST; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the certificates in days.", min=1)] = 365,
    client_certificates: Annotated[
        bool, typer.Option("--client-certificates", help="REST requires client certificates too.")
    ] = False,
) -> None:
    """Create certificates, tokens and a secret.

    A second call creates missing files and renews certificates.
    """
    try:
        import cryptography  # noqa: F401 - checked first, before any file is written
    except ImportError as error:
        msg = "creating certificates needs the package cryptography, which is not installed"
        raise UsageError(msg, hint=extra_hint("tls")) from error
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    now = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, dt.UTC)
    issuer = _issuer(directory, now)
    until = now + dt.timedelta(days=days)
    names = tuple(dict.fromkeys((*_HERE, *_names_in(directory / REST_FILES[0]), *(host or ()))))
    _issue(issuer, directory, CLUSTER_FILES, (INTERNAL_NAME,), (now, until))
    _issue(issuer, directory, REST_FILES, names, (now, until))
    if client_certificates or (directory / _CLIENT_FILES[0]).exists():
        _issue(issuer, directory, _CLIENT_FILES, (), (now, until))
        (directory / "client-ca.pem").write_bytes((directory / CA_FILE).read_bytes())
    made = _tokens(directory)
    if not (directory / SECRET_FILE).exists():
        _write_private(directory / SECRET_FILE, f"{SystemRand().token(_TOKEN_DIGITS)}\n".encode())
    say(f"certificates for {', '.join(names)} until {until:%Y-%m-%d}, {made} in {directory}")
    say(f"start with: penstock cluster start --security {directory}   (or PENSTOCK_SECURITY={directory})")


def _issuer(directory: Path, now: dt.datetime) -> _Issuer:
    """Return the folder's CA; create it if missing.

    Raises:
        UsageError: the CA exists, but its key is missing.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if (directory / CA_FILE).exists():
        if not (directory / _CA_KEY).exists():
            msg = f"{directory / _CA_KEY} is missing, but {CA_FILE} exists"
            raise UsageError(msg, hint="restore the key, or use another folder")
        key: Any = serialization.load_pem_private_key((directory / _CA_KEY).read_bytes(), None)
        return _Issuer(key, x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes()))
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"penstock CA {SystemRand().token(8)}")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(name, name, own, (now, now + dt.timedelta(days=_CA_DAYS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(own, _hash())
    )
    _write_private(directory / _CA_KEY, _pem_of(own))
    (directory / CA_FILE).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return _Issuer(own, made)


def _issue(
    issuer: _Issuer,
    directory: Path,
    files: tuple[str, str],
    names: tuple[str, ...],
    times: tuple[dt.datetime, dt.datetime],
) -> None:
    """Sign a new certificate for `names` (none: a client's) and write it with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    what = files[0].removesuffix(".pem")
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"penstock {what}")])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] if what != "rest" else []
    purposes += [ExtendedKeyUsageOID.SERVER_AUTH] if names else []
    builder = (
        _builder(subject, issuer.certificate.subject, key, times)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name_of(name) for name in names]), critical=False)
    certificate = builder.sign(issuer.key, _hash())
    _write_private(directory / files[1], _pem_of(key))
    (directory / files[0]).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _builder(subject: Any, issuer: Any, key: EllipticCurvePrivateKey, times: tuple[dt.datetime, dt.datetime]) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(times[0] - _BEFORE)
        .not_valid_after(times[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _names_in(path: Path) -> tuple[str, ...]:
    """Return the names and addresses of an existing certificate; a renewal keeps them.

    Raises:
        UsageError: the file is not a certificate.
    """
    from cryptography import x509

    if not path.exists():
        return ()
    try:
        extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
        names: Any = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    except ValueError as error:
        raise UsageError(f"{path} is no certificate: {error}", hint="delete it and pass each --host again") from error
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _name_of(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem_of(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _tokens(directory: Path) -> str:
    """Create a token for each role unless tokens exist; return a text about them."""
    path = directory / TOKENS_FILE
    if path.exists():
        return f"the existing tokens in {TOKENS_FILE}"
    lines = ["# role name sha256-of-the-token"]
    for role in ROLES:
        token = SystemRand().token(_TOKEN_DIGITS)
        _write_private(directory / f"{role}.token", f"{token}\n".encode())
        lines.append(f"{role} {role} {token_digest(token)}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    path.chmod(0o644)  # regardless of the umask: files writable by others are refused
    return f"tokens {', '.join(f'{role}.token' for role in ROLES)}"


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)
