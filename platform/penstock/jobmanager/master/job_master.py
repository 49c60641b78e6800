"""The master of one job: a pure decider over all events of a job, composed of smaller deciders.

`jobs.job_driver` and the simulator feed it events and execute its commands in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.checkpoint.manifest_log import Manifest
from penstock.core.counts import counted
from penstock.core.errors import Cause, PenstockError, cause_of
from penstock.core.event_log import EventLog
from penstock.core.rand import Rand
from penstock.core.snapshot import pending_text
from penstock.graph.failover import part_of
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.rescale import is_adaptive
from penstock.graph.task_deployment import ExecutionId
from penstock.jobmanager.change.adapting import Adapting
from penstock.jobmanager.change.decisions import (
    AdoptDefinition,
    ChangeContext,
    ChangeDecision,
    Failure,
    KillPrepared,
    Note,
    PauseCompactions,
    PostponeStart,
    StopForChange,
)
from penstock.jobmanager.change.job_change import JobChange
from penstock.jobmanager.change.next_workers import pause_order
from penstock.jobmanager.change.upgrading import RELEASE_TAG
from penstock.jobmanager.checkpoints.checkpointing import (
    ChangeCheckpoint,
    CheckpointCommand,
    CheckpointFailed,
    Checkpointing,
    JobCanFinish,
    JobShouldFail,
)
from penstock.jobmanager.cluster.slots import HeldSlots
from penstock.jobmanager.deploy.adoption import Adoption, Verdict, dismissed
from penstock.jobmanager.deploy.deployment import START_TIMEOUT_MS, Deployment, Recovered, Worker, send_to_all
from penstock.jobmanager.deploy.failover import RestartPolicy, lost_peer
from penstock.jobmanager.deploy.job_log import (
    JobIdentity,
    completed_text,
    end_entry,
    ended_as,
    events_of_earlier_leaders,
    failed_text,
    plan_restore,
    stop_of,
)
from penstock.jobmanager.deploy.job_status import JobStatus, StatusMachine
from penstock.jobmanager.deploy.job_steps import Step, StepMachine
from penstock.jobmanager.deploy.region_restart import Deployments, RegionRestart
from penstock.jobmanager.deploy.watermark_alignment import WatermarkAlignment
from penstock.jobmanager.master.lost_connections import LostConnections, with_taskmanager
from penstock.jobmanager.master.waiting_requests import WaitingRequests
from penstock.jobmanager.master.worker_reports import WorkerReports
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

_EXIT_TIMEOUT_MS = 10_000
_END_TAG = "end"
#: Delay before a job that must not end starts again, although its restart strategy has given up.
_FORCED_RESTART_DELAY_MS = 1_000
_EXCEPTIONS = 50
_BEFORE_RUNNING = (Step.IDLE, Step.RECONCILING, Step.STARTING, Step.CHANGING)


class JobMaster:
    """The state of one job under one leader."""

    def __init__(
        self, graph: JobGraph, identity: JobIdentity, rand: Rand, now_ms: int, upgrade: UpgradeRecord | None = None
    ) -> None:
        """Create an idle master; `upgrade` is the newest one in the job's record."""
        self.graph = graph
        self.identity = identity
        self.status = StatusMachine(now_ms)
        self._steps = StepMachine()
        self.event_log = EventLog()
        self.failures: deque[Failure] = deque(maxlen=_EXCEPTIONS)
        self._reports = WorkerReports(graph)
        self.metrics, self.texts = self._reports.metrics, self._reports.texts
        self.slow_call_tracker = self._reports.slow_calls
        self.checkpointing = Checkpointing(graph.settings.checkpoint_root, self.metrics)
        self._deployed = Deployments()
        #: The workers of an earlier leader, while the job is RECONCILING.
        self._adoption: Adoption | None = None
        #: Workers of the last deployment that has ended.
        self.last_workers: tuple[Worker, ...] = ()
        self.restarts = 0
        self.error = ""
        self._rand = rand
        self.alignment = WatermarkAlignment(graph)
        self._restart = RestartPolicy(graph.settings.restart)
        self._held = HeldSlots()
        self.job_change = JobChange(upgrade, Adapting(graph.settings.adaptive_scheduler, rand))
        #: Results of checkpoints that the change requested, for `_deliver`.
        self._results: deque[ChangeCheckpoint] = deque()
        self._waiting = WaitingRequests()
        self._deployments = 0
        self._lost_connections = LostConnections()
        self._end_state = JobStatus.FINISHED
        self._end_written = False
        self._ever_ran = False
        self._wake_ms: int | None = None

    def handle(self, event: ev.Event, now_ms: int) -> list[cmd.Command]:
        """Handle one event; return the commands to execute, in order."""
        if self.step is Step.DONE:
            return []
        if isinstance(event, ev.Tick):
            self._wake_ms = None
        commands = self._dispatch(event, now_ms)
        commands += self._deliver(now_ms)
        commands += self._apply(self.job_change.decide(self._change_context(now_ms)), now_ms)
        commands += self._deliver(now_ms)
        commands += self._proceed(now_ms)
        wake = self._next_wake()
        if wake is not None and wake != self._wake_ms:
            self._wake_ms = wake
            commands.append(cmd.WakeAt(wake))
        return commands

    @property
    def step(self) -> Step:
        """The phase that the job is in."""
        return self._steps.step

    @property
    def deployment(self) -> Deployment | None:
        """The deployment of the job; its regions that restart are shown in it."""
        return self._deployed.job

    @property
    def _region(self) -> RegionRestart | None:
        """The regions that restart while the job is RUNNING."""
        return self._deployed.region

    def may_rescale(self, now_ms: int) -> bool:
        """Return whether a rescale that is requested now would begin."""
        return self.job_change.idle and not self._change_context(now_ms).obstacle

    @property
    def region_restart(self) -> str:
        """Which regions restart while the job is RUNNING, and what they wait for; empty if all run."""
        return self._region.text if self._region is not None else ""

    @property
    def next_attempt_ms(self) -> int:
        """The time of the next start after a failure; -1 if the job is not waiting for one."""
        deadline_ms = self._steps.deadline_ms
        return deadline_ms if self.step is Step.WAITING and deadline_ms is not None else -1

    # --- events ----------------------------------------------------------------------------------------------------

    def _dispatch(self, event: ev.Event, now_ms: int) -> list[cmd.Command]:
        """Decide by step and event; the order of the cases counts. An event without a case is too late."""
        match self.step, event:
            case Step.IDLE, ev.Start() as start:
                return self._start(start, now_ms)
            case Step.RECONCILING, ev.WorkersKept(workers):
                return self._reconciling().ask(workers)
            case _, ev.WorkersKept(workers):
                return dismissed(workers)
            case Step.RECONCILING, ev.LogRead() as log:
                return self._on_log_of_workers(log, now_ms)
            case Step.RECONCILING, ev.LogFailed(error):
                self._reconciling().refuse(error)
            case Step.STARTING, ev.LogRead() as log:
                return self._on_log(log, now_ms)
            case Step.RUNNING, ev.LogRead() as log if self._region is not None:
                return self._on_log_of_region(self._region, log, now_ms)
            case Step.WAITING, (ev.LogRead() | ev.LogFailed()) as answer:
                self.job_change.adapting.log_answered(answer)
            case _, ev.LogFailed(error, final):
                return self._fail(Failure(now_ms, error), now_ms, Cause.of(permanent=final), self._restarting)
            case _, ev.AttemptRecorded(attempt):
                current = self._starting
                return current.attempt_recorded() if current is not None and current.ids.attempt == attempt else []
            case _, ev.SlotsAvailable(free):
                self.job_change.adapting.free = free
            case _, (ev.SlotsGranted() | ev.SlotsRefused()) as answer if self.job_change.waits_for_slots:
                return self._apply(self.job_change.handle(answer, self._change_context(now_ms)), now_ms)
            case _, ev.SlotsGranted(slots):
                return self._on_slots(slots)
            case _, ev.SlotsAwaited(text):
                self.event_log.add(now_ms, "slots", f"waiting for {text}")
            case Step.STARTING, ev.SlotsRefused(reason):
                return self._fail(Failure(now_ms, f"no slots: {reason}"), now_ms)
            case Step.RUNNING, ev.SlotsRefused(reason) if self._region is not None:
                failure = Failure(now_ms, f"{self._region.name} gets no slots: {reason}")
                return self._fail(failure, now_ms, failed=self._restarting)
            case Step.RECONCILING, ev.WorkerReported(worker_id, report):
                self._reconciling().reported(worker_id, report)
            case _, ev.WorkerReported(worker_id, report):
                return self._on_report(worker_id, report, now_ms)
            case _, ev.WorkerStopped(worker_id):
                self._held.worker_stopped(worker_id)
            case _, ev.WorkerLost() as lost:
                return self._on_worker_lost(lost, now_ms)
            case _, ev.TaskManagerLost(taskmanager_id, reason):
                return self._on_taskmanager_lost(taskmanager_id, reason, now_ms)
            case _, (ev.ManifestAppended() | ev.ManifestFailed()) as answer:
                return self._on_append(answer, now_ms)
            case _, (ev.SplitsDiscovered() | ev.DiscoveryFailed()) as found:
                return self._on_discovery(found, now_ms)
            case _, ev.CancelRequested() if self.step not in (Step.FINISHING, Step.CANCELLING, Step.CLOSING):
                return self._cancel(now_ms)
            case _, ev.Tick():
                return self._on_tick(now_ms)
            case _, (
                (ev.StopRequested() | ev.SavepointRequested() | ev.CheckpointRequested())
                | (ev.RescaleRequested() | ev.UpgradeRequested())
            ) as request if self.step in _BEFORE_RUNNING or self._region is not None:
                self._waiting.add(request, now_ms)
            case _, (ev.StopRequested() | ev.SavepointRequested() | ev.CheckpointRequested()) as request:
                return self._request(request, now_ms)
            case _, (
                (ev.RescaleRequested() | ev.UpgradeRequested() | ev.UpgradeJudged())
                | (ev.ChangeRecorded() | ev.ChangeNotRecorded())
            ) as change:
                return self._apply(self.job_change.handle(change, self._change_context(now_ms)), now_ms)
        return []

    def _on_log(self, event: ev.LogRead, now_ms: int) -> list[cmd.Command]:
        deployment = self.deployment
        if deployment is None or deployment.recovered is not None:
            return []
        self.event_log.earlier = self.event_log.earlier or events_of_earlier_leaders(
            event.entries, self.identity.generation
        )
        if ended := ended_as(event.entries, self.identity.run_id):
            return self._finish_ended_run(JobStatus(ended), event, now_ms)
        try:
            recovered = plan_restore(self.graph, self.identity, event, deployed_before=self._deployments > 1)
        except PenstockError as error:
            return self._fail(Failure(now_ms, f"{type(error).__name__}: {error}"), now_ms, Cause.PERMANENT)
        self._restart.resumed(recovered.plan.restored, self.identity.run_id)
        if event.files:
            named = [entry.manifest for entry in event.entries]
            self.checkpointing.sweeper.listed(event.files, named, now_ms)
        self.event_log.add(now_ms, "recovery", recovered.text)
        self._steps.postpone(now_ms + recovered.start_timeout_ms)
        decided = self._apply(self.job_change.upgrading.log_read(recovered.plan, self._change_context(now_ms)), now_ms)
        if recovered.plan.finishing and recovered.plan.trial is not None and recovered.plan.trial.open:
            return decided  # the log is read again after the release: only then may the final output be published
        commands = decided + self._apply(self.checkpointing.begin(deployment, recovered.plan, now_ms), now_ms)
        return commands + deployment.log_read(recovered, now_ms)

    def _on_slots(self, slots: tuple[Slot, ...]) -> list[cmd.Command]:
        starting, job = self._starting, self.deployment
        missing = 0 if starting is None or job is None else max(0, job.needed - len(self._held.slots))
        used, surplus = slots[:missing], slots[missing:]  # requested by a deployment or a rescale that has ended
        self._held.add(used)
        begun = starting.slots_granted(used, self._held.slots) if starting is not None and used else []
        return [*begun, cmd.ReleaseSlots(surplus)] if surplus else begun

    def _on_report(self, worker_id: str, report: msg.WorkerReport, now_ms: int) -> list[cmd.Command]:
        """Handle a report; ignore that of a worker which is not of the present deployment."""
        deployment, checkpointing = self._deployed.of_worker(worker_id), self.checkpointing
        if (following := self.job_change.preparation.of_worker(worker_id)) is not None:
            return following.reported(worker_id, report, now_ms)
        if deployment is None:
            return []
        decided: Sequence[CheckpointCommand | ChangeDecision] = ()
        match report:
            case msg.CheckpointAcks(acks=acks):
                self._reports.at_barrier(acks, deployment.is_present)
                decided = checkpointing.acked(acks, now_ms)
            case msg.CheckpointDeclined():
                decided = checkpointing.declined(report, now_ms)
            case msg.OutputPublished():
                decided = checkpointing.published(report.committable_ids)
            case msg.SavepointPart() | msg.SavepointWritten():
                decided = checkpointing.copied(report)
            case msg.InputEnded(vertex_id=vertex_id, subtask=subtask, attempt=attempt):
                deployment.executions[vertex_id, subtask].input_ended = True
                decided = checkpointing.input_ended(ExecutionId(vertex_id, subtask, attempt), now_ms)
            case msg.WorkerReady():
                decided = deployment.worker_ready(worker_id, report.endpoint, report.pid)
            case msg.PendingResolved():
                decided = self._on_resolved(deployment, report, now_ms)
            case msg.TaskState() if deployment.is_present(report.vertex_id, report.subtask, report.attempt):
                decided = self._on_task_state(deployment, worker_id, report, now_ms)
            case msg.WorkerMetrics():
                for kind, line in self._reports.measured(worker_id, report, deployment.has_ended, now_ms):
                    self.event_log.add(now_ms, kind, line)
                decided = self.alignment.limits(self.metrics, self.deployment or deployment, now_ms)
        return self._apply(decided, now_ms)

    def _on_task_state(
        self, deployment: Deployment, worker_id: str, report: msg.TaskState, now_ms: int
    ) -> list[cmd.Command]:
        self._reports.at_state(report)
        commands = deployment.task_state(report.vertex_id, report.subtask, report.state, now_ms)
        if report.state != "FAILED" or self.step not in (Step.RUNNING, Step.STARTING):
            return commands
        task = f"{self.graph.vertex(report.vertex_id).name} ({report.subtask + 1})"
        failure = Failure(now_ms, with_taskmanager(report.error, deployment), report.detail, task, worker_id)
        return self._on_task_failed(failure, cause_of(report.error), now_ms)

    def _on_resolved(self, deployment: Deployment, report: msg.PendingResolved, now_ms: int) -> Sequence[cmd.Command]:
        published = [committable for committable in deployment.pending if committable.id in report.published]
        if published:
            self.event_log.add(now_ms, "recovery", f"published before the start: {pending_text(published)}")
        commands, problem = deployment.pending_resolved(report)
        self.checkpointing.set_pending(deployment.pending, None if self._region is None else self._region.sinks)
        if problem:
            return self._fail(Failure(now_ms, problem), now_ms, cause_of(report.error), self._restarting)
        return commands

    def _on_worker_lost(self, lost: ev.WorkerLost, now_ms: int) -> list[cmd.Command]:
        worker_id, deployment = lost.worker_id, self._deployed.of_worker(lost.worker_id)
        self._held.worker_exited(worker_id)
        if lost.refused is not None:
            self._held.refused(lost.refused)
        if (following := self.job_change.preparation.of_worker(worker_id)) is not None:
            following.lost(worker_id, lost.reason)
        if self._adoption is not None:
            self._adoption.lost(worker_id)
        what = "was lost" if lost.started else "could not start"
        call = self.slow_call_tracker.in_user_code(worker_id, now_ms)
        text = f"worker {worker_id} {what}: {lost.reason}{f'; {call}' if call else ''}"
        if deployment is None:
            return []
        if self.step in (Step.FINISHING, Step.CANCELLING):
            deployment.worker_lost(worker_id, "FINISHED" if self.step is Step.FINISHING else "CANCELED")
            return []
        if lost.refused is not None:
            self.event_log.add(now_ms, "slots", f"another slot is requested: {text}")
            return deployment.slot_refused(worker_id)
        slot = deployment.workers[worker_id].slot
        failure = Failure(now_ms, text, lost.detail, "", worker_id, slot.taskmanager_id)
        failed = self._deployed.vertices_of(worker_id)
        deployment.worker_lost(worker_id)
        return self._fail(failure, now_ms, Cause.USER_CODE if lost.by_user_code else cause_of(lost.reason), failed)

    def _on_task_failed(self, failure: Failure, cause: Cause, now_ms: int) -> list[cmd.Command]:
        """Fail; after a lost connection wait for its cause, the end of the worker at the other side."""
        if self._deployed.of_worker(lost_peer(failure.error)) is None:
            return self._fail(failure, now_ms, cause, self._deployed.vertices_of(failure.worker_id))
        self._lost_connections.add(failure, now_ms)
        return []

    def _on_taskmanager_lost(self, taskmanager_id: str, reason: str, now_ms: int) -> list[cmd.Command]:
        commands = self._apply(self.job_change.taskmanager_lost(taskmanager_id), now_ms)
        self._held.taskmanager_lost(taskmanager_id)
        for worker in [w for w in self._deployed.workers if w.slot.taskmanager_id == taskmanager_id]:
            text = f"its TaskManager {taskmanager_id} is gone: {reason}"
            commands += self._on_worker_lost(ev.WorkerLost(worker.worker_id, text), now_ms)
        if self._adoption is not None:
            self._adoption.taskmanager_lost(taskmanager_id)
        return commands

    def _on_append(self, event: ev.ManifestAppended | ev.ManifestFailed, now_ms: int) -> list[cmd.Command]:
        if event.tag == _END_TAG:
            self._end_written = True
            return []
        if event.tag == RELEASE_TAG:
            return self._apply(self.job_change.upgrading.release_answered(event, self._change_context(now_ms)), now_ms)
        if isinstance(event, ev.ManifestAppended):
            manifest = event.entry.manifest
            self.event_log.add(now_ms, "checkpoint", completed_text(event.tag))
            self.job_change.upgrading.checkpointed(manifest)
            self._restart.checkpointed()
            return self._apply(self.checkpointing.appended(event.entry, now_ms), now_ms)
        return self._apply(self.checkpointing.append_failed(event.tag, event.reason, now_ms), now_ms)

    def _on_discovery(self, event: ev.SplitsDiscovered | ev.DiscoveryFailed, now_ms: int) -> list[cmd.Command]:
        deployment = self._deployed.of_discovery(event.uid, event.epoch)
        if deployment is None:
            return []
        if isinstance(event, ev.SplitsDiscovered):
            return deployment.discovered(event.uid, event.splits)
        text = f"source {event.uid!r} cannot list its splits: {event.error}"
        self.event_log.add(now_ms, "discovery", text)
        if deployment.assigners[event.uid].complete:
            return []
        return self._fail(Failure(now_ms, text), now_ms, Cause.of(permanent=not self._ever_ran), self._restarting)

    def _on_tick(self, now_ms: int) -> list[cmd.Command]:
        if self.step is Step.STARTING and self._steps.is_due(now_ms):
            waiting = self.deployment.waiting_for() if self.deployment is not None else ""
            text = f"the job did not start in time; it is waiting for {waiting}"
            return self._fail(Failure(now_ms, text), now_ms)
        if (region := self._region) is not None and region.begun and region.is_due(now_ms):
            return self._fail(Failure(now_ms, f"not started in time: {region.text}"), now_ms, failed=self._restarting)
        if (lost := self._lost_connections.take_due(now_ms)) is not None:
            return self._fail(lost, now_ms, failed=self._deployed.vertices_of(lost.worker_id))
        running = self.deployment if self.step is Step.RUNNING else None
        commands = self._apply(self._waiting.overdue(now_ms, self.region_restart), now_ms)
        commands += running.tick(now_ms) if running is not None else []
        return commands + self._apply(self.checkpointing.tick(now_ms), now_ms)

    # --- the workers of an earlier leader --------------------------------------------------------------------------

    def _start(self, start: ev.Start, now_ms: int) -> list[cmd.Command]:
        if not start.attempts.newest or self.job_change.upgrading.phase is not None:
            self._steps.to(Step.WAITING, now_ms)
            return [cmd.WorkersDecided()]
        ids = self.identity.plan_ids(start.attempts.newest)
        self._adoption = Adoption(self.graph, ids, start.attempts, now_ms + start.reconcile_ms)
        self._steps.to(Step.RECONCILING, self._adoption.deadline_ms)
        self.status.to(JobStatus.RECONCILING, now_ms)
        return [cmd.ReadLog()]

    def _reconciling(self) -> Adoption:
        assert self._adoption is not None  # noqa: S101 - between RECONCILING and the next step
        return self._adoption

    def _on_log_of_workers(self, event: ev.LogRead, now_ms: int) -> list[cmd.Command]:
        self.event_log.earlier = events_of_earlier_leaders(event.entries, self.identity.generation)
        if ended := ended_as(event.entries, self.identity.run_id):
            commands = self._dismiss(now_ms)
            return commands + self._finish_ended_run(JobStatus(ended), event, now_ms)
        self._reconciling().log_read(self.identity, event)
        return []

    def _reconcile(self, now_ms: int) -> list[cmd.Command]:
        """Adopt the workers or restart the job, once that is decided."""
        adoption = self._reconciling()
        verdict, reason = adoption.decide(now_ms)
        if verdict is Verdict.WAIT:
            return []
        if verdict is Verdict.ADOPT and adoption.recovered is not None:
            return self._adopt(adoption, adoption.recovered, now_ms)
        self.event_log.add(now_ms, "reconcile", f"the job restarts under a new leader: {reason}")
        self.status.to(JobStatus.RESTARTING, now_ms)
        commands = self._dismiss(now_ms)
        self._steps.to(Step.WAITING, now_ms)
        return commands

    def _dismiss(self, now_ms: int) -> list[cmd.Command]:
        """Kill the workers of the earlier leader, and keep their slots."""
        adoption, self._adoption = self._reconciling(), None
        self.checkpointing.skip_ids(adoption.newest_checkpoint)
        self._held.add(adoption.slots)
        return [cmd.WorkersDecided(), *self._held.halt((*adoption.workers.values(), *adoption.idle), now_ms)]

    def _adopt(self, adoption: Adoption, recovered: Recovered, now_ms: int) -> list[cmd.Command]:
        self._adoption, self._deployments = None, self._deployments + 1
        self.checkpointing.skip_ids(adoption.newest_checkpoint)
        deployment = Deployment(self.graph, adoption.ids, self.graph.settings.checkpoint_root)
        self._deployed.job = deployment
        idle = adoption.release_idle()
        self._held.add(adoption.slots)
        self._steps.to(Step.STARTING, now_ms + START_TIMEOUT_MS)
        self._restart.resumed(recovered.plan.restored, self.identity.run_id)
        workers = counted(len(adoption.workers), "running worker")
        text = f"the new leader (generation {self.identity.generation}) has adopted {workers}"
        self.event_log.add(now_ms, "reconcile", text)
        commands = self._apply(self.job_change.upgrading.log_read(recovered.plan, self._change_context(now_ms)), now_ms)
        commands += deployment.adopt(recovered, adoption.workers.values(), adoption.tasks, now_ms)
        return [cmd.WorkersDecided(), *idle, *commands, *self.checkpointing.adopt(deployment, recovered.plan)]

    # --- regions ---------------------------------------------------------------------------------------------------

    @property
    def _starting(self) -> Deployment | None:
        """The deployment that is under way: of the job, or of regions."""
        return self.deployment if self.step is Step.STARTING else self._deployed.part

    @property
    def _restarting(self) -> Collection[str]:
        """The vertices of the regions that restart."""
        return self._region.vertices if self._region is not None else ()

    def _regions_to_restart(self, failed: Collection[str]) -> frozenset[str]:
        """Return the vertices that restart while the others continue; empty: the whole job restarts."""
        divisible = self.step is Step.RUNNING and not self.checkpointing.is_ending and self.job_change.idle
        if is_adaptive(self.graph) and len(self._held.slots) < required_slots(self.graph):
            return frozenset()  # it may continue with fewer slots
        return self._deployed.to_restart(failed) if divisible else frozenset()

    def _restart_regions(
        self, vertices: frozenset[str], failure: Failure, due_ms: int, now_ms: int
    ) -> list[cmd.Command]:
        """Kill the workers of some regions, and those that replaced them; start them again at `due_ms`."""
        region = self._deployed.restart(self._new_deployment(part_of(self.graph, vertices)), due_ms)
        for request in self.checkpointing.withdraw():
            self._waiting.add(request, now_ms)
        lost = {failure.worker_id, *(worker.worker_id for worker in region.replaced)}
        commands = self._apply(self.checkpointing.pause(lost, failure.error, now_ms), now_ms)
        self._reports.part_halted(region.part.executions, lost)
        self._lost_connections.forget(lost)
        text = f"{region.name} restarts in {max(0, due_ms - now_ms)} ms; the other regions continue"
        self.event_log.add(now_ms, "restart", text)
        return commands + self._held.halt(region.replaced, now_ms)

    def _on_log_of_region(self, region: RegionRestart, event: ev.LogRead, now_ms: int) -> list[cmd.Command]:
        if not region.begun or region.part.recovered is not None:
            return []
        try:
            recovered = region.own(plan_restore(self.graph, self.identity, event, deployed_before=True))
        except PenstockError as error:
            return self._fail(Failure(now_ms, f"{type(error).__name__}: {error}"), now_ms, Cause.PERMANENT)
        if not self.checkpointing.knows_newest(recovered.plan):
            # its append had no known outcome: the other regions have continued as if it had failed
            text = "a checkpoint is in the log whose append was reported as failed: all regions restart from it"
            return self._fail(Failure(now_ms, text), now_ms)
        self.event_log.add(now_ms, "recovery", f"{region.name}: {recovered.text}")
        self.checkpointing.restored_part(recovered.plan.restored, region.vertices, now_ms)
        return region.log_read(recovered, now_ms)

    def _advance_region(self, deployment: Deployment, region: RegionRestart, now_ms: int) -> list[cmd.Command]:
        """Begin the restart of regions, or end it, when its time has come."""
        if not region.begun:
            if not self._held.may_start(now_ms) or not region.is_due(now_ms):
                return []
            used = {worker.slot for worker in deployment.workers.values()}
            self.event_log.add(now_ms, "deploy", f"restart {self.restarts}, {region.name}")
            free = [slot for slot in self._held.slots if slot not in used]
            return region.begin(deployment.attempts, free, now_ms)
        if not region.running:
            return []
        self._deployed.join()
        self.event_log.add(now_ms, "running", f"{region.name}: {counted(len(region.part.executions), 'subtask')}")
        return deployment.send_splits() + self._resume(now_ms)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _deploy(self, now_ms: int) -> list[cmd.Command]:
        first = self._deployments == 0
        deployment = self._deployed.job = self._new_deployment(self.graph)
        self._steps.to(Step.STARTING, now_ms + START_TIMEOUT_MS)
        self._reports.deployed()
        self.event_log.add(now_ms, "deploy", f"its workers start; restarts so far: {self.restarts}")
        prepared, unused = self._held.take_prepared(deployment.needed)
        killed = self._held.halt(unused, now_ms)
        surplus = self._held.trim(deployment.needed)
        begun = deployment.begin(self._held.slots, wait=self.job_change.adapting.requests_wait, prepared=prepared)
        record = cmd.RecordAttempt(deployment.attempts)
        return [cmd.ReadLog(list_files=first), record, *killed, *surplus, *begun]

    def _new_deployment(self, graph: JobGraph) -> Deployment:
        """Return the next deployment of the job or of a part of it."""
        number, self._deployments = self._next_attempt, self._deployments + 1
        return Deployment(graph, self.identity.plan_ids(number), self.graph.settings.checkpoint_root)

    @property
    def _next_attempt(self) -> int:
        return (self.identity.generation << 16) + self._deployments

    def _proceed(self, now_ms: int) -> list[cmd.Command]:
        """Leave the step if its condition is met, then perhaps the next one."""
        commands: list[cmd.Command] = []
        before: Step | None = None
        while before is not self.step:
            before = self.step
            commands += self._leave_step(now_ms)
            commands += self._deliver(now_ms)
        return commands

    def _leave_step(self, now_ms: int) -> list[cmd.Command]:
        """Return the commands of the transition that is possible now; without one, no commands."""
        deployment, held, recording = self.deployment, self._held, self.job_change.recording
        due = self._steps.is_due(now_ms) or self.job_change.adapting.waits  # each event may end the wait for slots
        match self.step:
            case Step.RECONCILING:
                return self._reconcile(now_ms)
            case Step.WAITING if held.may_start(now_ms) and due:
                before = self.job_change.start(self._change_context(now_ms))
                return self._deploy(now_ms) if before is None else self._apply(before, now_ms)
            case Step.CHANGING if not self.job_change.unrecorded and held.may_start(now_ms):
                self._steps.to(Step.WAITING, now_ms)
            case Step.STARTING if deployment is not None and deployment.running and deployment.assigned:
                return self._run(deployment, now_ms)
            case Step.STARTING if deployment is not None and deployment.final_checkpoint is not None:
                return self._resume_ending(deployment.final_checkpoint, now_ms)
            case Step.RUNNING if deployment is not None and self._region is not None:
                return self._advance_region(deployment, self._region, now_ms)
            case Step.FINISHING if not recording and self._tasks_ended(now_ms):
                return self._close(JobStatus.FINISHED, now_ms)
            case Step.CANCELLING if not recording and self._tasks_ended(now_ms):
                return self._close(JobStatus.CANCELED, now_ms)
            case Step.CLOSING if self._end_written and not recording and held.may_start(now_ms):
                return self._end(now_ms)
        return []

    def _run(self, deployment: Deployment, now_ms: int) -> list[cmd.Command]:
        self._steps.to(Step.RUNNING)
        self._ever_ran = True
        self.status.to(JobStatus.RUNNING, now_ms)
        self.event_log.add(now_ms, "running", f"{len(deployment.executions)} subtasks")
        return self._apply(self.job_change.rescaling.running(), now_ms) + self._resume(now_ms)

    def _resume(self, now_ms: int) -> list[cmd.Command]:
        """Take checkpoints and requests again: all subtasks run."""
        commands = self._apply(self.checkpointing.start(now_ms), now_ms)
        for request in self._waiting.take():
            commands += self._dispatch(request, now_ms)
            commands += self._deliver(now_ms)
        return commands

    def _resume_ending(self, last: Manifest, now_ms: int) -> list[cmd.Command]:
        """Copy a final checkpoint that is published; no task runs."""
        self._steps.to(Step.RUNNING)
        self._waiting.drop(last.request)  # answered when the ending resumes
        commands = self._apply(self._waiting.refuse("the job is about to end"), now_ms)
        ending = self.checkpointing.resume_ending(
            last, now_ms, for_change=self.job_change.upgrading.owns_checkpoint(last)
        )
        return commands + self._apply(ending, now_ms)

    def _tasks_ended(self, now_ms: int) -> bool:
        """Return whether no task is open, or the time to wait for them is over."""
        deployment = self.deployment
        is_open = deployment is not None and deployment.deployed and deployment.open > 0
        return not is_open or self._steps.is_due(now_ms)

    def _end(self, now_ms: int) -> list[cmd.Command]:
        self._steps.to(Step.DONE)
        self.status.to(self._end_state, now_ms)
        self.event_log.add(now_ms, "end", self._end_state.value)
        return [cmd.ReleaseSlots(), cmd.JobTerminal(self._end_state.value, self.error)]

    def _fail(
        self, failure: Failure, now_ms: int, cause: Cause = Cause.TRANSIENT, failed: Collection[str] = ()
    ) -> list[cmd.Command]:
        """Restart the regions of the vertices in `failed` if the others can continue, else the job, or end it."""
        if self.step not in (Step.STARTING, Step.RUNNING):
            return []
        if (deployment := self._deployed.of_worker(failure.worker_id)) is not None:
            slot = deployment.workers[failure.worker_id].slot
            failure = replace(failure, taskmanager_id=slot.taskmanager_id)
        self.failures.appendleft(replace(failure, run_id=self.identity.run_id))
        self.error = failure.error
        self.event_log.add(now_ms, "failure", f"{failure.error} {failure.task}".strip())
        regions = self._regions_to_restart(failed)
        if regions and self._region is not None and not self._region.begun and cause is Cause.TRANSIENT:
            return self._restart_regions(regions, failure, self._region.deadline_ms, now_ms)  # counted with the first
        delay = self._restart.on_failure(cause, now_ms, self._rand.fraction())
        if regions and delay is not None:
            self.restarts += 1
            return self._restart_regions(regions, failure, now_ms + delay, now_ms)
        commands = self._halt(failure.error, now_ms)
        if self.job_change.upgrading.failed(failure.error, final=delay is None):
            # A version on trial does not end the job, and neither does a savepoint that cannot be written. After the
            # decision the old or the new version continues.
            delay = _FORCED_RESTART_DELAY_MS if delay is None else delay
        if delay is None:
            self.status.to(JobStatus.FAILING, now_ms)
            return commands + self._close(JobStatus.FAILED, now_ms)
        self.restarts += 1
        self.status.to(JobStatus.RESTARTING, now_ms)
        self._steps.to(Step.WAITING, now_ms + delay)
        self.event_log.add(now_ms, "restart", f"in {delay} ms")
        return commands

    def _halt(self, reason: str, now_ms: int) -> list[cmd.Command]:
        """End the deployment: kill its workers. Anything they still do is fenced or repeatable."""
        return [*self._apply(self._waiting.refuse(reason), now_ms), *self._undeploy(reason, now_ms)]

    def _undeploy(self, reason: str, now_ms: int) -> list[cmd.Command]:
        commands = self._apply(self.checkpointing.halt(reason, now_ms), now_ms)
        workers = self._deployed.workers
        if self.deployment is not None:
            self.last_workers = (*workers, *self.deployment.lost) or self.last_workers
        self._deployed, self._lost_connections = Deployments(), LostConnections()
        self._reports.halted()
        commands += self._apply(self.job_change.halted(reason), now_ms) + self._held.halt(workers, now_ms)
        return [*commands, cmd.CloseEnumerators()]

    def _cancel(self, now_ms: int) -> list[cmd.Command]:
        self.status.to(JobStatus.CANCELLING, now_ms)
        self.event_log.add(now_ms, "cancel", "requested by a user")
        commands = self._dismiss(now_ms) if self._adoption is not None else []
        commands += self._held.halt(self._deployed.abandon(), now_ms)
        commands += self._apply(self.checkpointing.halt("the job was cancelled", now_ms), now_ms)
        commands += self._apply(self.job_change.halted("the job was cancelled"), now_ms)
        commands += self._apply(self.job_change.upgrading.closed("the job was cancelled"), now_ms)
        self._steps.to(Step.CANCELLING, now_ms + _EXIT_TIMEOUT_MS)
        return commands + self._broadcast(
            msg.CancelTasks(job_id=self.identity.job_id, generation=self.identity.generation)
        )

    def _finish(self, now_ms: int) -> list[cmd.Command]:
        self._steps.to(Step.FINISHING, now_ms + _EXIT_TIMEOUT_MS)
        return self._broadcast(msg.FinishTasks(job_id=self.identity.job_id, generation=self.identity.generation))

    def _broadcast(self, order: msg.WorkerCommand) -> list[cmd.Command]:
        if self.deployment is None or not self.deployment.deployed:
            return []
        return send_to_all(self.deployment.workers.values(), order)

    def _change_context(self, now_ms: int) -> ChangeContext:
        running = self.step is Step.RUNNING and self.deployment is not None and self.deployment.running
        held, slow = tuple(self._held.slots), self.slow_call_tracker.longest(now_ms)
        own, state = (self.graph, self.identity, self.step), self.status.state.value
        return ChangeContext(*own, state, running, held, self.checkpointing, now_ms, self._next_attempt, slow)

    def _deliver(self, now_ms: int) -> list[cmd.Command]:
        """Pass on the results of the change's checkpoint, after all else that follows from the event."""
        commands: list[cmd.Command] = []
        while self._results:
            result = self._results.popleft()
            commands += self._apply(self.job_change.checkpoint_ended(result, self._change_context(now_ms)), now_ms)
        return commands

    def _stop_for_change(self, step: StopForChange, now_ms: int) -> list[cmd.Command]:
        """End the deployment for a change that is being recorded; user requests wait until the job runs again."""
        for request in self.checkpointing.withdraw():
            self._waiting.add(request, now_ms)
        commands = self._undeploy(step.reason, now_ms)
        if self._deployments:
            self.status.to(JobStatus.RESTARTING, now_ms)
        self._steps.to(Step.CHANGING)
        return [*commands, step.record]

    def _adopt_definition(self, step: AdoptDefinition) -> None:
        self.graph, self.identity = step.graph, step.identity
        self.alignment = WatermarkAlignment(self.graph)
        self._reports.redefined(self.graph)
        self._restart = RestartPolicy(self.graph.settings.restart, proven=self._restart.proven)
        self._held.adopt(step.slots, step.workers, required_slots(step.graph))

    def _close(self, state: JobStatus, now_ms: int) -> list[cmd.Command]:
        uncommitted = (tuple(self.checkpointing.pending.values()), self.checkpointing.pending_as_of)
        commands = self._apply(self.checkpointing.close(f"the job is {state}"), now_ms)
        commands += self._apply(self.job_change.upgrading.closed(f"the job is {state}"), now_ms)
        commands += self._halt(f"the job is {state}", now_ms)
        self._steps.to(Step.CLOSING)
        self._end_state, self._end_written = state, False
        entry = end_entry(self.graph, self.identity, state.value, uncommitted, now_ms)
        return [*commands, cmd.AppendManifest(_END_TAG, entry)]

    def _finish_ended_run(self, state: JobStatus, log: ev.LogRead, now_ms: int) -> list[cmd.Command]:
        """Finish a run whose end an earlier leader wrote to the log but not to the job record."""
        self.event_log.add(now_ms, "recovery", f"the run has ended already: {state}")
        self.status.to({"CANCELED": JobStatus.CANCELLING, "FAILED": JobStatus.FAILING}.get(state, state), now_ms)
        self._steps.to(Step.CLOSING)
        self._end_state, self._end_written = state, True
        stopped = self.checkpointing.stopped = stop_of(log.entries, self.identity.run_id)
        if stopped is not None:
            self._waiting.drop(stopped.request_id)  # a repeated stop: `stopped` is its answer
        return [*([stopped] if stopped is not None else []), *self._halt(f"the job is {state}", now_ms)]

    def _request(self, event: ev.BarrierRequested, now_ms: int) -> list[cmd.Command]:
        if obstacle := self.job_change.upgrading.obstacle(event):
            return [cmd.OperationEnded(event.request_id, error=obstacle)]
        kind, target = ev.barrier_of(event)
        self.event_log.add(now_ms, "request", f"{kind} {target.uri}".strip())
        return self._apply(self.checkpointing.request(event, now_ms), now_ms)

    def _apply(self, decided: Sequence[CheckpointCommand | ChangeDecision], now_ms: int) -> list[cmd.Command]:
        commands: list[cmd.Command] = []
        for command in decided:
            match command:
                case CheckpointFailed(tag, reason):
                    self.event_log.add(now_ms, "checkpoint", failed_text(tag, reason))
                case JobShouldFail(reason):
                    commands += self._fail(Failure(now_ms, reason), now_ms)
                case JobCanFinish():
                    commands += self._finish(now_ms)
                case ChangeCheckpoint():
                    self._results.append(command)
                case Note(kind, text):
                    self.event_log.add(now_ms, kind, text)
                case StopForChange():
                    commands += self._stop_for_change(command, now_ms)
                case PostponeStart(at_ms):
                    self._steps.postpone(at_ms)
                case AdoptDefinition():
                    self._adopt_definition(command)
                case PauseCompactions(paused):
                    commands += self._broadcast(pause_order(self.identity, paused=paused))
                case KillPrepared(workers):
                    commands += self._held.halt(workers, now_ms)
                case _:
                    commands.append(command)
        return commands

    def _next_wake(self) -> int | None:
        recorded = self.step is Step.CHANGING and not self.job_change.unrecorded
        exit_ms = self._held.wake_ms() if recorded or self.step in (Step.WAITING, Step.CLOSING) else None
        times = [
            self.checkpointing.wake_ms(),
            self.job_change.wake_ms(),
            self._waiting.wake_ms(),
            exit_ms if exit_ms is not None else self._steps.deadline_ms,
        ]
        if self.step is Step.RUNNING and self.deployment is not None:
            times.append(self.deployment.wake_ms())
        if self.step in (Step.STARTING, Step.RUNNING):
            times.append(self._lost_connections.wake_ms())
        if self._region is not None:
            times.append(self._region.wake_ms(self._held.wake_ms()))
        return min((t for t in times if t is not None), default=None)
