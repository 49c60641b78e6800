"""The deployment of a job, and the restart of some of its regions while the others continue; pure.

`Deployments` is a member of `master.job_master`; the decision record 3 has the protocol. A restart waits until the
killed workers have exited, then deploys its part of the graph, which joins the deployment of the job when it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from penstock.graph.failover import failover_regions
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.deployment import START_TIMEOUT_MS, Deployment, Recovered, Worker, publishing_sinks
from penstock.jobmanager.messages.commands import Command, ReadLog, RecordAttempt
from penstock.jobmanager.messages.placement import Slot


def vertices_to_restart(deployment: Deployment, failed: Collection[str]) -> frozenset[str]:
    """Return the vertices of all regions that hold a failed one; empty if that is the whole job, or none failed."""
    placement = {where: execution.worker_id for where, execution in deployment.executions.items()}
    regions = failover_regions(deployment.graph, placement)
    found = frozenset(vertex for region in regions if not set(region).isdisjoint(failed) for vertex in region)
    return found if len(found) < len(deployment.graph.vertices) else frozenset()


class RegionRestart:
    """The regions that restart together, from the failure until they run again."""

    def __init__(self, part: Deployment, replaced: Sequence[Worker], due_ms: int) -> None:
        """Wait until `due_ms`, then deploy `part`; `replaced` are the workers to be killed."""
        self.part = part
        self.replaced = tuple(replaced)
        self.vertices = frozenset(vertex.id for vertex in part.graph.vertices)
        #: Until `begin`: when it may begin; then: when it must run.
        self.deadline_ms = due_ms
        self.begun = False

    @property
    def name(self) -> str:
        """The regions in words: by their sources."""
        return "region of " + ", ".join(vertex.name for vertex in self.part.graph.vertices if vertex.is_source)

    @property
    def text(self) -> str:
        """The regions, and the missing step of their restart."""
        what = self.part.waiting_for() if self.begun else "its old workers to exit, and the restart delay"
        return f"{self.name} restarts: waiting for {what}"

    @property
    def running(self) -> bool:
        """Whether all its subtasks run and know their splits."""
        return self.part.running and self.part.assigned

    @property
    def sinks(self) -> frozenset[str]:
        """The uids of its sinks that publish under a permit."""
        return frozenset(publishing_sinks(self.part.graph))

    def begin(self, attempts: Attempts, free: Iterable[Slot], now_ms: int) -> list[Command]:
        """Deploy the part into these slots of the job and others; all appends that have begun are in the log read.

        `attempts`: of the whole job, with this part.
        """
        self.begun, self.deadline_ms = True, now_ms + START_TIMEOUT_MS
        return [ReadLog(), RecordAttempt(attempts), *self.part.begin(free)]

    def own(self, recovered: Recovered) -> Recovered:
        """Return the recovery decision without the output of other regions, whose sinks publish it."""
        pending = tuple(output for output in recovered.plan.pending if output.uid in self.sinks)
        return replace(recovered, plan=replace(recovered.plan, pending=pending))

    def log_read(self, own: Recovered, now_ms: int) -> list[Command]:
        """Handle the part's recovery decision."""
        self.deadline_ms = now_ms + own.start_timeout_ms
        return self.part.log_read(own, now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Return whether the deadline has passed."""
        return now_ms >= self.deadline_ms

    def wake_ms(self, exits_ms: int | None) -> int:
        """Return when time alone takes it further; `exits_ms`: when workers that have not exited are given up."""
        return self.deadline_ms if self.begun or exits_ms is None else exits_ms


class Deployments:
    """The deployment of a job, and that of regions which restart."""

    def __init__(self) -> None:
        """Start without a deployment."""
        self.job: Deployment | None = None
        #: While the job is RUNNING: the regions that restart.
        self.region: RegionRestart | None = None

    @property
    def all(self) -> tuple[Deployment, ...]:
        """Both, as far as they exist."""
        part = self.region.part if self.region is not None else None
        return tuple(deployment for deployment in (part, self.job) if deployment is not None)

    @property
    def part(self) -> Deployment | None:
        """The deployment of the regions that restart, once it has begun."""
        return self.region.part if self.region is not None and self.region.begun else None

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers of both."""
        return tuple(worker for deployment in self.all for worker in deployment.workers.values())

    def of_worker(self, worker_id: str) -> Deployment | None:
        """Return the deployment of a worker; None for one that was killed, or of no deployment."""
        return next((deployment for deployment in self.all if worker_id in deployment.workers), None)

    def of_discovery(self, uid: str, epoch: int) -> Deployment | None:
        """Return the deployment that waits for this answer of an enumerator."""
        return next((deployment for deployment in self.all if deployment.awaits_splits(uid, epoch)), None)

    def vertices_of(self, worker_id: str) -> Collection[str]:
        """Return the vertices that fail with a worker; none for an unknown one."""
        if self.region is not None and worker_id in self.region.part.workers:
            return self.region.vertices
        return self.job.vertices_of(worker_id) if self.job is not None else ()

    def to_restart(self, failed: Collection[str]) -> frozenset[str]:
        """Return the vertices that restart after this failure; empty if those are all of the job."""
        if self.job is None or not failed:
            return frozenset()
        restarting = self.region.vertices if self.region is not None else frozenset()
        return vertices_to_restart(self.job, restarting.union(failed))

    def restart(self, part: Deployment, due_ms: int) -> RegionRestart:
        """Restart the vertices of `part`, which include those of a restart before."""
        before = tuple(self.region.part.workers.values()) if self.region is not None else ()
        earlier = self.job.replace_part(part) if self.job is not None else ()
        self.region = RegionRestart(part, [*before, *earlier], due_ms)
        return self.region

    def abandon(self) -> tuple[Worker, ...]:
        """Give up a restart, if there is one; return its workers, to be killed."""
        workers = tuple(self.region.part.workers.values()) if self.region is not None else ()
        self.region = None
        return workers

    def join(self) -> None:
        """End the restart: its regions run."""
        if self.job is not None and self.region is not None:
            self.job.join(self.region.part)
        self.region = None
