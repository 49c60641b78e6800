"""The storage of one job: lease, manifest log, deletions, savepoints to start from; blocking calls.

Used by `jobmanager.jobs.job_driver`, which runs all calls of one job in one thread, in order.
"""

from __future__ import annotations

import msgspec

from penstock.checkpoint.job_lease import LEASE, JobLease, LeaseHolder
from penstock.checkpoint.manifest_log import (
    CLAIM,
    EMPTIED_HINT,
    SAVEPOINT_MANIFEST,
    LogEntry,
    Manifest,
    ManifestLog,
    decode_file,
    highest_generation,
    require_checkpoints,
    seal_entry,
)
from penstock.checkpoint.recovery import (
    FRESH,
    FROM,
    absolute_paths,
    check_source,
    current_history,
    live_entries,
    trial_of,
    with_trial,
)
from penstock.checkpoint.retention import SWEPT_PREFIXES
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import (
    join_uri,
    naming_root,
    open_job_store,
    open_store,
    require_answer,
    same_store,
)
from penstock.core.clock import Clock
from penstock.core.errors import JobIdentityError, SnapshotDamagedError, StateMismatchError, StorageError, UsageError
from penstock.core.rand import Rand
from penstock.core.structs import prepare
from penstock.graph.job_graph import JobGraph
from penstock.graph.state_check import check_states, require_fit
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.job_log import require_resumable

#: The way out when it cannot be read which job has taken over a savepoint or a history.
_CLAIM_HINT = "restore the file and restart the JobManager; if no other job took over from here, delete it instead"


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a run's initial state."""

    from_uri: str = ""
    fresh: bool = False
    claim: bool = True
    accept_duplicates: bool = False
    allow_non_restored_state: tuple[str, ...] = ()


prepare(StartOptions)


class JobStore:
    """The folder of one job, held under its lease."""

    def __init__(self, graph: JobGraph, start: StartOptions, holder: LeaseHolder, clock: Clock, rand: Rand) -> None:
        """Open the store without contacting it."""
        self._graph = graph
        self._start = start
        self._clock = clock
        self._rand = rand
        self._store = open_job_store(graph.settings.checkpoint_root, graph.name)
        self._lease = JobLease(self._store, holder, clock)
        self._holder = holder
        self._log: ManifestLog | None = None
        #: The savepoint to start from, and the run that starts from it.
        self._source: Manifest | None = None
        self._run_id = ""

    @property
    def uri(self) -> str:
        """The URI of the job's folder."""
        return self._store.uri

    @property
    def lease_ttl_ms(self) -> int:
        """The validity of a lease renewal."""
        return self._lease.ttl_ms

    def acquire(self, job_id: str, run_id: str, *, held_before: bool = False) -> int:
        """Take the lease and claim the savepoint to start from; return the job's generation.

        `held_before`: the job has had this lease, so its folder cannot be empty.

        Raises:
            SnapshotDamagedError: the job's checkpoints were deleted. MetadataDamagedError: a file cannot be decoded.
            JobIdentityError: another process holds the job, or another job has claimed the savepoint.
            UsageError: there is no such savepoint.
            StateMismatchError: the savepoint's state, or that of the job's newest checkpoint, does not fit the job; or
            restoring it would publish output twice.
            StorageError: the checkpoint root cannot be read or written.
        """
        if not held_before:  # a user waits; a job that ran before waits for its store
            self._require_answers()
        if self._start.from_uri:
            self._source = self._read_source()
            self._refuse_fork_of_backfill(self._source)
        if held_before:
            self._refuse_emptied()
        generation = self._take_lease(job_id)
        try:
            if not self._start.fresh and self._source is None:
                require_checkpoints(self._store)
            self._refuse_continued(generation)
            if not (held_before or self._start.fresh or self._source):
                entries = ManifestLog(self._store, generation, self._clock, self._rand).read()
                require_resumable(self._graph, run_id, entries)
            if self._source is not None:
                # Checked again when the job starts; here the submitter gets the error, before the claim.
                entries = ManifestLog(self._store, generation, self._clock, self._rand).read()
                check_source(entries, self._source, run_id, accept_duplicates=self._start.accept_duplicates)
                if not any(e.manifest.kind == "checkpoint" and e.manifest.run_id == run_id for e in entries):
                    self._check_states(self._source)  # after the run's first checkpoint the savepoint is not used
            if self._source is not None and self._start.claim:
                self._claim(self._source, job_id, run_id)
        except BaseException:
            self._lease.release()
            raise
        return generation

    def _refuse_emptied(self) -> None:
        """Refuse a folder without lease and log: they were there when the job was accepted."""
        if self._store.list(LEASE) or highest_generation(self._store):
            return
        msg = f"{self._store.uri} was emptied: it has neither {LEASE} nor a checkpoint of job {self._graph.name!r}"
        raise SnapshotDamagedError(msg, hint=EMPTIED_HINT)

    def _require_answers(self) -> None:
        """Refuse a job whose stores do not answer at once."""
        with naming_root(self._graph.settings.checkpoint_root):
            require_answer(self._store.uri)
        require_answer(self._start.from_uri)

    def _take_lease(self, job_id: str) -> int:
        """Take the lease, the job's first access to its checkpoint root; return its generation."""
        with naming_root(self._graph.settings.checkpoint_root):
            return self._lease.acquire(job_id).generation

    def seal(self, job_id: str, run_id: str, generation: int) -> ManifestLog:
        """Append this leader's first entry; return the log. A run's first seal names its initial state."""
        log = ManifestLog(self._store, generation, self._clock, self._rand)
        live = [entry.manifest for entry in live_entries(log.read())]
        sealed = any(m.kind == "seal" and m.run_id == run_id for m in live)
        note = ""
        if not sealed and self._start.fresh:
            note = FRESH
        elif not sealed and self._start.from_uri:
            note = FROM + self._start.from_uri
        entry = seal_entry(self._graph, job_id, run_id, generation, self._clock.now_ms(), note)
        trial = trial_of(live, run_id)
        log.seal(entry if trial is None else with_trial(entry, trial))
        self._log, self._run_id = log, run_id
        return log

    def read(self, run_id: str, *, list_files: bool) -> tuple[tuple[LogEntry, ...], tuple[str, ...], Manifest | None]:
        """Return the entries, the files of the job's folder if requested, and the savepoint that the run starts from.

        A run that continues another has none.
        """
        entries = self._opened().read()
        files: tuple[str, ...] = ()
        if list_files:
            files = tuple(key for prefix in SWEPT_PREFIXES for key in self._store.list(prefix))
        return entries, files, self._source if run_id == self._run_id else None

    def delete(self, sequences: tuple[int, ...], files: tuple[str, ...], emptied: tuple[Manifest, ...] = ()) -> None:
        """Delete what retention released: entries first, so that no entry ever names a missing file."""
        self._opened().delete(sequences, emptied)
        for path in files:
            self._store.delete(path)

    @property
    def attempts(self) -> Attempts:
        """The newest attempt of each vertex whose tasks may run."""
        return self._lease.record.attempts

    def record_attempt(self, attempts: Attempts) -> None:
        """Write the attempts that a deployment leaves, before its tasks are sent."""
        self._lease.record_attempt(attempts)

    def renew(self) -> None:
        """Extend the lease."""
        self._lease.renew()

    def release(self) -> None:
        """Release the lease."""
        self._lease.release()

    def _opened(self) -> ManifestLog:
        if self._log is None:
            msg = "the log is not sealed"
            raise StorageError(msg, hint="this is a bug in Penstock")
        return self._log

    def _read_source(self) -> Manifest:
        uri = self._start.from_uri.removesuffix("/manifest.json").rstrip("/")
        store = open_store(uri)
        try:
            data = store.read(SAVEPOINT_MANIFEST)
        except FileNotFoundError as error:
            msg = f"there is no savepoint at {uri}"
            raise UsageError(msg, hint="pass the folder that `penstock savepoint` or `stop` printed") from error
        hint = "restore the file and restart the JobManager, or run the job's file again from another savepoint"
        return absolute_paths(decode_file(f"{uri}/{SAVEPOINT_MANIFEST}", data, Manifest, hint), store.uri)

    def _refuse_fork_of_backfill(self, source: Manifest) -> None:
        """Refuse to fork a backfill's savepoint: a fork leaves staged output to the origin, which has no job."""
        if self._start.claim or not source.pending or source.job_id.strip("0"):
            return
        msg = f"{self._start.from_uri} is the savepoint of a backfill: no other job publishes its staged output"
        raise StateMismatchError(msg, hint="start from it without --no-claim")

    def _check_states(self, source: Manifest) -> None:
        """Refuse a savepoint whose state does not fit, before the claim."""
        allowed = self._start.allow_non_restored_state
        pending = source.pending if self._start.claim else ()
        require_fit(check_states(self._graph, source.subtasks, pending=pending, allow_non_restored=allowed))

    def _claim(self, source: Manifest, job_id: str, run_id: str) -> None:
        """Claim the savepoint.

        Only one job can; it must neither run beside its origin nor restore below what the origin has published.
        """
        store = open_store(self._start.from_uri.removesuffix("/manifest.json").rstrip("/"))
        mine = {"job_folder": self._store.uri, "job_id": job_id, "run_id": run_id}
        if store.list(CLAIM) and store.read(CLAIM) == msgspec.json.encode(mine):
            self._mark_origin_claimed(source, mine)
            return  # the same run, under a new leader
        if not same_store(self._origin(source), self._store):
            self._check_origin(source)
        if store.put_if_absent(CLAIM, msgspec.json.encode(mine)):
            self._mark_origin_claimed(source, mine)
            return
        held = decode_file(f"{store.uri}/{CLAIM}", store.read(CLAIM), dict[str, str], _CLAIM_HINT)
        if held.get("job_folder") != self._store.uri:
            msg = f"savepoint {self._start.from_uri} was claimed by {held.get('job_folder')} (job {held.get('job_id')})"
            raise JobIdentityError(msg, hint="fork it with --no-claim, or start from a savepoint of that job")

    def _origin(self, source: Manifest) -> ObjectStore:
        return open_store(source.origin or join_uri(self._graph.settings.checkpoint_root, source.job_name))

    def _check_origin(self, source: Manifest) -> None:
        origin = self._origin(source)
        if not origin.list(LEASE):
            return
        lease = JobLease(origin, self._holder, self._clock)
        # Our own cluster may run the origin: that lease must not be taken over either.
        generation = lease.acquire(source.job_id, take_over=False).generation
        try:
            entries = ManifestLog(origin, generation, self._clock, self._rand).read()
            check_source(entries, source, "", accept_duplicates=self._start.accept_duplicates)
        finally:
            lease.release()

    def _mark_origin_claimed(self, source: Manifest, mine: dict[str, str]) -> None:
        """Record in the origin's folder that its lineage continues here."""
        origin = self._origin(source)
        if not same_store(origin, self._store) and origin.list(LEASE):
            origin.put(CLAIM, msgspec.json.encode({**mine, "sequence": str(source.sequence)}))

    def _refuse_continued(self, generation: int) -> None:
        """Refuse to resume a job that continues under another name: both would publish the later output."""
        chosen = self._start.fresh or self._start.from_uri or self._start.accept_duplicates
        if chosen or not self._store.list(CLAIM):
            return
        successor = decode_file(f"{self._store.uri}/{CLAIM}", self._store.read(CLAIM), dict[str, str], _CLAIM_HINT)
        entries = current_history(ManifestLog(self._store, generation, self._clock, self._rand).read())
        newest = max((e.manifest.sequence for e in entries if e.manifest.kind == "checkpoint"), default=0)
        if 0 < newest <= int(successor["sequence"]):
            successor_name = f"{successor['job_folder']} ({successor['job_id']})"
            msg = f"job {self._graph.name!r} continues as {successor_name} from its savepoint"
            raise JobIdentityError(msg, hint="--fresh begins a new history, --accept-duplicates resumes it anyway")
