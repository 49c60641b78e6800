"""What processes listen on, as the kernel has it, and which addresses this machine is known by."""

import socket
from pathlib import Path

_LISTENING = "0A"


def listening(pids):
    """Return `(address, port)` of every TCP socket on which one of the processes listens, and of their UDP sockets."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (name.startswith("udp") or fields[3] == _LISTENING):
                found.add(_address(fields[1]))
    return found


def unix_folders(pids):
    """Return the folders of the Unix sockets on which the processes listen; abstract names as they are."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    lines = [line.split() for line in Path("/proc/net/unix").read_text(encoding="ascii").splitlines()[1:]]
    named = [fields[7] for fields in lines if len(fields) > 7 and fields[6] in inodes]
    return {name if name.startswith("@") else str(Path(name).parent) for name in named}


def own_addresses():
    """Return the addresses of this machine that are not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel says from where it would
        except OSError:
            return []
        return [probe.getsockname()[0]]


def reaches(address, port):
    """Whether something answers there."""
    with socket.socket() as sock:
        sock.settimeout(2)
        return sock.connect_ex((address, port)) == 0


def _sockets(pid):
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # it has ended
        return
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").rstrip("]")


def _address(field):
    raw, _, port = field.partition(":")
    words = [raw[start : start + 8] for start in range(0, len(raw), 8)]
    data = b"".join(bytes.fromhex(word)[::-1] for word in words)
    text = socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
    return text.removeprefix("::ffff:"), int(port, 16)
