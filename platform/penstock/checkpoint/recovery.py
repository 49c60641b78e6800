"""The recovery plan, and which runs of a log are on trial: pure decisions over the entries of the manifest log.

Called by `jobmanager.deploy.job_log` at every start and restart. It never chooses a checkpoint older than
output that may have been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.manifest_log import LogEntry, Manifest
from penstock.core.errors import StateMismatchError
from penstock.core.snapshot import Committable, FileRef, SubtaskSnapshot

#: Note of a seal that begins a new history: earlier entries are ignored.
FRESH = "fresh"
#: Note of a seal that continues from a savepoint: this prefix, then the URI.
FROM = "from "
_ENDING = frozenset({"stop", "drain", "final"})
#: Ids that an earlier leader may have given to checkpoints that never completed; the log does not contain them.
_UNSEEN_IDS = 1_000


@dataclass(frozen=True, slots=True)
class Trial:
    """The start of a run as an upgrade."""

    #: Sequence of the checkpoint it started from, which may be of another graph.
    base: int
    #: Sinks whose output is withheld.
    held: tuple[str, ...] = ()
    #: Not released: it may be rolled back.
    open: bool = True


def with_trial(seal: Manifest, trial: Trial) -> Manifest:
    """Return a run's seal with its trial added."""
    return msgspec.structs.replace(seal, upgrade_of=trial.base, on_trial=trial.open, held=trial.held)


def trial_of(live: Sequence[Manifest], run_id: str) -> Trial | None:
    """Return how a run began, from the live entries of a log; None for a run that is no upgrade."""
    seals = [m for m in live if m.kind == "seal" and m.run_id == run_id and m.upgrade_of]
    if not seals:
        return None
    is_open = all(seal.on_trial for seal in seals)
    # a leader may have sealed the run and died before recording it: its successor used another checkpoint
    return Trial(seals[-1].upgrade_of, seals[-1].held if is_open else (), open=is_open)


def runs_on_trial(live: Sequence[Manifest]) -> frozenset[str]:
    """Return the runs that were never released, whether they still run or were rolled back."""
    begun = {m.run_id for m in live if m.kind == "seal" and m.on_trial}
    return frozenset(begun - {m.run_id for m in live if m.kind == "seal" and not m.on_trial})


def counts_for(manifest: Manifest, run_id: str, trials: frozenset[str]) -> bool:
    """Return whether an entry counts for that run: seals always do, other entries of another run's trial never do."""
    return manifest.kind == "seal" or manifest.run_id == run_id or manifest.run_id not in trials


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The decision."""

    #: The manifest to restore; None for an empty start.
    restored: Manifest | None
    #: The log entry that permits publishing pending output; None when there is neither state nor an older run.
    permit_entry: LogEntry | None
    #: Output not known to be published.
    pending: tuple[Committable, ...]
    #: Runs whose transactional ids may still be open, as (job name in the ids, run id).
    fence: tuple[tuple[str, str], ...]
    next_checkpoint_id: int
    #: Entries of the present history that count, oldest first.
    history: tuple[Manifest, ...]
    #: The job's last checkpoint is durable; only publishing its output was left to do.
    finishing: bool = False
    #: How the run began, if it is an upgrade.
    trial: Trial | None = None
    #: Output of a run on trial: uncommitted, and not to be published.
    held: tuple[Committable, ...] = ()
    #: Entries of `history` (sequences) that no run uses any longer: trials of other runs that were rolled back.
    abandoned: frozenset[int] = frozenset()


def live_manifests(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Return the entries of a log that count: those whose generation is not older than a seal before them."""
    newest = 0
    kept = []
    for manifest in manifests:
        if manifest.generation < newest:
            continue
        if manifest.kind == "seal":
            newest = manifest.generation
        kept.append(manifest)
    return tuple(kept)


def present_manifests(manifests: Sequence[Manifest], run_id: str = "") -> tuple[Manifest, ...]:
    """Return the live entries from the newest fresh seal on, without those of other runs' trials."""
    live = live_manifests(manifests)
    starts = [i for i, m in enumerate(live) if m.kind == "seal" and m.note == FRESH]
    trials = runs_on_trial(live)
    return tuple(m for m in (live[starts[-1] :] if starts else live) if counts_for(m, run_id, trials))


def live_entries(entries: Sequence[LogEntry]) -> tuple[LogEntry, ...]:
    """Return the entries whose manifests are live."""
    return _entries_of(entries, live_manifests([entry.manifest for entry in entries]))


def current_history(entries: Sequence[LogEntry], run_id: str = "") -> tuple[LogEntry, ...]:
    """Return the live entries from the newest fresh seal on, without those of other runs' trials."""
    return _entries_of(entries, present_manifests([entry.manifest for entry in entries], run_id))


def _entries_of(entries: Sequence[LogEntry], kept: Sequence[Manifest]) -> tuple[LogEntry, ...]:
    numbers = {id(manifest) for manifest in kept}
    return tuple(entry for entry in entries if id(entry.manifest) in numbers)


def plan_recovery(
    entries: Sequence[LogEntry], run_id: str, *, source: Manifest | None = None, claim: bool = True
) -> RecoveryPlan:
    """Decide what the next deployment restores, and what must be fenced and published before.

    `source` is a savepoint to start from, checked by `check_source`. It counts only until `run_id` has a checkpoint.
    """
    live, history = live_entries(entries), current_history(entries, run_id)
    manifests = _manifests(live)
    trials = runs_on_trial(manifests)
    abandoned = frozenset(m.sequence for m in manifests if not counts_for(m, run_id, trials))
    newest = next((e for e in reversed(history) if e.manifest.kind == "checkpoint"), None)
    next_id = _next_id(live)
    if source is not None and (newest is None or newest.manifest.run_id != run_id):
        return _from_source(live, source, next_id, claim=claim)
    if newest is None:
        fence = _runs(live, _newest_checkpoint(live)) if live else ()
        return RecoveryPlan(None, live[-1] if live else None, (), fence, next_id, _manifests(history))
    later = [e.manifest for e in history if e.manifest.sequence > newest.manifest.sequence]
    ended = [m for m in later if m.kind == "end"]
    pending = newest.manifest.pending
    if ended and ended[-1].pending_as_of == newest.manifest.sequence:
        # Else its writer did not know the newest checkpoint: an append with an unknown outcome, or a log not read.
        left = {c.id for c in ended[-1].pending}
        pending = tuple(c for c in pending if c.id in left)
    trial = trial_of(manifests, run_id)
    held = tuple(c for c in pending if trial is not None and c.run_id == run_id and c.uid in trial.held)
    kept = abandoned | {entry.manifest.sequence for entry in history}
    restored = newest.manifest
    if trial is not None and trial.base == restored.sequence and restored.barrier in ("stop", "drain"):
        # the other version published all its output before it was replaced
        restored, pending = without_pending_output(restored), ()
    return RecoveryPlan(
        restored,
        newest,
        tuple(c for c in pending if c.id not in {output.id for output in held}),
        _runs(live, newest.manifest.sequence),
        next_id,
        # includes the abandoned ones, so that their files get deleted
        tuple(m for m in manifests if m.sequence in kept),
        finishing=newest.manifest.barrier in _ENDING and not ended and newest.manifest.run_id == run_id,
        trial=trial,
        held=held,
        abandoned=abandoned,
    )


def _next_id(live: tuple[LogEntry, ...]) -> int:
    """Return a checkpoint id that no earlier leader of a run has used.

    A leader may use ids that leave no trace in the log. So ids jump where the seal of a run has another leader's
    generation than the seal before. A leader knows its own ids (`jobmanager.checkpoints.checkpointing`).
    """
    used = 0
    generations: dict[str, int] = {}
    for entry in live:
        manifest = entry.manifest
        if manifest.kind == "seal":
            used += _UNSEEN_IDS if generations.get(manifest.run_id, manifest.generation) != manifest.generation else 0
            generations[manifest.run_id] = manifest.generation
        used = max(used, manifest.checkpoint_id or 0)
    return used + 1


def _from_source(live: tuple[LogEntry, ...], source: Manifest, next_id: int, *, claim: bool) -> RecoveryPlan:
    """Plan a start from a savepoint.

    A claimed savepoint brings its pending output along; with `claim` false that output stays with the origin.
    """
    seal = live[-1]
    entry = msgspec.structs.replace(
        seal,
        permit=msgspec.structs.replace(
            seal.permit, run_id=source.run_id, checkpoint_id=source.checkpoint_id or 0, job_id=seal.manifest.job_id
        ),
    )
    history = (seal.manifest,)
    next_id = max(next_id, 1 + (source.checkpoint_id or 0))
    own = _runs(live, _newest_checkpoint(live))
    if not claim:
        return RecoveryPlan(source, entry, (), own, next_id, history)
    runs = tuple((source.job_name, run) for run in dict.fromkeys((*source.runs, source.run_id)))
    fence = tuple(dict.fromkeys((*runs, *own)))
    return RecoveryPlan(source, entry, source.pending, fence, next_id, history)


def check_source(entries: Sequence[LogEntry], source: Manifest, run_id: str, *, accept_duplicates: bool) -> bool:
    """Refuse a savepoint older than output that may have been published; return True if the user accepted that.

    Raises:
        StateMismatchError: the job has newer checkpoints than `source`, and the user did not accept that.
    """
    newest = next((e.manifest for e in reversed(current_history(entries)) if e.manifest.kind == "checkpoint"), None)
    if newest is None or newest.run_id == run_id:
        return False
    if newest.sequence <= source.sequence and newest.job_name == source.job_name:
        own = next((e.manifest for e in entries if e.manifest.sequence == source.sequence), None)
        if own is not None and own.nonce == source.nonce:
            return False
    if accept_duplicates:
        return True
    msg = (
        f"job {newest.job_name!r} has checkpoint {newest.checkpoint_id} (run {newest.run_id[:8]}), which the "
        f"savepoint does not contain: its output may have been published already"
    )
    raise StateMismatchError(
        msg, hint="leave out --from to resume it, use another job name, or go back with --accept-duplicates"
    )


def without_pending_output(manifest: Manifest) -> Manifest:
    """Return the manifest of a checkpoint whose output is all published, without pending output and markers."""
    parts = tuple(msgspec.structs.replace(part, committables=()) for part in manifest.subtasks)
    return msgspec.structs.replace(manifest, pending=(), subtasks=parts)


def absolute_paths(manifest: Manifest, uri: str) -> Manifest:
    """Return a savepoint's manifest with file paths that are valid from anywhere."""

    def moved(ref: FileRef) -> FileRef:
        if not ref.path or "://" in ref.path:
            return ref
        return msgspec.structs.replace(ref, path=f"{uri.rstrip('/')}/{ref.path}")

    def moved_output(output: Committable) -> Committable:
        return msgspec.structs.replace(output, files=tuple(moved(ref) for ref in output.files))

    def moved_subtask(part: SubtaskSnapshot) -> SubtaskSnapshot:
        keyed = tuple(
            msgspec.structs.replace(
                state, segments=tuple(msgspec.structs.replace(s, file=moved(s.file)) for s in state.segments)
            )
            for state in part.keyed
        )
        return msgspec.structs.replace(
            part,
            keyed=keyed,
            in_flight=tuple(msgspec.structs.replace(rows, file=moved(rows.file)) for rows in part.in_flight),
            committables=tuple(moved_output(c) for c in part.committables),
        )

    return msgspec.structs.replace(
        manifest,
        subtasks=tuple(moved_subtask(part) for part in manifest.subtasks),
        pending=tuple(moved_output(c) for c in manifest.pending),
    )


def _newest_checkpoint(entries: Sequence[LogEntry]) -> int:
    return max((e.manifest.sequence for e in entries if e.manifest.kind == "checkpoint"), default=0)


def _runs(entries: Sequence[LogEntry], since: int) -> tuple[tuple[str, str], ...]:
    """Return the runs that may still be unfenced: those that checkpoint `since` lists and those that wrote after it."""
    found: dict[tuple[str, str], None] = {}
    for entry in (e for e in entries if e.manifest.sequence >= since):
        for run in (*entry.manifest.runs, entry.manifest.run_id):
            found[entry.manifest.job_name, run] = None
    return tuple(found)


def _manifests(entries: Sequence[LogEntry]) -> tuple[Manifest, ...]:
    return tuple(entry.manifest for entry in entries)
