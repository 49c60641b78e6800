"""What supervisor and template say to each other, over a SOCK_SEQPACKET pair: one encoded struct a packet.

`ForkWorker` and `ForkTemplate` carry one descriptor by SCM_RIGHTS: the new process's end of its own socket.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Longest packet; requests hold names and paths only.
MAX_PACKET_BYTES = 128 << 10
#: How a spawned worker gets its key, in hex: arguments of a process can be read by everyone.
KEY_VARIABLE = "PENSTOCK_WORKER_KEY"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All a worker must know from its first instruction on."""

    worker_id: str
    job_id: str
    taskmanager_id: str
    slot: int
    managed_memory_bytes: int
    #: Full lease, which begins when the worker says that it is ready.
    lease_ms: int
    log_path: str
    #: Where its network listens (`network.addresses.listeners`): a short folder, with it a TCP address or not.
    listen: str
    #: Folder of this worker alone, for spilled state; removed by the supervisor when the worker is gone.
    state_dir: str
    #: What workers of this job prove to each other; never an argument of a process.
    key: bytes = b""
    #: The cluster's certificate, its key and CA, for connections to other hosts; empty: without TLS.
    certificates: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"
    #: Put in front of `sys.path`: installed requirements, then the job's own folders.
    import_path: tuple[str, ...] = ()
    #: For people.
    job_name: str = ""


class ForkWorker(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker; the descriptor is its control socket. Answered by Forked."""

    spec: WorkerSpec


class ForkTemplate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Fork a template that also holds a job's modules; on the descriptor, its own socket, it says TemplateReady."""

    name: str
    import_path: tuple[str, ...]
    preload: tuple[str, ...]


TemplateRequest = ForkWorker | ForkTemplate


class TemplateReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The template has imported and compiled everything."""

    pid: int
    #: Names of threads that make forking unsafe; then this job's workers are spawned.
    unsafe_threads: tuple[str, ...] = ()
    #: Why a module could not be imported; the workers will fail with the same words, at the place that needs it.
    error: str = ""


class Forked(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A process was forked; `pid` 0 and `error` when that failed."""

    name: str
    pid: int
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A forked process ended and was reaped; `returncode` as `Popen.returncode`."""

    name: str
    pid: int
    returncode: int


TemplateReport = TemplateReady | Forked | Exited

_requests: msgspec.msgpack.Decoder[TemplateRequest] = msgspec.msgpack.Decoder(TemplateRequest)
_reports: msgspec.msgpack.Decoder[TemplateReport] = msgspec.msgpack.Decoder(TemplateReport)


def encode(message: TemplateRequest | TemplateReport | WorkerSpec) -> bytes:
    """Return the wire form."""
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> TemplateRequest:
    """Decode what a template receives."""
    return _requests.decode(data)


def decode_report(data: bytes) -> TemplateReport:
    """Decode what a template sent."""
    return _reports.decode(data)


def decode_spec(data: bytes) -> WorkerSpec:
    """Decode a spec given to a spawned worker."""
    return msgspec.msgpack.decode(data, type=WorkerSpec)
