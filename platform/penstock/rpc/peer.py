"""Which user of this machine holds the other end of a loopback connection; the kernel's table of sockets says it.

Used by REST (`rest.guard`) and the control port (`rpc.server`) of clusters without tokens: a port on 127.0.0.1 is open
to every user of the machine, and a job is code that runs as the cluster's user.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: Fields of a line: local and remote address, then the owner and the socket's number.
_LOCAL, _REMOTE, _OWNER, _NUMBER = 1, 2, 7, 9
_ROOT = 0

Address = tuple[str, int]


def is_same_user(client: Address, server: Address) -> bool:
    """Whether `client`, the far end of a connection to our `server`, belongs to our own user or to root."""
    owner = owner_of(client, server, _lines())
    return owner is not None and owner in (os.getuid(), _ROOT)


def split_address(peer: str) -> Address:
    """Return host and port of what gRPC calls a peer: `ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def owner_of(client: Address, server: Address, lines: Iterable[str]) -> int | None:
    """Return the user id that holds the socket `client` -> `server`; None if no process of this machine holds it.

    A socket that its process has closed already has no number, and is shown as root's: it counts as nobody's.
    """
    wanted = (_plain(client), _plain(server))
    port = f":{client[1]:04X} "  # few lines have it, and only these are worth reading
    for line in lines:
        if port not in line:
            continue
        fields = line.split()
        if len(fields) <= _NUMBER or not fields[_OWNER].isdigit():
            continue
        if (_read(fields[_LOCAL]), _read(fields[_REMOTE])) == wanted and fields[_NUMBER] != "0":
            return int(fields[_OWNER])
    return None


def _lines() -> Iterator[str]:
    for table in _TABLES:
        if table.exists():
            yield from table.read_text(encoding="ascii").splitlines()[1:]


def _plain(address: Address) -> tuple[int, int]:
    """An address as numbers; one of IPv4 in the form of IPv6 is the same address."""
    name = "127.0.0.1" if address[0] == "localhost" else address[0].partition("%")[0]
    ip = ipaddress.ip_address(name)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return int(ip), address[1]


def _read(field: str) -> tuple[int, int]:
    """Read `0100007F:1F90`: words of four bytes in this machine's order, and a port."""
    address, _, port = field.partition(":")
    words = [address[start : start + 8] for start in range(0, len(address), 8)]
    number = int("".join(_turned(word) for word in words), 16)
    if len(words) > 1 and number >> 32 == 0xFFFF:
        number &= 0xFFFFFFFF
    return number, int(port, 16)


def _turned(word: str) -> str:
    return bytes.fromhex(word)[::-1].hex()
