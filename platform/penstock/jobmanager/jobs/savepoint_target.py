"""Where a savepoint goes, and whether it can be written there, asked before a job is touched for it.

Called by `jobmanager.dispatcher` (savepoint, stop, drain) and `jobmanager.jobs.change_requests` (upgrade): behind a
stop the sources are silent, and a copy that cannot be written then would hold the job up, or end it.
"""

from __future__ import annotations

from penstock.checkpoint.stores import join_uri, open_store
from penstock.core.errors import PenstockError, UsageError
from penstock.jobmanager.cluster.side_threads import SideThreads
from penstock.jobmanager.jobs.known_jobs import KnownJob

#: A store that is away is asked several times by its client.
_LIMIT_S = 20.0
#: Places that answer take turns; when so many do not, no further one is tried.
_THREADS = SideThreads("savepoint-target", 4)
_HINT = "the job goes on as it was; give another target, or see to it that this one can be written"


async def savepoint_target(
    job: KnownJob,
    target: str,
    request_id: str,
    *,
    probe: bool,
    threads: SideThreads = _THREADS,
    limit_s: float = _LIMIT_S,
) -> str:
    """Return the folder of a request's savepoint below `target`, by default below the job's own folder.

    With `probe` an object is written beside it and removed, if the job goes on as far as is known: one that is being
    recovered may have been stopped by this very request, and is then about to end, whatever is found at its target.

    Raises:
        UsageError: it cannot be written, or not within `limit_s`, or as many as there are `threads` hang that were
        asked for before.
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
            raise UsageError(f"the savepoint's target {base} cannot be written: {reason}", hint=_HINT) from error
    return join_uri(base, name)


def _write(base: str, name: str) -> None:
    # beside the savepoint: where the request is refused all the same, no empty folder of its name stays behind
    store, key = open_store(base), f".probe-{name}"
    store.put(key, b"")
    store.delete(key)
