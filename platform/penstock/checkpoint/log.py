"""The dense manifest log of one job: the only place where a checkpoint comes to exist, the only maker of permits.

Used by the JobManager's job driver in a store thread, never by two threads at once. Appending is put-if-absent at
last + 1: whoever was superseded finds that place taken by the newer leader's seal, steps down and deletes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import LeadershipLostError, SnapshotDamagedError, StorageError
from penstock.core.permits import CommitPermit
from penstock.core.rand import Rand

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "manifests/"
_ATTEMPTS = 4
_FIRST_PAUSE_MS = 100.0
_MAX_STEPS = 10_000
#: How often a log is listed in which every time something is removed before it is read.
_LOOKS = 10


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is in the log, with the permission that follows from that."""

    manifest: Manifest
    permit: CommitPermit


def key_of(sequence: int) -> str:
    """Return the key of an entry within the job's folder."""
    return f"{PREFIX}{sequence:020d}.json"


def sequence_of(key: str) -> int | None:
    """Inverse of `key_of`; None for anything else."""
    name = key.removeprefix(PREFIX).removesuffix(".json")
    return int(name) if len(name) == 20 and name.isdigit() else None


class ManifestLog:
    """Appends under one generation; `seal` comes first."""

    def __init__(self, store: ObjectStore, generation: int, clock: Clock, rand: Rand) -> None:
        """`store` is the job's folder; nothing is read before `seal` or `read`."""
        self._store = store
        self._generation = generation
        self._clock = clock
        self._rand = rand
        self._last = 0
        self._sealed = False
        #: Nonces of appends whose fate is unknown: found later in the log, they are ours.
        self._undecided: set[str] = set()
        #: Entries to be written again without files, by sequence.
        self._emptied: dict[int, Manifest] = {}

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest entry known."""
        return self._last

    def seal(self, entry: Manifest) -> LogEntry:
        """Append this generation's first entry; older generations can append nothing from here on.

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
        """Append; `sequence` and `nonce` of `entry` are filled in.

        Raises:
            LeadershipLostError: a newer generation has taken the log over.
            StorageError: the store failed for longer than the retries; the entry may or may not turn up later.
        """
        if not self._sealed:
            msg = "an entry was appended before the seal"
            raise LeadershipLostError(msg, hint="this is a fault of penstock")
        return self._append(entry, past_older=False)

    def read(self) -> tuple[LogEntry, ...]:
        """Return all entries, oldest first, as they are in the store now.

        Raises:
            LeadershipLostError: a newer generation is in the log. SnapshotDamagedError: an entry cannot be decoded.
        """
        found: list[LogEntry] = []
        sequences = [n for n in map(sequence_of, self._store.list(PREFIX)) if n is not None]
        for sequence in sequences:
            try:
                manifest = self._load(sequence)
            except SnapshotDamagedError as error:
                gone = isinstance(error.__cause__, FileNotFoundError)
                if gone and sequence != sequences[-1]:
                    # The retention of the leader before us is still at work: it deletes behind a newer entry only.
                    continue
                raise
            self._refuse_newer(manifest)
            self._last = max(self._last, sequence)
            found.append(self._entry(manifest))
        return tuple(found)

    def delete(self, sequences: tuple[int, ...], emptied: tuple[Manifest, ...] = ()) -> None:
        """Remove entries that `checkpoint.retention` gave up, write those again that name no files any more.

        Call only after one's own append succeeded. An entry that is written again keeps its nonce: it stays its
        writer's. One that could not be written is tried first the next time, before anything is removed.

        Raises:
            StorageError: the store failed; call no more of it for what entries no longer name.
        """
        self._emptied.update({manifest.sequence: manifest for manifest in emptied})
        for sequence, manifest in tuple(self._emptied.items()):
            self._store.put(key_of(sequence), encode_manifest(manifest))
            del self._emptied[sequence]
        for sequence in sequences:
            self._store.delete(key_of(sequence))

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
                # It may be ours, put by a call that failed after its effect.
                self._undecided.add(nonce)
                raise
            if present.nonce == nonce:
                self._last += 1
                return self._entry(present)
            self._refuse_newer(present)
            if present.nonce not in self._undecided and not (past_older and present.generation < self._generation):
                msg = f"{self._store.uri}/{key_of(self._last + 1)} was written by somebody else of our generation"
                raise LeadershipLostError(msg, hint="two leaders share a generation: is the lease file intact?")
            self._undecided.discard(present.nonce)
            self._last += 1
        msg = f"the manifest log {self._store.uri} grows faster than we can append"
        raise StorageError(msg, hint="is another process writing to this folder?")

    def _put(self, entry: Manifest) -> bool:
        """Put if absent; a failed call is repeated, since only its own nonce makes a refusal ours."""
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
            return decode_manifest(self._store.read(key_of(sequence)))
        except FileNotFoundError as error:
            msg = f"{where} was there and is gone"
            raise SnapshotDamagedError(
                msg, hint="does something else delete files in the checkpoint folder?"
            ) from error
        except msgspec.MsgspecError as error:
            msg = f"{where} is damaged: {error}"
            raise SnapshotDamagedError(msg, hint="start from a savepoint with --from URI") from error

    def _refuse_newer(self, present: Manifest) -> None:
        if present.generation > self._generation:
            msg = (
                f"generation {present.generation} has taken job {present.job_name!r} over "
                f"from generation {self._generation}"
            )
            raise LeadershipLostError(msg, hint="this process steps down and leaves everything as it is")

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
    """Return all entries of a log that somebody else leads, oldest first, as they were listed at one moment.

    Retention of a running job removes entries between their listing and their reading, but behind a newer one only:
    what is there then is listed anew, so that the newest is never missed. `read` decodes the entry of a key, and raises
    FileNotFoundError where there is none.

    Raises:
        SnapshotDamagedError: an entry is listed and not there, time and again.
    """
    found: dict[int, Manifest] = {}
    for _ in range(_LOOKS):
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
    msg = f"{store.uri}/{gone} was there and is gone"
    raise SnapshotDamagedError(msg, hint="does something else delete files in the checkpoint folder?")


def highest_generation(store: ObjectStore) -> int:
    """Return the newest generation that ever wrote to the log of a job's folder, 0 for an empty one."""
    sequences = [n for n in map(sequence_of, store.list(PREFIX)) if n is not None]
    if not sequences:
        return 0
    try:
        return decode_manifest(store.read(key_of(max(sequences)))).generation
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        msg = f"{store.uri}/{key_of(max(sequences))} is damaged: {error}"
        raise SnapshotDamagedError(msg, hint="start from a savepoint with --from URI") from error
