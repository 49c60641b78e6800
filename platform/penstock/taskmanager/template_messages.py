"""Messages between a TaskManager's supervisor and its templates, which start workers: packets, and a worker's spec.

Used by `supervisor`, `worker_control`, `template`, `template_client`, `spawned` and `worker`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Packet size limit; requests contain only names and paths.
MAX_PACKET_BYTES = 128 << 10
#: Passes the key (hex) to a spawned worker, because all users can read a process's arguments.
KEY_VARIABLE = "PENSTOCK_WORKER_KEY"


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a worker, needed from its first instruction."""

    worker_id: str
    job_id: str
    taskmanager_id: str
    slot: int
    managed_memory_bytes: int
    #: The guaranteed part of its slot.
    network_memory_bytes: int
    #: Memory above which the worker is killed.
    memory_limit_bytes: int
    #: Full lease, which starts when the worker reports that it is ready.
    lease_ms: int
    log_path: str
    #: Listen addresses of its network (`network.sockets.listeners`): a short folder, optionally with a TCP address.
    listen: str
    #: Folder for this worker's spilled state; the supervisor deletes it when the worker has ended.
    state_dir: str
    #: Folder of the copies of the job's checkpoint files on this TaskManager (`checkpoint.local_copies`).
    copies_dir: str
    #: Key with which workers of this job authenticate to each other; never a process argument.
    key: bytes = b""
    #: The cluster's certificate, key and CA, for connections to other hosts; empty: no TLS.
    certificates: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"
    #: Prepended to `sys.path`: installed requirements, then the job's folders.
    import_path: tuple[str, ...] = ()
    #: For display.
    job_name: str = ""
    #: It was started beside the worker that it replaces.
    beside: bool = False


class ForkWorker(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker; the descriptor is its control socket. Answered by Forked."""

    spec: WorkerSpec


class ForkTemplate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Fork a template that also imports a job's modules; it sends TemplateReady on the descriptor, its own socket."""

    name: str
    import_path: tuple[str, ...]
    preload: tuple[str, ...]


TemplateRequest = ForkWorker | ForkTemplate


class TemplateReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The template has imported and compiled everything."""

    pid: int
    #: Threads that make forking unsafe; this job's workers are then spawned.
    unsafe_threads: tuple[str, ...] = ()
    #: Why a module could not be imported; workers will fail with the same error where they need it.
    error: str = ""


class Forked(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A process was forked; on failure `pid` is 0 and `error` is set."""

    name: str
    pid: int
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A forked process ended and was reaped; `returncode` as in `Popen.returncode`."""

    name: str
    pid: int
    returncode: int


TemplateReport = TemplateReady | Forked | Exited

_requests: msgspec.msgpack.Decoder[TemplateRequest] = msgspec.msgpack.Decoder(TemplateRequest)
_reports: msgspec.msgpack.Decoder[TemplateReport] = msgspec.msgpack.Decoder(TemplateReport)


def encode(message: TemplateRequest | TemplateReport | WorkerSpec) -> bytes:
    """Return the encoded message."""
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> TemplateRequest:
    """Decode a message to a template."""
    return _requests.decode(data)


def decode_report(data: bytes) -> TemplateReport:
    """Decode a message of a template."""
    return _reports.decode(data)


def decode_spec(data: bytes) -> WorkerSpec:
    """Decode the spec of a spawned worker."""
    return msgspec.msgpack.decode(data, type=WorkerSpec)
