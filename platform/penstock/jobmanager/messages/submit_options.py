"""The start options of a job, sent with its graph over REST or by an embedded run."""

from __future__ import annotations

import msgspec


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The start options of a job."""

    #: Two submits with the same token give one job.
    token: str = ""
    #: A savepoint (or a retained checkpoint's manifest) to start from, instead of the job's own newest checkpoint.
    from_uri: str = ""
    #: Start a new history: ignore the job's own checkpoints.
    fresh: bool = False
    #: With `from_uri`: True continues that lineage (fences it and publishes its pending output), False forks it.
    claim: bool = True
    #: Accept a start older than output that may have been published (recorded in the event log).
    accept_duplicates: bool = False
    #: States that may be dropped, by name: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: The span of the submission's caller, as a W3C `traceparent` header.
    traceparent: str = ""


DEFAULT_OPTIONS = SubmitOptions()
