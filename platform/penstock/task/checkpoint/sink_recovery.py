"""Recovery of uncommitted output before a deployment: fence the old writers, read the markers, publish pending output.

Runs in some worker of the job (the JobManager imports no connector), as blocking background work, for every sink of the
job, all owners included; answered by `PendingResolved`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint.stores import join_uri, read_file
from penstock.connector.sink import SinkContext, SinkFactory, SinkSpec, load_factory
from penstock.core.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.snapshot import Committable
    from penstock.rpc.messages import ResolvePending
    from penstock.task.chain.environment import TaskEnvironment


def resolve_pending(command: ResolvePending, environment: TaskEnvironment) -> tuple[str, ...]:
    """Settle all sinks; return the ids of committables that are published (or that the committer reports as discarded).

    Raises:
        StateMismatchError: a sink with uncommitted output is no longer in the job.
        ConnectorError: an external system cannot be reached, or reports that output is lost.
    """
    uncommitted: dict[str, list[Committable]] = {}
    for committable in command.committables:
        uncommitted.setdefault(committable.uid, []).append(committable)
    unknown = sorted(set(uncommitted) - set(command.sinks))
    if unknown:
        rows = sum(c.rows for uid in unknown for c in uncommitted[uid])
        names = ", ".join(unknown)
        msg = f"{rows} rows of output are not yet published, but the job has no sink with uid {names} any more"
        raise StateMismatchError(msg, hint="start the old job once to publish them, or keep the sink's uid")
    store = environment.open_store(join_uri(command.checkpoint_root, command.job_name))
    published: list[str] = []
    for uid, builtins in command.sinks.items():
        spec = msgspec.convert(builtins, SinkSpec)
        factory: SinkFactory = load_factory(spec.factory)
        context = SinkContext(
            job_name=command.job_name,
            uid=uid,
            run_id=command.permit.run_id,
            subtask=0,
            parallelism=1,
            attempt=0,
            clock=environment.clock,
        )
        _check_delivery(uid, spec, uncommitted.get(uid, ()))
        committer = factory.create_committer(spec, context)
        if committer is None:
            if uncommitted.get(uid):
                msg = f"sink {uid} has unpublished output, but its delivery mode {spec.delivery!r} publishes nothing"
                raise StateMismatchError(msg, hint="keep the delivery mode until the pending output is published")
            continue
        ordered = tuple(sorted(uncommitted.get(uid, ()), key=lambda c: (c.run_id, c.subtask, c.checkpoint_id, c.id)))
        try:
            outcomes = committer.recover(
                command.permit, command.prefixes.get(uid, ()), ordered, lambda ref: read_file(store, ref)
            )
        finally:
            committer.close()
        published += [outcome.committable_id for outcome in outcomes]
    return tuple(published)


def _check_delivery(uid: str, spec: SinkSpec, uncommitted: Sequence[Committable]) -> None:
    """Reject output of the other exactly-once delivery: its committer would regard it as published, or fail."""
    staged = {bool(committable.files) for committable in uncommitted}
    if uncommitted and staged != {spec.delivery == "exactly-once"}:
        rows = sum(committable.rows for committable in uncommitted)
        msg = f"sink {uid} has {rows} unpublished rows of another delivery mode than {spec.delivery!r}"
        raise StateMismatchError(msg, hint="keep the delivery mode until the pending output is published")
