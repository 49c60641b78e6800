"""The manifest and the dense manifest log of one job: a checkpoint exists when its manifest was appended.

Entries are `manifests/<sequence, 20 digits>.json`. Only here permits are made. Used by the job driver in a store
thread; read by recovery and offline tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import LeadershipLostError, MetadataDamagedError, SnapshotDamagedError, StorageError
from penstock.core.permits import CommitPermit
from penstock.core.rand import Rand
from penstock.core.snapshot import Committable, SubtaskSnapshot
from penstock.core.structs import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.graph.job_graph import JobGraph

FORMAT_VERSION = 1
T = TypeVar("T")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log."""

    version: int = FORMAT_VERSION
    kind: Literal["checkpoint", "savepoint", "seal", "end", "fence"]
    sequence: int
    job_id: str
    job_name: str
    run_id: str
    generation: int
    #: Identifies the writer after a PUT with an unknown outcome: an entry with our nonce is ours.
    nonce: str
    created_ms: int
    #: Comparable only within one run; None in a seal.
    checkpoint_id: int | None = None
    graph_fingerprint: str = ""
    key_groups: int = 0
    #: uid -> (parallelism, vertex id) at the checkpoint.
    operators: dict[str, tuple[int, str]] = {}
    subtasks: tuple[SubtaskSnapshot, ...] = ()
    #: All output not known to be published, of this and every earlier checkpoint and run.
    pending: tuple[Committable, ...] = ()
    #: In `end`: sequence of the newest checkpoint that `pending` covers; all output of a later one is uncommitted.
    pending_as_of: int = 0
    #: Run ids whose transactional ids may still be open, newest last; they are fenced at the next recovery.
    runs: tuple[str, ...] = ()
    #: Why the checkpoint was taken: a `core.elements.BarrierKind`, or `final` at the end of a bounded job; empty in
    #: seals.
    barrier: str = ""
    #: Savepoint: path of its self-contained copy; seal/end: a reason.
    note: str = ""
    #: Savepoint, stop and drain: its copy has the files of the checkpoint as they are.
    native: bool = False
    #: Stop and drain: id of the request, so that the next leader can answer it.
    request: str = ""
    #: Savepoint: folder of the job it was taken of.
    origin: str = ""
    #: In all entries of a run that began as an upgrade: sequence of the checkpoint of the other version it started
    #: from.
    upgrade_of: int = 0
    #: In seals: the run is on trial (`checkpoint.recovery`). A later seal of the run without this flag releases it.
    on_trial: bool = False
    #: Sinks whose output of this run may not be published yet; `pending` includes it.
    held: tuple[str, ...] = ()

    @property
    def savepoint_uri(self) -> str:
        """Path of the savepoint that it was copied to; empty for any other checkpoint."""
        return self.note if self.kind == "savepoint" or self.barrier in ("stop", "drain") else ""

    def change_of(self, fingerprint: str) -> str:
        """Return why a job with another fingerprint cannot continue from this checkpoint; empty if it can."""
        if self.graph_fingerprint == fingerprint:
            return ""
        changed = f"the stateful operators of job {self.job_name!r} have changed since checkpoint {self.checkpoint_id}"
        return f"{changed}, and a changed job continues only from a savepoint"


prepare(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Invert `encode_manifest`; raises msgspec.DecodeError on anything else."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


PREFIX = "manifests/"
#: The manifest of a savepoint, in its folder.
SAVEPOINT_MANIFEST = "manifest.json"
#: Which job has taken over the savepoint or the job's history in this folder.
CLAIM = "claimed.json"
#: The ways out when a job's folder has lost its checkpoints.
EMPTIED_HINT = (
    "restore the folder and run the job again, or begin without its checkpoints: --from SAVEPOINT, or --fresh"
)
#: The way out when an entry of a job's log cannot be decoded.
DAMAGED_HINT = (
    "restore the file and restart the JobManager, or move it away and run the job's file again "
    "with --from SAVEPOINT or --fresh"
)
_ATTEMPTS = 4
_FIRST_PAUSE_MS = 100.0
_MAX_STEPS = 10_000
#: Number of attempts to list and read a log from which entries are removed meanwhile.
_READ_ATTEMPTS = 10


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the log and the commit permit that follows from it."""

    manifest: Manifest
    permit: CommitPermit
    #: Earlier checkpoints of this leader whose append had an unknown outcome: they are in the log.
    found: tuple[Manifest, ...] = ()


def decode_file(where: str, data: bytes, kind: type[T], hint: str = DAMAGED_HINT) -> T:
    """Return the content of the file at `where`, a JSON document of that kind.

    Raises:
        MetadataDamagedError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MetadataDamagedError(f"{where} is damaged: {error}", hint=hint) from error


def key_of(sequence: int) -> str:
    """Return the key of an entry within the job's folder."""
    return f"{PREFIX}{sequence:020d}.json"


def sequence_of(key: str) -> int | None:
    """Invert `key_of`; None for anything else."""
    name = key.removeprefix(PREFIX).removesuffix(".json")
    return int(name) if len(name) == 20 and name.isdigit() else None


def seal_entry(graph: JobGraph, job_id: str, run_id: str, generation: int, now_ms: int, note: str = "") -> Manifest:
    """Return the entry with which a leader or a run begins."""
    return Manifest(
        kind="seal",
        sequence=0,
        job_id=job_id,
        job_name=graph.name,
        run_id=run_id,
        generation=generation,
        nonce="",
        created_ms=now_ms,
        graph_fingerprint=graph.fingerprint,
        note=note,
    )


class ManifestLog:
    """Appends under one generation; `seal` comes first."""

    def __init__(self, store: ObjectStore, generation: int, clock: Clock, rand: Rand) -> None:
        """Take `store`, the job's folder; nothing is read before `seal` or `read`."""
        self._store = store
        self._generation = generation
        self._clock = clock
        self._rand = rand
        self._last = 0
        self._sealed = False
        #: Nonces of appends with an unknown outcome: an entry with one of them is ours.
        self._undecided: set[str] = set()
        #: Checkpoints of such appends that are in the log, and that neither `append` nor `read` has returned.
        self._found: list[Manifest] = []
        #: Entries to rewrite without files, by sequence, and sequences of entries to remove.
        self._emptied: dict[int, Manifest] = {}
        self._given_up: set[int] = set()

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest entry known."""
        return self._last

    def seal(self, entry: Manifest) -> LogEntry:
        """Append the first entry of this generation; from then on older generations cannot append.

        Raises:
            LeadershipLostError: a newer generation has sealed already.
        """
        sequences = [n for n in map(sequence_of, self._store.list(PREFIX)) if n is not None]
        self._last = max(sequences, default=0)
        if self._last:
            self._refuse_newer(self._load(self._last))
        self._sealed = True
        return self._append(entry, past_older=True)

    def append(self, entry: Manifest) -> LogEntry:
        """Append an entry; `sequence` and `nonce` of `entry` are filled in.

        With a checkpoint it returns earlier ones that are in the log though their append failed: retention needs them.

        Raises:
            LeadershipLostError: a newer generation has taken over the log.
            StorageError: the store failed for longer than the retries; the entry may still appear later.
        """
        if not self._sealed:
            msg = "an entry was appended before the seal"
            raise LeadershipLostError(msg, hint="this is a bug in penstock: report it")
        appended = self._append(entry, past_older=False)
        if entry.checkpoint_id is None:
            return appended
        found, self._found = tuple(self._found), []
        return msgspec.structs.replace(appended, found=found)

    def read(self) -> tuple[LogEntry, ...]:
        """Return all entries, oldest first, as they are in the store now.

        Raises:
            LeadershipLostError: a newer generation is in the log. MetadataDamagedError: an entry cannot be decoded.
            SnapshotDamagedError: the newest one is gone.
        """
        found: list[LogEntry] = []
        sequences = [n for n in map(sequence_of, self._store.list(PREFIX)) if n is not None]
        if max(sequences, default=0) < self._last:  # retention never deletes the newest entry
            msg = f"{self._store.uri} was emptied while the job ran: {key_of(self._last)} is gone"
            raise SnapshotDamagedError(msg, hint=EMPTIED_HINT)
        for sequence in sequences:
            try:
                manifest = self._load(sequence)
            except SnapshotDamagedError as error:
                gone = isinstance(error.__cause__, FileNotFoundError)
                if gone and sequence != sequences[-1]:
                    # The previous leader's retention is still running; it deletes only entries that are older than
                    # another one.
                    continue
                raise
            self._refuse_newer(manifest)
            self._last = max(self._last, sequence)
            found.append(self._entry(manifest))
        self._found.clear()
        return tuple(found)

    def delete(self, sequences: tuple[int, ...], emptied: tuple[Manifest, ...] = ()) -> None:
        """Remove the entries that `checkpoint.retention` gave up, and rewrite those of `emptied` without files.

        Call it only after the leader's own append succeeded. A rewritten entry keeps its nonce, so it remains its
        writer's. What failed is repeated at the next call, rewrites before removals.

        Raises:
            StorageError: the store failed; do not delete the files that the entries no longer name.
        """
        self._emptied.update({manifest.sequence: manifest for manifest in emptied})
        self._given_up.update(sequences)
        for sequence, manifest in tuple(self._emptied.items()):
            self._store.put(key_of(sequence), encode_manifest(manifest))
            del self._emptied[sequence]
        for sequence in sorted(self._given_up):
            self._store.delete(key_of(sequence))
            self._given_up.remove(sequence)

    def _append(self, entry: Manifest, *, past_older: bool) -> LogEntry:
        nonce = self._rand.token()
        for _ in range(_MAX_STEPS):
            wanted = msgspec.structs.replace(entry, sequence=self._last + 1, nonce=nonce, generation=self._generation)
            if self._put(wanted):
                self._last += 1
                return self._entry(wanted)
            try:
                present = self._load(self._last + 1)
            except StorageError:
                # It may be ours: the put may have failed after its effect.
                self._undecided.add(nonce)
                raise
            if present.nonce == nonce:
                self._last += 1
                return self._entry(present)
            self._refuse_newer(present)
            if present.nonce not in self._undecided and not (past_older and present.generation < self._generation):
                msg = (
                    f"{self._store.uri}/{key_of(self._last + 1)} was written by another process with the "
                    "same generation"
                )
                raise LeadershipLostError(
                    msg, hint="two leaders share a generation: check that the lease file is intact"
                )
            if present.nonce in self._undecided and present.checkpoint_id is not None:
                self._found.append(present)
            self._undecided.discard(present.nonce)
            self._last += 1
        msg = f"the manifest log {self._store.uri} grew during every attempt to append to it"
        raise StorageError(msg, hint="check for another process that writes to this folder")

    def _put(self, entry: Manifest) -> bool:
        """Put the entry if its key is absent.

        A failed call is repeated: only a found nonce shows whose entry is there.
        """
        data, pause_ms = encode_manifest(entry), _FIRST_PAUSE_MS
        for attempt in range(_ATTEMPTS):
            try:
                return self._store.put_if_absent(key_of(entry.sequence), data)
            except StorageError:
                if attempt == _ATTEMPTS - 1:
                    self._undecided.add(entry.nonce)
                    raise
                self._clock.sleep_ms(pause_ms)
                pause_ms *= 3
        raise AssertionError

    def _load(self, sequence: int) -> Manifest:
        where = f"{self._store.uri}/{key_of(sequence)}"
        try:
            return decode_file(where, self._store.read(key_of(sequence)), Manifest)
        except FileNotFoundError as error:
            raise _disappeared(where) from error

    def _refuse_newer(self, present: Manifest) -> None:
        if present.generation > self._generation:
            msg = (
                f"generation {present.generation} has taken over job {present.job_name!r} from generation "
                f"{self._generation}"
            )
            raise LeadershipLostError(msg, hint="this process steps down and changes nothing")

    def _entry(self, manifest: Manifest) -> LogEntry:
        permit = CommitPermit(
            job_id=manifest.job_id,
            run_id=manifest.run_id,
            generation=self._generation,
            checkpoint_id=manifest.checkpoint_id if manifest.checkpoint_id is not None else 0,
            manifest_sequence=manifest.sequence,
        )
        return LogEntry(manifest=manifest, permit=permit)


def read_entries(store: ObjectStore, read: Callable[[str], Manifest]) -> tuple[Manifest, ...]:
    """Return all entries of a log that another process leads, oldest first, from one listing.

    Retention of a running job removes entries between listing and reading, always older than another entry. The log is
    then listed again, so that the newest entry is never missed. `read` decodes the entry of a key and raises
    FileNotFoundError if there is none.

    Raises:
        SnapshotDamagedError: a listed entry was missing in every attempt.
    """
    found: dict[int, Manifest] = {}
    for _ in range(_READ_ATTEMPTS):
        sequences = [n for n in map(sequence_of, store.list(PREFIX)) if n is not None]
        gone = ""
        for sequence in sequences:
            try:
                found[sequence] = found.get(sequence) or read(key_of(sequence))
            except FileNotFoundError:
                gone = key_of(sequence)
                break
        if not gone:
            return tuple(found[sequence] for sequence in sequences)
    raise _disappeared(f"{store.uri}/{gone}")


def require_checkpoints(store: ObjectStore) -> None:
    """Refuse a log that has lost its checkpoints: its oldest entries were deleted, but it has no checkpoint.

    Retention deletes entries only when a newer checkpoint is in the log.

    Raises:
        SnapshotDamagedError: it has lost them. MetadataDamagedError: an entry cannot be decoded.
    """
    sequences = sorted(n for n in map(sequence_of, store.list(PREFIX)) if n is not None)
    if not sequences or sequences[0] == 1:
        return
    for sequence in reversed(sequences):
        try:
            data = store.read(key_of(sequence))
        except FileNotFoundError:
            continue  # an older entry, deleted by the previous leader's retention
        if decode_file(f"{store.uri}/{key_of(sequence)}", data, Manifest).kind == "checkpoint":
            return
    msg = f"{store.uri} was emptied: its log begins at entry {sequences[0]} and has no checkpoint"
    raise SnapshotDamagedError(msg, hint=EMPTIED_HINT)


def highest_generation(store: ObjectStore) -> int:
    """Return the newest generation that wrote to the log of a job's folder, 0 for an empty log."""
    sequences = [n for n in map(sequence_of, store.list(PREFIX)) if n is not None]
    if not sequences:
        return 0
    key = key_of(max(sequences))
    where = f"{store.uri}/{key}"
    try:
        data = store.read(key)
    except FileNotFoundError as error:
        raise _disappeared(where) from error
    return decode_file(where, data, Manifest).generation


def _disappeared(where: str) -> SnapshotDamagedError:
    hint = "check whether another process or a lifecycle rule deletes files in the checkpoint folder"
    return SnapshotDamagedError(f"{where} disappeared", hint=hint)
