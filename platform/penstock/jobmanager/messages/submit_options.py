"""How a job is started: what comes with its graph, over REST and from an embedded run."""

from __future__ import annotations

import msgspec


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job starts."""

    #: Two submits with the same token are one job.
    token: str = ""
    #: A savepoint (or a retained checkpoint's manifest) to start from, instead of the identity's own newest checkpoint.
    from_uri: str = ""
    #: Start a new history: ignore what the identity has.
    fresh: bool = False
    #: With `from_uri`: True continues that lineage (fence, publish what is owed), False forks it.
    claim: bool = True
    #: Accept starting below output that may have been published (recorded in the story).
    accept_duplicates: bool = False
    #: State that may be left behind, by name: `uid` or `uid/state`.
    allow_non_restored_state: tuple[str, ...] = ()
    #: The span that the submission is part of, as W3C's header says it.
    traceparent: str = ""


DEFAULT_OPTIONS = SubmitOptions()
