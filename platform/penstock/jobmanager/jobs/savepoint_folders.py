"""Folders of savepoints: determines and probes the target of a new one, and disposes of an old one.

`savepoint_target` is called by `dispatcher` and `jobs.upgrade_requests` before the job is asked. `Disposals` runs
`dispose` in a thread for `rest.jobs.operation_routes`, unless a job still reads from the savepoint.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

import msgspec

from penstock.checkpoint.manifest_log import CLAIM, SAVEPOINT_MANIFEST, Manifest, decode_manifest, read_entries
from penstock.checkpoint.recovery import FROM, present_manifests
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri, open_store, require_answer
from penstock.core.errors import Cause, NotFoundError, PenstockError, SavepointInUseError, UnreachableError, UsageError
from penstock.core.rand import Rand
from penstock.core.snapshot import FileRef
from penstock.core.structs import prepare
from penstock.jobmanager.cluster.daemon_thread_pool import DaemonThreadPool
from penstock.jobmanager.jobs.known_jobs import KnownJob, Operations
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.views import OperationStatus

#: Clients repeat the request while the store is unavailable.
_LIMIT_S = 20.0
#: Separate threads: when all of them hang, further targets are refused without a test.
_THREADS = DaemonThreadPool("savepoint-target", 4)
_TARGET_HINT = "the request was refused, and the job runs on; choose another target or make this one writable"


async def savepoint_target(
    job: KnownJob,
    target: str,
    request_id: str,
    *,
    probe: bool,
    threads: DaemonThreadPool = _THREADS,
    limit_s: float = _LIMIT_S,
) -> str:
    """Return the folder of a request's savepoint below `target`, by default below the job's folder.

    With `probe`, write a test object beside a given target and delete it, unless the job may be about to end: a job
    in recovery may have been stopped by this very request, and then ends regardless of the target. The job's own
    folder is not tested: if it does not answer now, the savepoint waits for it as the checkpoints do.

    Raises:
        UsageError: the target refuses. UnreachableError: it fails otherwise, does not answer within `limit_s`, or all
            `threads` are blocked by earlier tests.
    """
    base = target or join_uri(job.graph.settings.checkpoint_root, job.graph.name, "savepoints")
    name = f"savepoint-{job.record.job_id[:6]}-{request_id[:12]}"
    if probe and target and job.continues:
        try:
            await threads.call(limit_s, _write, base, name)
        except TimeoutError as error:
            reason = f": {error}" if str(error) else f" within {limit_s:.0f} s"
            msg = f"the savepoint's target {base} did not answer{reason}"
            raise UnreachableError(msg, hint=_TARGET_HINT) from error
        except (PenstockError, OSError) as error:
            reason = error.message if isinstance(error, PenstockError) else (error.strerror or str(error))
            if isinstance(error, PenstockError) and error.cause is Cause.TRANSIENT:
                msg = f"the savepoint's target {base} cannot be written at present: {reason}"
                raise UnreachableError(msg, hint=_TARGET_HINT) from error
            raise UsageError(f"the savepoint's target {base} is not writable: {reason}", hint=_TARGET_HINT) from error
    return join_uri(base, name)


def _write(base: str, name: str) -> None:
    # beside the savepoint: if the request is refused, no empty savepoint folder is left
    require_answer(base)
    store, key = open_store(base), f".probe-{name}"
    store.put(key, b"")
    store.delete(key)


_HINT = "pass the folder that `penstock savepoint` or `penstock stop` printed"


def dispose(uri: str, job_folders: Iterable[str]) -> None:
    """Delete the savepoint at `uri`; `job_folders` are the folders of all jobs that may read from it.

    The manifest is deleted last, so that an interrupted disposal can be repeated.

    Raises:
        NotFoundError: no savepoint at `uri`. UsageError: it holds something else.
        SavepointInUseError: a job reads from it.
    """
    root = uri.removesuffix(f"/{SAVEPOINT_MANIFEST}").rstrip("/")
    store = open_store(root)
    try:
        manifest = decode_manifest(store.read(SAVEPOINT_MANIFEST))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no savepoint at {root}", hint=_HINT) from error
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{root}/{SAVEPOINT_MANIFEST} is not the manifest of a savepoint: {error}", hint=_HINT
        ) from error
    if manifest.kind != "savepoint":
        raise UsageError(f"{root} holds a {manifest.kind}, not a savepoint", hint=_HINT)
    claimed = _claimed_by(store)
    for folder in dict.fromkeys(filter(None, [claimed, *job_folders])):
        if _reads(folder, store.uri):
            msg = f"the job in {folder} still uses files of savepoint {root}"
            raise SavepointInUseError(
                msg, hint="keep this savepoint, or restart that job from its own new savepoint first"
            )
    for path in sorted(_files(manifest)):
        store.delete(path)
    store.delete(CLAIM)
    store.delete(SAVEPOINT_MANIFEST)


def _claimed_by(store: ObjectStore) -> str:
    """Return the folder of the job that owns the savepoint's files; empty if there is none."""
    if not store.list(CLAIM):
        return ""
    try:
        return msgspec.json.decode(store.read(CLAIM), type=_Claim).job_folder
    except msgspec.MsgspecError as error:
        msg = f"{store.uri}/{CLAIM} is damaged: {error}"
        raise UsageError(
            msg, hint="the owner of the savepoint is unknown: if no job uses it, delete it by hand"
        ) from error


class _Claim(msgspec.Struct):
    """The fields of a claim that are read here."""

    job_folder: str = ""


prepare(_Claim)


class Disposals:
    """Requests to dispose of savepoints, and their status."""

    def __init__(self, job_folders: Callable[[], Iterable[str]], rand: Rand) -> None:
        """Start without requests."""
        self._job_folders = job_folders
        self._rand = rand
        self._operations = Operations()
        self._running: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreadPool("disposal", 2)

    def begin(self, uri: str) -> str:
        """Start a disposal; return its request id."""
        request_id = self._rand.token()
        self._operations.begin(request_id, "")
        task = asyncio.get_running_loop().create_task(self._run(request_id, uri))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return request_id

    def status(self, request_id: str) -> OperationStatus:
        """Return the status of a request; raises NotFoundError."""
        return self._operations.status(request_id)

    async def _run(self, request_id: str, uri: str) -> None:
        try:
            await self._threads.call(None, dispose, uri, tuple(self._job_folders()))
        except PenstockError as error:
            self._operations.end(OperationEnded(request_id, error=str(error), error_class=type(error).__name__), "")
        except Exception as error:  # noqa: BLE001 - a store may raise anything, and the request must end
            self._operations.end(OperationEnded(request_id, error=f"{type(error).__name__}: {error}"), "")
        else:
            self._operations.end(OperationEnded(request_id), "")


def job_folder(checkpoint_root: str, job_name: str) -> str:
    """Return the folder of a job's checkpoints."""
    return join_uri(checkpoint_root, job_name)


def _reads(folder: str, savepoint: str) -> bool:
    """Return whether a retained checkpoint uses a file of the savepoint, or a new run starts from it."""
    store = open_store(folder)
    history = present_manifests(read_entries(store, lambda key: _manifest(store, key)))
    covered = {m.run_id for m in history if m.kind in ("checkpoint", "fence")}
    for manifest in history:
        if manifest.kind == "checkpoint" and any(_inside(path, savepoint) for path in _paths(manifest)):
            return True
        begins = manifest.kind == "seal" and manifest.note.startswith(FROM) and manifest.run_id not in covered
        ended = any(m.kind == "end" and m.run_id == manifest.run_id for m in history)
        if begins and not ended and _same(manifest.note.removeprefix(FROM), savepoint):
            return True
    return False


def _manifest(store: ObjectStore, key: str) -> Manifest:
    try:
        return decode_manifest(store.read(key))
    except msgspec.MsgspecError as error:
        msg = f"{store.uri}/{key} is damaged: {error}"
        raise UsageError(msg, hint="it is unknown whether that job uses the savepoint") from error


def _references(manifest: Manifest) -> Iterable[FileRef]:
    for part in manifest.subtasks:
        for state in part.keyed:
            yield from (segment.file for segment in state.segments)
        yield from (rows.file for rows in part.in_flight)
        for output in part.committables:
            yield from output.files
    for output in manifest.pending:
        yield from output.files


def _paths(manifest: Manifest) -> set[str]:
    return {ref.path for ref in _references(manifest) if ref.path}


def _files(manifest: Manifest) -> set[str]:
    """Return the savepoint's own files: those in its folder."""
    return {path for path in _paths(manifest) if "://" not in path and ".." not in path.split("/")}


def _inside(path: str, savepoint: str) -> bool:
    return "://" in path and _plain(path).startswith(f"{_plain(savepoint)}/")


def _same(uri: str, savepoint: str) -> bool:
    return _plain(open_store(uri.removesuffix(f"/{SAVEPOINT_MANIFEST}").rstrip("/")).uri) == _plain(savepoint)


def _plain(uri: str) -> str:
    """Return a canonical spelling of a URI, with links of a local folder resolved."""
    return os.path.realpath(uri.removeprefix("file://")) if uri.startswith("file://") else uri.rstrip("/")
