"""The simulated world: the engine's own deciders, tasks and operators under one seeded schedule, and its faults.

`World(seed, plan, swarm).execute()` runs the job through its phases, heals after a while, waits for the end and
compares the output.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from tests.sim import connectors, fibers
from tests.sim.checkpoint_requests import CheckpointRequests
from tests.sim.checks import Checks
from tests.sim.election import Candidate, keep_lease
from tests.sim.faults import Swarm
from tests.sim.fibers import Fiber
from tests.sim.kafka_log import SimKafka
from tests.sim.leader import Leader
from tests.sim.local_state import local_state
from tests.sim.nemesis import Nemesis
from tests.sim.runs import Result, Run
from tests.sim.scheduler import Scheduler
from tests.sim.upgrades import WrongVersions
from tests.sim.worker import TaskManager, Worker
from tests.sim.workload import OUTPUT, Plan

from penstock.checkpoint.leader_lease import LEASE, LeaderLease, released, write_lease
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.errors import StorageError
from penstock.graph.rescale import rescaled
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.job_store import StartOptions
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.network.simulated_network import MemoryTransport, WorkerPair

_MAX_MS = 120_000.0
_MANAGERS = 2
_JOBMANAGERS = 2

# Modules live as long as the process: the collection of a world's cycles does not look at them.
gc.freeze()


class World:
    """One simulated history."""

    def __init__(
        self, seed: int, plan: Plan, swarm: Swarm, *, faults_for_ms: float = 2_000, max_steps: int = 40_000
    ) -> None:
        self.plan = plan
        self.swarm = swarm
        self.scheduler = Scheduler(seed)
        #: Whether savepoints have the files of their checkpoints as they are.
        self.native = seed % 2 == 0
        self.random = self.scheduler.random
        self.clock = self.scheduler.clock
        self.checks = Checks(self)
        self.kafka = SimKafka()
        self.transport = MemoryTransport(frame_limit=self.random.choice([0, 0, 200]))
        self.store = MemoryStore.named(f"sim-{seed}")
        self.root = self.store.uri
        self.managers: list[TaskManager] = []
        self.leader: Leader | None = None
        self.run: Run | None = None
        self.checkpoint_requests = CheckpointRequests(self)
        self.wrong_versions = WrongVersions(self)
        #: Partitions that do not have all their rows yet.
        self.unproduced: set[tuple[str, int]] = set()
        self.nemesis = Nemesis(self)
        self.store_up = True
        self._faults_for_ms, self._max_steps = faults_for_ms, max_steps
        self._names = 0
        #: TaskManagers that were drained and ended while the job was deployed.
        self.drained = 0
        self._phases = iter(plan.phases)
        self._savepoint = ""
        self._finished = False
        self._fibers: dict[str, set[Fiber]] = {}
        self._pumping: set[WorkerPair] = set()
        self._standbys = 0
        #: Candidates that wait to lead, by owner.
        self.standbys: dict[str, Candidate] = {}
        #: Lease of each leader, as it has confirmed it, and when.
        self.leads: dict[str, tuple[LeaderLease, float]] = {}
        #: Times in which a process was paused (owner) or a path broken (standby, leader).
        self.broken: dict[str | tuple[str, str], list[tuple[float, float]]] = {}
        #: Whether the end of a JobManager's process is seen at once by the others, as on one machine.
        self._one_machine = self.random.random() < 0.5
        #: Newest version of the store: a refused put makes none.
        self._written = 0

    def execute(self) -> Result:
        """Run to the end and compare.

        Raises:
            SimulationError: an invariant broke, the run did not end, or the output is wrong.
        """
        self.swarm.tell = self.scheduler.note
        with self._installed(), local_state(self.swarm) as self.folder:
            self.kafka.create_topic(OUTPUT, 2)
            for topic, partitions in self.plan.topics.items():
                self.kafka.create_topic(topic, len(partitions))
                for partition, rows in enumerate(partitions):
                    self._produce((topic, partition), rows, 0)
            for _ in range(_MANAGERS):
                self.start_taskmanager()
            for _ in range(_JOBMANAGERS):
                self.start_standby()
            self._next_run()
            self.nemesis.begin()
            self.scheduler.at(self._faults_for_ms, "heal", self._heal)
            self.scheduler.at(50, "user", self._user)
            self.scheduler.after.append(self._pump_links)
            self.scheduler.run(lambda: self._finished, max_steps=self._max_steps, max_ms=_MAX_MS)
            rows = self.checks.output()
        self.swarm.seen("transaction-fenced", self.kafka.aborted)
        scheduler = self.scheduler
        return Result(
            scheduler.seed, self.swarm.counts, scheduler.steps, self.clock.elapsed_ms, scheduler.fingerprint, rows
        )

    @contextmanager
    def _installed(self) -> Iterator[None]:
        self.store.fault = self._on_store
        self.kafka.on_commit = self.checks.committing
        connectors.use(self.kafka, self._on_publish)
        try:
            yield
        finally:
            MemoryStore._named.pop(self.store.uri.removeprefix("memory://"), None)
            for fiber in [f for group in self._fibers.values() for f in group]:
                fiber.kill()
            for manager in self.managers:
                if not manager.dead:
                    manager.copies.close()

    def next_name(self, kind: str) -> str:
        """A name never used before."""
        self._names += 1
        return f"{kind}-{self._names}"

    # --- processes ----------------------------------------------------------------------------------------------------

    def spawn(
        self,
        owner: str,
        label: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
        delay_ms: float,
    ) -> None:
        """Run blocking work of a process in a fiber, then `done`."""
        fiber = Fiber(owner, work)
        self._fibers.setdefault(owner, set()).add(fiber)

        def go() -> None:
            fiber.resume()
            if not fiber.finished:
                self.scheduler.at(fiber.delay_ms, f"{label}: {fiber.why}", go, owner=owner)
                return
            self._fibers.get(owner, set()).discard(fiber)
            if not fiber.killed:
                done(fiber.result, fiber.error)

        self.scheduler.at(delay_ms, label, go, owner=owner)

    def end_process(self, owner: str) -> None:
        """Nothing more of this incarnation happens; what it is in the middle of stays half done."""
        self.scheduler.kill(owner)
        for fiber in self._fibers.pop(owner, ()):
            fiber.killed = True
            if fiber is not fibers.current():
                self.scheduler.at(0, "unwind", fiber.kill)

    def pause(self, owner: str, duration_ms: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self._break(owner, duration_ms)
        self.scheduler.hold(owner)
        self.scheduler.at(duration_ms, f"resume {owner}", lambda: self.scheduler.release(owner))

    def start_taskmanager(self) -> None:
        """A new TaskManager comes up."""
        self._names += 1
        manager = TaskManager(self, self._names, self.plan.slots * self.plan.regions)
        self.managers.append(manager)
        self.scheduler.at(self.random.uniform(0, 10), "dial", manager.connect, owner=manager.owner)

    def kill_taskmanager(self, manager: TaskManager) -> None:
        """Kill one; another takes its place, perhaps after a job that follows the slots has started without it."""
        manager.kill()
        self.managers.remove(manager)
        longest_ms = 1200 if "adaptive_scheduler" in self.plan.settings else 200
        self.scheduler.at(self.random.uniform(5, longest_ms), "new TaskManager", self.start_taskmanager)

    def drain(self) -> None:
        """Drain a TaskManager that the job uses, and end it when nothing uses it any longer."""
        used = [manager for manager in self.managers if manager.session is not None and manager.workers]
        if used:
            self._drain(used[0])
        else:
            self.scheduler.at(20, "drain", self.drain)

    def _drain(self, manager: TaskManager) -> None:
        """Ask the present leader repeatedly: a new leader has no record of a drain."""
        leader = self.leader

        def ask() -> None:
            if manager.dead or leader is None or not leader.drain(manager.name):
                return
            if manager.workers:
                self.scheduler.fail(f"{manager.name} ends with workers")
            self.drained += leader.master is not None and leader.master.deployment is not None
            self.kill_taskmanager(manager)

        if manager.dead:
            return
        if leader is not None and leader.ready:
            self.scheduler.at(0.1, "drain", ask, owner=leader.owner)
        self.scheduler.at(20, "drain", lambda: self._drain(manager))

    def worker_of(self, owner: str) -> Worker | None:
        """The live worker with that owner."""
        return next((w for m in self.managers for w in m.workers.values() if w.owner == owner), None)

    # --- leaders ------------------------------------------------------------------------------------------------------

    def start_standby(self) -> None:
        """A new JobManager comes up."""
        self._standbys += 1
        candidate = Candidate(self, self._standbys)
        self.standbys[candidate.owner] = candidate

    def kill_standby(self, owner: str) -> None:
        """Kill a standby; another process takes its place."""
        del self.standbys[owner]
        self.end_process(owner)
        self.scheduler.at(self.random.uniform(5, 150), "new JobManager", self.start_standby)

    @property
    def leader_owner(self) -> str:
        """The process that leads the job; empty: none."""
        return "" if self.leader is None else self.leader.owner

    def break_path(self, standby: str, leader: str, duration_ms: float) -> None:
        """Lose the probes of a standby; the leader renews its lease."""
        self._break((standby, leader), duration_ms)

    def _break(self, what: str | tuple[str, str], duration_ms: float) -> None:
        now_ms = self.clock.elapsed_ms
        self.broken.setdefault(what, []).append((now_ms, now_ms + duration_ms))

    def broke(self, what: str | tuple[str, str], since_ms: float, until_ms: float) -> bool:
        """Whether the process was paused, or the path broken, at any time of an interval."""
        return any(begin <= until_ms and end >= since_ms for begin, end in self.broken.get(what, ()))

    def probe(self, leader: str, answered: Callable[[tuple[int, int], float], None], standby: str) -> None:
        """Bring a question to a leader, and its answer back, unless the path is broken."""

        def passes() -> bool:
            now_ms = self.clock.elapsed_ms
            return not self.broke((standby, leader), now_ms, now_ms)

        def answer() -> None:
            if leader in self.leads and passes():
                lease, at_ms = self.leads[leader]
                lead, age_ms = (lease.generation, lease.renewals), self.clock.elapsed_ms - at_ms
                came = partial(answered, lead, age_ms)
                self.scheduler.at(self.random.uniform(0.05, 0.5), "probe answered", came, owner=standby)

        if passes():
            self.scheduler.at(self.random.uniform(0.05, 0.5), "probe", answer, owner=leader)

    def exit_is_known(self, owner: str) -> bool:
        """Whether a standby sees that this process has ended."""
        return self._one_machine and self.scheduler.is_dead(owner)

    def elected(self, candidate: Candidate, held: LeaderLease) -> None:
        """A standby leads: the job's present leader, if there is one, is superseded."""
        run = self.run
        if run is None or run.state:
            self.scheduler.at(5, "wait for a run", partial(self.elected, candidate, held), owner=candidate.owner)
            return
        if held.generation < self.checks.newest_generation:
            self.kill_standby(candidate.owner)  # paused too long: its next renewal would end it
            return
        self.checks.leads(candidate.owner, held.generation)
        self.standbys.pop(candidate.owner, None)
        if self.leader is not None:
            self.swarm.seen("leader-superseded")
            self._lose(self.leader)
        self.leader = Leader(self, run, candidate.owner, held.generation)
        keep_lease(self, self.leader, held)
        self.leader.begin()

    def kill_leader(self, leader: Leader) -> None:
        """Kill the JobManager; a standby takes over, and another process becomes a standby."""
        self._end(leader)
        self._lose(leader)

    def pause_leader(self, leader: Leader) -> None:
        """Stop the JobManager: TaskManagers hang up, and if that takes long, a standby takes over meanwhile."""
        self.pause(leader.owner, self.random.uniform(80, 1500))
        self._hang_up()

    def hand_over(self, leader: Leader) -> None:
        """Close the leader and release its lease: a standby takes over at once, and it becomes a standby."""
        held, _renewed_ms = self.leads[leader.owner]
        self.kill_leader(leader)
        release = lambda: write_lease(self.store, released(held))
        self.spawn(f"{leader.owner} closing", "release the lead", release, lambda _result, _error: None, 0.1)

    def _end(self, leader: Leader) -> None:
        if not leader.dead:
            leader.die()
            self.scheduler.at(self.random.uniform(5, 150), "new JobManager", self.start_standby)

    def leader_refused(self, leader: Leader, error: BaseException) -> None:
        """It could not take the job: try again."""
        self.scheduler.note(f"{leader.owner} did not start: {type(error).__name__}: {error}")
        self._end(leader)
        self._lose(leader)

    def stepped_down(self, leader: Leader) -> None:
        """It has found a newer generation."""
        if self.checks.newest_leader == leader.owner:
            self.scheduler.fail("the newest leader has lost its leadership")
        self._lose(leader)
        self.swarm.seen("zombie-leader-refused")
        self._end(leader)

    def _lose(self, leader: Leader) -> None:
        """The job has no leader but the next one."""
        if leader is self.leader:
            self.leader = None
            self._hang_up()

    def _hang_up(self) -> None:
        """TaskManagers lose their connection to the leader and look for one again."""
        for manager in self.managers:
            manager.disconnect(again_ms=self.random.uniform(1, 120))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _next_run(self) -> None:
        phase = next(self._phases, None)
        if phase is None:
            self._finished = True
            return
        before = self.run
        start = StartOptions()
        if phase.from_savepoint and self._savepoint:
            start = StartOptions(from_uri=self._savepoint)
            self.swarm.seen("from-savepoint")
        if before is not None and before.phase.parallelism != phase.parallelism:
            self.swarm.seen("rescaled")
        graph = self.plan.graph(phase, self.root)
        number = self.next_name("run")
        ask = self.clock.elapsed_ms + self.random.uniform(100, 900)
        self.run = Run(graph, start, f"{number}-{'0' * 24}", number, phase, ask)

    def run_ended(self, leader: Leader, state: str, error: str) -> None:
        """The job has reached a terminal state."""
        run = leader.run
        if run is not self.run or run.state:
            return
        if leader.master is not None:
            self.swarm.seen("restart", leader.master.restarts)
        if state == "FAILED":
            self.scheduler.fail(f"the job failed: {error}")
        self.scheduler.note(f"{run.run_id} is {state}")
        run.state = state
        self._savepoint = self._newest_savepoint(run)
        if state == "CANCELED":
            self.swarm.seen("cancelled")
        elif self._savepoint:
            self.swarm.seen("stop-with-savepoint")
        for manager in self.managers:
            manager.copies.job_ended(run.job_id, {run.job_id} if manager.workers else ())
        self._end(leader)
        if self.leader is not None:
            # A successor that came while the end was being recorded.
            self._end(self.leader)
        self.leader = None
        for manager in self.managers:
            manager.disconnect(again_ms=self.random.uniform(1, 30))
        self.scheduler.at(self.random.uniform(1, 50), "next run", self._next_run)

    def operation_ended(self, command: cmd.OperationEnded) -> None:
        """A request has an answer."""
        self.scheduler.note(f"{command.request_id}: {command.error or 'well'}")
        self.checkpoint_requests.answered(command)
        if command.error:
            self.wrong_versions.answered(command.request_id)

    def rescale(self, parallelism: int) -> None:
        """The user rescales the running job; asked again when there was nobody to ask."""
        if not self.rescale_now(parallelism):
            self.scheduler.at(20, "rescale", lambda: self.rescale(parallelism))

    def rescale_now(self, parallelism: int) -> bool:
        """The user rescales the job; return whether it runs."""
        run, leader = self.run, self.leader
        if run is None or leader is None or leader.master is None or leader.master.step is not Step.RUNNING:
            return False
        name = self.next_name("rescale")
        request = ev.RescaleRequested(name, name, rescaled(leader.master.graph, parallelism, {}))
        self.scheduler.at(0.1, "rescale", lambda: leader.post(request), owner=leader.owner)
        return True

    def _newest_savepoint(self, run: Run) -> str:
        """The last stop's savepoint that was written to its end."""
        for uri in reversed(run.stop_uris):
            if f"{uri.removeprefix(self.root)[1:]}/manifest.json" in self.store._objects:
                return uri
        return ""

    def _user(self) -> None:
        """Asks for the run's end, again and again until it has come."""
        run, leader = self.run, self.leader
        if (
            run is not None
            and leader is not None
            and leader.ready
            and not run.state
            and self.clock.elapsed_ms > run.ask_end_ms
        ):
            if run.phase.end in ("stop", "drain"):
                name = self.next_name("stop")
                run.stop_uris.append(f"{self.root}/sim/savepoints/{name}")
                request: ev.Event = ev.StopRequested(
                    name, run.stop_uris[-1], drain=run.phase.end == "drain", native=self.native
                )
                self.scheduler.at(0.1, "stop", lambda: leader.post(request), owner=leader.owner)
            elif run.phase.end == "cancel":
                self.scheduler.at(0.1, "cancel", lambda: leader.post(ev.CancelRequested()), owner=leader.owner)
        if not self._finished:
            self.scheduler.at(self.random.uniform(300, 900), "user", self._user)

    # --- the outside --------------------------------------------------------------------------------------------------

    def _produce(self, partition: tuple[str, int], rows: list[Any], at: int) -> None:
        if at >= len(rows):
            self.unproduced.discard(partition)
            return
        self.unproduced.add(partition)
        count = self.random.randint(1, 12)
        wait = self.random.uniform(0, 2 * self.plan.input_ms * count / len(rows))

        def produce() -> None:
            if not self.kafka.up or (at + count >= len(rows) and self.wrong_versions.may_run):
                self.scheduler.at(15, "produce", produce)
                return
            for row in rows[at : at + count]:
                self.kafka.append(*partition, row)
            self._produce(partition, rows, at + count)

        self.scheduler.at(wait, "produce", produce)

    def _heal(self) -> None:
        """No more faults from here on."""
        self.swarm.active = False

    def _pump_links(self, owner: str) -> None:
        if owner[:1] not in ("w", "n"):
            return
        for link in self.transport.ready_links():
            if link not in self._pumping:
                self._pumping.add(link)
                delay = self.random.uniform(0.02, 1.0)
                if self.swarm.strikes("frames-delayed"):
                    delay += self.random.uniform(5, 150)
                self.scheduler.at(delay, "frame", partial(self._pump, link), owner="net")

    def _pump(self, link: WorkerPair) -> None:
        self._pumping.discard(link)
        for _ in range(self.random.randint(1, 4)):
            if not self.transport.pump(link):
                return

    def _on_store(self, operation: str, key: str, phase: Literal["before", "after"]) -> None:
        fiber = fibers.current()
        if fiber is not None:
            fiber.check()
        if phase == "after" and operation == "put":
            data, version = self.store._objects.get(key, (b"", 0))
            if version > self._written:
                self._written = version
                self.checks.put(key, data)
        elif phase == "after" and operation == "delete":
            self.checks.deleted(key)
        if fiber is None:
            return
        if not self.store_up and phase == "before":
            raise StorageError(f"simulated: the store is down ({operation} {key})")
        if operation == "put":
            self._on_put(fiber, key, phase)
        elif operation == "read" and phase == "before" and self.swarm.strikes("read-fails"):
            raise StorageError(f"simulated: {key} cannot be read")
        elif operation == "read" and phase == "after" and key == LEASE and self.random.random() < 0.3:
            fibers.pause(self.random.uniform(0, 20), f"read {key}")

    def _on_put(self, fiber: Fiber, key: str, phase: Literal["before", "after"]) -> None:
        leader = self.leader
        if "/manifests/" in key and leader is not None and leader.owner == fiber.owner and leader.ready:
            if self.swarm.strikes(f"kill-{phase}-manifest"):
                self.kill_leader(leader)
                fiber.check()
            if phase == "before" and self.swarm.strikes("pause-leader-at-manifest"):
                self.pause_leader(leader)
                fibers.pause(0.1, "stopped")
        if phase == "before":
            if self.swarm.strikes("put-fails-before"):
                raise StorageError(f"simulated: {key} was not written")
            if self.swarm.strikes("upload-delayed"):
                fibers.pause(self.random.uniform(20, 500), f"slow put {key}")
            elif self.random.random() < 0.4:
                fibers.pause(self.random.uniform(0, 4), f"put {key}")
        elif self.swarm.strikes("put-fails-after"):
            raise StorageError(f"simulated: nobody knows whether {key} was written")

    def _on_publish(self, step: str) -> None:
        """A committer is about to take this step, or has just taken it."""
        fiber = fibers.current()
        assert fiber is not None
        fiber.check()
        worker = self.worker_of(fiber.owner)
        if worker is not None and self.swarm.strikes(f"kill-{step}"):
            worker.manager.worker_died(worker.worker_id)
            fiber.check()
        if worker is not None and self.swarm.strikes("zombie-in-publish"):
            worker.manager.disconnect(again_ms=self.random.uniform(200, 1200))
            self.pause(worker.owner, self.random.uniform(50, 900))
            fibers.pause(0.1, "stopped")
        elif self.swarm.strikes("publish-delayed"):
            fibers.pause(self.random.uniform(20, 400), f"slow {step}")
        elif self.random.random() < 0.5:
            fibers.pause(self.random.uniform(0, 5), step)
