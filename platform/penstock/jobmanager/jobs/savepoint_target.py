"""Determines a savepoint's folder and tests whether it is writable, before the job is touched.

Called by `jobmanager.dispatcher` (savepoint, stop, drain) and `jobmanager.jobs.change_requests` (upgrade). After a stop
the sources are silent; a copy that cannot be written then would delay or end the job.
"""

from __future__ import annotations

from penstock.checkpoint.stores import join_uri, open_store
from penstock.core.errors import PenstockError, UsageError
from penstock.jobmanager.cluster.side_threads import SideThreads
from penstock.jobmanager.jobs.known_jobs import KnownJob

#: Clients repeat the request while the store is unavailable.
_LIMIT_S = 20.0
#: Separate threads: when all of them hang, further targets are refused without a test.
_THREADS = SideThreads("savepoint-target", 4)
_HINT = "the job continues unchanged; choose another target or make this one writable"


async def savepoint_target(
    job: KnownJob,
    target: str,
    request_id: str,
    *,
    probe: bool,
    threads: SideThreads = _THREADS,
    limit_s: float = _LIMIT_S,
) -> str:
    """Return the folder of a request's savepoint below `target`, by default below the job's folder.

    With `probe`, write a test object beside it and delete it, unless the job may be about to end: a job in
    recovery may have been stopped by this very request, and then ends regardless of the target.

    Raises:
        UsageError: the target is not writable within `limit_s`, or all `threads` are blocked by
        earlier tests.
    """
    base = target or join_uri(job.graph.settings.checkpoint_root, job.graph.name, "savepoints")
    name = f"savepoint-{job.record.job_id[:6]}-{request_id[:12]}"
    if probe and job.goes_on:
        try:
            await threads.call(limit_s, _write, base, name)
        except TimeoutError as error:
            reason = f": {error}" if str(error) else f" within {limit_s:.0f} s"
            msg = f"the savepoint's target {base} did not answer{reason}"
            raise UsageError(msg, hint=_HINT) from error
        except (PenstockError, OSError) as error:
            reason = error.message if isinstance(error, PenstockError) else (error.strerror or str(error))
            raise UsageError(f"the savepoint's target {base} is not writable: {reason}", hint=_HINT) from error
    return join_uri(base, name)


def _write(base: str, name: str) -> None:
    # beside the savepoint: if the request is refused, no empty savepoint folder is left
    store, key = open_store(base), f".probe-{name}"
    store.put(key, b"")
    store.delete(key)
