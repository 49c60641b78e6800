"""A JobManager's incarnation: what `job_driver` and `taskmanagers` do in production, around the engine's `JobMaster`.

Commands become delayed actions; store calls run one after another in fibers, through the real `JobStore` (lease,
seal, dense log).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.manifest_log import ManifestLog, seal_entry
from penstock.checkpoint.recovery import with_trial
from penstock.checkpoint.retention import Sweeper
from penstock.connector.sink import load_factory
from penstock.core.errors import LeadershipLostError, PenstockError, SnapshotDamagedError, StorageError
from penstock.core.event_log import EventLog
from penstock.core.rand import SeededRand
from penstock.jobmanager.cluster.kept_workers import KeptWorkers
from penstock.jobmanager.cluster.slots import SlotPool
from penstock.jobmanager.deploy.deployment import source_spec
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.job_store import JobStore, StartOptions
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

if TYPE_CHECKING:
    from tests.sim.runs import Run
    from tests.sim.worker import Session
    from tests.sim.world import World

    from penstock.jobmanager.deploy.region_restart import RegionRestart

_HOLDER = LeaseHolder(id="sim", host="sim", machine="", pid=1)
_SLOT_TIMEOUT_MS = 60_000
#: How long a new leader waits for the workers of the leader before it.
_RECONCILE_MS = 300


class Story(EventLog):
    """The job's own story, told to the journal as well."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__()
        self._tell = tell

    def add(self, at_ms: int, kind: str, text: str) -> None:
        super().add(at_ms, kind, text)
        self._tell(kind, text)


class Leader:
    """One incarnation."""

    def __init__(self, world: World, run: Run, owner: str, generation: int) -> None:
        """Nothing happens before `begin`."""
        self.world = world
        self.run = run
        self.owner = owner
        self.dead = False
        self.ready = False
        self.master: JobMaster | None = None
        self.sessions: dict[str, Session] = {}
        self.store = JobStore(
            run.graph,
            run.start,
            replace(_HOLDER, leader_generation=generation),
            world.clock,
            SeededRand(world.random.getrandbits(32)),
        )
        self.log: ManifestLog | None = None
        self._pool = SlotPool(_SLOT_TIMEOUT_MS)
        self._kept = KeptWorkers()
        self._kept.recover([run.job_id])
        #: What workers of the leader before it have answered.
        self._told: dict[str, msg.TasksReported] = {}
        self._events: deque[ev.Event] = deque()
        self._calls: deque[tuple[str, Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._calling = False
        self._handling = False
        self._where: dict[str, str] = {}
        #: Killed workers that have not exited and that deployments wait for, and the session of their TaskManager.
        self._killed: dict[str, Session] = {}
        self._wake_token = 0
        self._last_abort = self._last_trigger = 0

    # --- begin and end ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the lease, seal the log, then let TaskManagers in."""

        def acquire() -> int:
            generation = self.store.acquire(self.run.job_id, self.run.run_id)
            self.run.recorded_by = max(self.run.recorded_by, generation)
            self.log = self.store.seal(self.run.job_id, self.run.run_id, generation)
            return generation

        self._call("acquire", acquire, self._acquired)

    def _acquired(self, generation: int | None, error: BaseException | None) -> None:
        if error is not None:
            self.world.leader_refused(self, error)
            return
        run, start = self.run, self.run.start
        identity = JobIdentity(run.job_id, run.run_id, generation or 0, start.claim, start.accept_duplicates)
        rand = SeededRand(self.world.random.getrandbits(32))
        self.master = JobMaster(run.graph, identity, rand, self.world.clock.now_ms(), run.upgrade)
        self.master.checkpointing.sweeper = Sweeper(self.world.plan.sweep_grace_ms)
        self.master.event_log = Story(lambda kind, text: self.world.scheduler.note(f"{self.owner} {kind}: {text}"))
        self._pool.attach(run.job_id, self.post, run.graph.name)
        self.ready = True
        self._renew()
        start = ev.Start(self.store.attempts, _RECONCILE_MS)
        if self.world.plan.begin_ms and not start.attempts.newest:
            self.world.scheduler.at(self.world.plan.begin_ms, "start", lambda: self.post(start), owner=self.owner)
        else:
            self.post(start)

    def die(self) -> None:
        """SIGKILL."""
        if not self.dead:
            self.dead = True
            self.world.end_process(self.owner)

    def _renew(self) -> None:
        def renewed(_result: Any, error: BaseException | None) -> None:
            if isinstance(error, LeadershipLostError):
                self.world.stepped_down(self)
            else:
                self._renew()

        ttl = self.store.lease_ttl_ms
        self.world.spawn(self.owner, "renew", self.store.renew, renewed, ttl / 3)

    # --- events -------------------------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Handle an event, after those that came before it."""
        self._events.append(event)
        if self._handling or self.master is None:
            return
        self._handling = True
        try:
            while self._events and not self.dead:
                before = self.master._region
                commands = self.master.handle(self._events.popleft(), self.world.clock.now_ms())
                self._count_region(before, self.master)
                for command in commands:
                    self._execute(command)
        finally:
            self._handling = False

    def _execute(self, command: cmd.Command) -> None:
        store = self.store
        match command:
            case cmd.SendToWorker(worker_id, message):
                self._send(self._where.get(worker_id, ""), (worker_id,), message)
            case cmd.SendToWorkers(manager, worker_ids, message):
                self._send(manager, worker_ids, message)
            case cmd.ReadLog(list_files):
                self._call(
                    "read log", partial(store.read, self.master.identity.run_id, list_files=list_files), self._log_read
                )
            case cmd.AppendManifest(tag, manifest):
                if manifest.checkpoint_id is not None:
                    self.world.checks.acknowledged(self.master, manifest.checkpoint_id)
                self._call(f"append {tag}", lambda: self.log.append(manifest), partial(self._appended, tag))
            case cmd.DeleteEntries(sequences, files, emptied):
                self._call("delete", partial(store.delete, sequences, files, emptied), lambda _result, _error: None)
            case cmd.RequestSlots(count, wait):
                self._pool.request(self.run.job_id, count, self.world.clock.now_ms(), wait=wait)
            case cmd.DeclareSlots(count):
                self._pool.declare(self.run.job_id, count)
            case cmd.RecordChange():
                self._record_change(command)
            case cmd.ReleaseSlots(slots):
                self._pool.release(self.run.job_id, slots)
            case cmd.RecordAttempt(attempts):
                recorded = partial(self._recorded, attempts.newest)
                self._call("record attempt", partial(store.record_attempt, attempts), recorded)
            case cmd.KeepWorker(worker_id, slot):
                self._where[worker_id] = slot.taskmanager_id
            case cmd.WorkersDecided():
                self._decided()
            case cmd.LaunchWorker(worker_id, slot, beside):
                self._launch(worker_id, slot, beside=beside)
            case cmd.KillWorker(worker_id, slot):
                self._kill(worker_id, slot.taskmanager_id)
            case cmd.DiscoverSplits():
                self._later("discover", partial(self._discover, command))
            case cmd.CloseEnumerators():
                pass
            case cmd.WakeAt(at_ms):
                self._wake_at(at_ms)
            case cmd.OperationEnded():
                self.world.operation_ended(command)
            case cmd.JobTerminal(state, error):
                self._call("release", store.release, lambda _result, _error: self.world.run_ended(self, state, error))

    def _later(self, label: str, action: Callable[[], None]) -> None:
        self.world.scheduler.at(self.world.random.uniform(0, 5), label, action, owner=self.owner)

    def _wake_at(self, at_ms: int) -> None:
        self._wake_token += 1
        token = self._wake_token

        def tick() -> None:
            if token == self._wake_token:
                self.post(ev.Tick())

        self.world.scheduler.at(max(1.0, at_ms - self.world.clock.now_ms()), "tick", tick, owner=self.owner)

    def _discover(self, command: cmd.DiscoverSplits) -> None:
        operator = next(v.operators[0] for v in self.run.graph.vertices if v.operators[0].uid == command.uid)
        spec = source_spec(operator)
        enumerator = load_factory(spec.factory).create_enumerator(spec, first_run=command.first_run)
        found = tuple(msgspec.to_builtins(split) for split in enumerator.discover(command.known))
        self.post(ev.SplitsDiscovered(command.uid, command.epoch, found))

    # --- the store ----------------------------------------------------------------------------------------------------

    def _call(self, label: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._calls.append((label, work, done))
        self._next_call()

    def _next_call(self) -> None:
        if self._calling or not self._calls:
            return
        self._calling = True
        label, work, done = self._calls.popleft()

        def ended(result: Any, error: BaseException | None) -> None:
            self._calling = False
            if error is not None and not isinstance(error, PenstockError):
                raise error
            if isinstance(error, LeadershipLostError) and self.ready:
                self.world.stepped_down(self)
                return
            done(result, error)
            self._next_call()

        self.world.spawn(self.owner, label, work, ended, self.world.random.uniform(0, 3))

    def _recorded(self, attempt: int, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            self.post(ev.LogFailed(f"{type(error).__name__}: {error}", final=isinstance(error, SnapshotDamagedError)))
        else:
            self.post(ev.AttemptRecorded(attempt))

    def _log_read(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            final = isinstance(error, SnapshotDamagedError)
            self.post(ev.LogFailed(f"{type(error).__name__}: {error}", final=final))
            return
        entries, files, source = result
        self.post(ev.LogRead(entries, files, source))

    def _appended(self, tag: str, entry: Any, error: BaseException | None) -> None:
        if error is not None:
            self.post(ev.ManifestFailed(tag, str(error)))
        else:
            self.post(ev.ManifestAppended(tag, entry))

    def _require_own_record(self) -> None:
        """One compare-and-set: what a newer leader has taken over is not overwritten."""
        if self.master is not None and self.run.recorded_by > self.master.identity.generation:
            msg = "a newer leader owns the job's record"
            raise LeadershipLostError(msg, hint="this process steps down")

    def _record_change(self, command: cmd.RecordChange) -> None:
        """The seal, where there is a new run; then the record of the HA store: later leaders run the job as it says."""
        graph, upgrade = command.graph, command.upgrade
        if graph is not None and not command.request_id and self.master is not None:
            slots = self._pool.free + sum(len(offer.held) for offer in self._pool._offers.values())
            self.world.checks.follows_slots(self.run.graph, graph, slots, self.master.status)

        def written() -> None:
            self._require_own_record()
            if upgrade is not None:
                if self.world.swarm.strikes("put-fails-before"):
                    msg = "simulated: the job's record was not written"
                    raise StorageError(msg)
                self.run.upgrade, self.run.recorded_by = upgrade, self.master.identity.generation
            if graph is not None:
                self.run.graph = graph
                if command.run_id:
                    self.run.run_id, self.run.start = command.run_id, StartOptions()

        def recorded(_result: Any, error: BaseException | None) -> None:
            if error is not None:
                self.post(ev.ChangeNotRecorded(str(error)))
                return
            self.world.swarm.seen("rescaled-in-place" if upgrade is None else f"upgrade-{upgrade.phase}")
            self.post(ev.ChangeRecorded())

        def sealed(_result: Any, error: BaseException | None) -> None:
            if error is not None:
                recorded(None, error)
            else:
                self._call("record the change", written, recorded)

        if graph is None or not command.run_id:
            sealed(None, None)
        else:
            generation, now_ms = self.master.identity.generation, self.world.clock.now_ms()
            seal = seal_entry(graph, self.run.job_id, command.run_id, generation, now_ms)
            if command.trial is not None:
                seal = with_trial(seal, command.trial)
            self._call("seal", partial(self.log.append, seal), sealed)

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    def connected(self, session: Session, workers: tuple[msg.SlotStatus, ...]) -> None:
        """A TaskManager has registered, with the workers that it still has."""
        manager = session.manager
        if session.closed:
            return
        if manager.name in self.sessions:
            self._lost(manager.name)
        self.sessions[manager.name] = session
        kept = self._kept.registered(manager.name, workers)
        names = {worker.worker_id for worker in kept}
        session.down.send("registered", lambda: manager.registered(session, names), owner=manager.owner)
        held = {worker.slot: worker.job_id for worker in kept}
        self._where.update((worker.worker_id, manager.name) for worker in kept)
        self._pool.add(manager.name, "sim", manager.slots, held)
        if kept:
            found = tuple((worker.worker_id, Slot(manager.name, worker.slot, "sim")) for worker in kept)
            late = self.master is not None and self.master.step is not Step.RECONCILING
            self.post(ev.WorkersKept(found))
            if late:  # fenced as workers of absent TaskManagers are: no deployment waits for their end
                self._killed = {worker: killed for worker, killed in self._killed.items() if worker not in names}

    def drain(self, name: str) -> bool:
        """Do what `RescaleRequests.drain` does; return whether the TaskManager can end."""
        if name not in self.sessions or self.master is None:
            return False
        holders = self._pool.drain(name)
        if not holders and name not in self._where.values():
            return True
        if self.master.may_rescale(self.world.clock.now_ms()):
            request = self.world.next_name("drain")
            self.post(ev.RescaleRequested(request, request, self.master.graph, self._pool.drained))
        return False

    def disconnected(self, session: Session) -> None:
        """A stream has ended."""
        session.closed = True
        if self.sessions.get(session.manager.name) is session:
            self._lost(session.manager.name)

    def reported(self, session: Session, worker_id: str, report: bytes) -> None:
        """A worker's report came through."""
        if self.sessions.get(session.manager.name) is not session or worker_id not in self._where:
            return
        decoded = msg.decode_worker_report(report)
        if isinstance(decoded, msg.TasksReported) and not decoded.beside:
            self._told[worker_id] = decoded
        self._count(decoded)
        event = ev.WorkerReported(worker_id, decoded)
        if isinstance(decoded, msg.CheckpointAcks):
            if self.world.swarm.strikes("ack-duplicated"):
                delay = self.world.random.uniform(0, 150)
                self.world.scheduler.at(delay, "ack again", lambda: self.post(event), owner=self.owner)
            if self.world.swarm.strikes("ack-late"):
                delay = self.world.random.uniform(10, 500)
                self.world.scheduler.at(delay, "late ack", lambda: self.post(event), owner=self.owner)
                return
        self.post(event)

    def stopped(self, session: Session, worker_id: str) -> None:
        """A killed worker executes nothing any more."""
        if self.sessions.get(session.manager.name) is session and worker_id in self._where:
            self.post(ev.WorkerStopped(worker_id))

    def slot_refused(self, session: Session, worker_id: str, slot: Slot) -> None:
        """A worker was not started, because another one has its slot."""
        self._killed.pop(worker_id, None)
        if self.sessions.get(session.manager.name) is session and self._where.pop(worker_id, None) is not None:
            self._pool.refused(self.run.job_id, slot)
            self.post(ev.WorkerLost(worker_id, "its slot is held", started=False, refused=slot))

    def slots_reported(self, session: Session, taken: frozenset[int]) -> None:
        """A heartbeat has named the taken slots."""
        if self.sessions.get(session.manager.name) is session:
            self._pool.reported(session.manager.name, taken)

    def exited(self, session: Session, worker_id: str, reason: str) -> None:
        """A worker's process has ended."""
        self._killed.pop(worker_id, None)
        if self.sessions.get(session.manager.name) is session and self._where.pop(worker_id, None) is not None:
            self.post(ev.WorkerLost(worker_id, reason))

    def _count_region(self, before: RegionRestart | None, master: JobMaster) -> None:
        """Count what has become of the restart of a region."""
        region = master._region
        if region is not None and region is not before:
            self.world.swarm.seen("region-killed" if before is None else "region-failed-again")
        elif region is None and before is not None and master.deployment is not None:
            self.world.swarm.seen("region-restarted", int(master.deployment.running))

    def _count_trigger(self, checkpoint_id: int) -> None:
        coordinator = self.master.checkpointing._coordinator if self.master is not None else None
        if coordinator is not None and checkpoint_id > self._last_trigger:
            self._last_trigger = checkpoint_id
            self.world.swarm.seen("checkpoints-overlapping", len(coordinator._pending) > 1)

    def _count_abort(self, checkpoint_id: int) -> None:
        if checkpoint_id == self._last_abort or self.master is None:
            return
        self._last_abort = checkpoint_id
        self.world.swarm.seen("checkpoint-aborted")
        record = self.master.checkpointing.history._find(checkpoint_id)
        if record is not None and record.failure.startswith("not complete after"):
            self.world.swarm.seen("checkpoint-timed-out")
        elif record is not None and record.failure.startswith("subsumed"):
            self.world.swarm.seen("checkpoint-subsumed")

    def _count(self, report: msg.WorkerReport) -> None:
        swarm = self.world.swarm
        if isinstance(report, msg.PendingResolved):
            swarm.seen("published-at-recovery", len(report.published))
        elif isinstance(report, msg.TasksPrepared) and not report.error:
            swarm.seen("state-prepared")
        elif isinstance(report, msg.SavepointWritten) and not report.error:
            swarm.seen("savepoint-written")

    def _lost(self, name: str) -> None:
        self.sessions.pop(name)
        self._pool.remove(name)
        self._where = {worker: tm for worker, tm in self._where.items() if tm != name}
        self._killed = {worker: session for worker, session in self._killed.items() if session.manager.name != name}
        self.post(ev.TaskManagerLost(name, "its stream ended"))

    def _decided(self) -> None:
        self._kept.decided(self.run.job_id)
        deployment = self.master.deployment if self.master is not None else None
        if deployment is not None and deployment.deployed:
            self.world.swarm.seen("workers-adopted")
            self.world.swarm.seen("restarted-region-adopted", bool(deployment.attempts.earlier))
            self.world.checks.adopted(self.run.graph, self._told)
        elif self._where:
            self.world.swarm.seen("workers-not-adopted")

    def _launch(self, worker_id: str, slot: Slot, *, beside: bool) -> None:
        name = slot.taskmanager_id
        session = self.sessions.get(name)
        if session is None:
            self.post(ev.WorkerLost(worker_id, f"TaskManager {name} is gone"))
            return
        self._where[worker_id] = name
        manager = session.manager
        entry = msg.SlotStatus(worker_id=worker_id, job_id=self.run.job_id, slot=slot.index)
        session.down.send("start worker", lambda: manager.start(session, entry, beside=beside), owner=manager.owner)

    def _kill(self, worker_id: str, name: str) -> None:
        session = self.sessions.get(name)
        if session is None or worker_id not in self._where:
            self.post(ev.WorkerLost(worker_id, "it had already ended"))
            return
        manager, self._killed[worker_id] = session.manager, session
        session.down.send("stop worker", lambda: manager.stop(session, worker_id), owner=manager.owner)

    def _send(self, name: str, worker_ids: tuple[str, ...], message: msg.WorkerCommand) -> None:
        session = self.sessions.get(name)
        if isinstance(message, msg.CheckpointAborted):
            self._count_abort(message.checkpoint_id)
        elif isinstance(message, msg.TriggerCheckpoint):
            self.world.checks.triggered(message.run_id, message.checkpoint_id, message.generation)
            self._count_trigger(message.checkpoint_id)
            self.world.checkpoint_requests.sent(message, self.master)
        elif isinstance(message, msg.LetBarriersOvertake):
            self.world.checkpoint_requests.sent(message, self.master)
        elif isinstance(message, msg.DeployTasks | msg.ResolvePending):
            self.world.checks.deployed({w: s.manager.workers.get(w) for w, s in self._killed.items()})
        if session is None:
            return
        data, manager = msg.encode(message), session.manager
        label = type(message).__name__
        session.down.send(label, lambda: manager.relay_down(session, worker_ids, data), owner=manager.owner)
