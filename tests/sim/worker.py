"""TaskManagers and their workers as the simulation has them: incarnations around the engine's own `TaskRuntime`.

A worker is its runtime, a seat in the schedule for each subtask, and background work in fibers. What it reports goes
through its TaskManager, which is connected to one leader at a time by a session; whatever is on its way when a
session ends is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.faults import COPY_DAMAGED, SLOT_REFUSED

from penstock.jobmanager.messages.placement import Slot
from penstock.network.simulated_network import MemoryNetwork
from penstock.rpc import messages as msg
from penstock.state.tiers.range_fetcher import BackgroundFetch
from penstock.task.chain.background import SlowCalls
from penstock.task.chain.environment import TaskEnvironment
from penstock.task.drive.runtime import TaskRuntime
from penstock.task.drive.subtask import StepResult
from penstock.taskmanager.copy_folders import CopyFolders
from penstock.taskmanager.network_pool import NetworkPool

if TYPE_CHECKING:
    from tests.sim.leader import Leader
    from tests.sim.world import World

    from penstock.graph.task_deployment import TaskDeployment
    from penstock.task.drive.subtask import Subtask


def generation_of(command: msg.WorkerCommand) -> float:
    """The leader that sends a command about tasks; infinite for one that any leader may send."""
    match command:
        case msg.CheckpointCompleted():
            return command.permit.generation
        case (
            msg.TriggerCheckpoint()
            | msg.CheckpointAborted()
            | msg.AssignSplits()
            | msg.CancelTasks()
            | msg.FinishTasks()
            | msg.AlignWatermarks()
            | msg.PauseCompaction()
        ):
            return command.generation
    return math.inf


class Lane:
    """Deliveries that keep their order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_ms = 0.0

    def send(self, label: str, deliver: Callable[[], None], *, owner: str, slowest_ms: float = 2.0) -> None:
        world = self._world
        delay = world.random.uniform(0.05, slowest_ms)
        if world.swarm.strikes("message-delayed"):
            delay += world.random.uniform(5, 120)
        due = max(world.clock.elapsed_ms + delay, self._last_ms + 0.001)
        self._last_ms = due
        world.scheduler.at(due - world.clock.elapsed_ms, label, deliver, owner=owner)


class Session:
    """The stream between one TaskManager and one leader."""

    def __init__(self, world: World, manager: TaskManager, leader: Leader) -> None:
        self.manager = manager
        self.leader = leader
        #: The leader has seen its end.
        self.closed = False
        self.up = Lane(world)
        self.down = Lane(world)


class SubtaskLoop:
    """One subtask's place in the schedule."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._subtask: Subtask | None = None
        self._due: float | None = None
        self._token = 0
        self._paused_until = 0.0

    def wake(self) -> None:
        if self._subtask is not None:
            self._schedule(self._worker.world.random.uniform(0, 0.3))

    def run(self, subtask: Subtask) -> None:
        self._subtask = subtask
        self._worker.world.checks.watch(subtask)
        if self._worker.world.plan.slow_ms and subtask._gate is not None:
            subtask._gate._small_bytes = 0
        self._schedule(self._worker.world.random.uniform(0, 3))

    def _schedule(self, delay_ms: float) -> None:
        world = self._worker.world
        due = max(world.clock.elapsed_ms + delay_ms, self._paused_until)
        if self._due is not None and self._due <= due:
            return
        self._due = due
        self._token += 1
        world.scheduler.at(
            due - world.clock.elapsed_ms, "step", partial(self._fire, self._token), owner=self._worker.owner
        )

    def _fire(self, token: int) -> None:
        subtask, world = self._subtask, self._worker.world
        if token != self._token or subtask is None:
            return
        self._due = None
        result = StepResult.BUSY
        slow = world.plan.slow_ms if subtask._gate is not None else 0.0
        for _ in range(world.random.randint(1, 6)):
            before = subtask._gate.records_in if slow else 0
            result = subtask.step()
            if slow and subtask._gate.records_in > before:
                self._paused_until = world.clock.elapsed_ms + slow
                break
            if result is not StepResult.BUSY:
                break
        world.checks.stepped(subtask)
        if result is StepResult.BUSY:
            self._schedule(world.random.uniform(0.05, 0.5))
        elif result is not StepResult.DONE:
            self._schedule(max(0.2, subtask.next_deadline_ms() - world.clock.elapsed_ms))
        else:
            self._worker.ended()


class Background:
    """Background work as fibers."""

    def __init__(self, worker: Worker, label: str) -> None:
        self._worker = worker
        self._label = label

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]) -> None:
        worker = self._worker
        delay = worker.world.random.uniform(0, 2)
        if isinstance(getattr(work, "__self__", None), BackgroundFetch):
            delay += worker.world.plan.fetch_ms
        worker.world.spawn(worker.owner, self._label, work, done, delay)


class Worker:
    """One incarnation of a slot worker."""

    def __init__(self, world: World, manager: TaskManager, entry: msg.SlotStatus, *, beside: bool = False) -> None:
        self.world = world
        self.manager = manager
        self.worker_id = worker_id = entry.worker_id
        self._entry = entry
        self.owner = f"w:{worker_id}"
        self.dead = False
        #: Generation of the newest leader that has asked what runs here.
        self.asked_by = 0
        #: The most network memory that its gates may hold.
        self.network_bytes = 0
        self.inbox = Lane(world)
        self._outbox = Lane(world)
        self.network = MemoryNetwork(worker_id, world.transport, world.clock)
        small = world.plan.inline_bytes
        environment = TaskEnvironment(
            worker_id=worker_id,
            clock=world.clock,
            network=self.network,
            report=self._report,
            background=Background(self, "background"),
            blocking=Background(self, "blocking"),
            slow_calls=SlowCalls(world.clock),
            managed_memory_bytes=world.plan.managed_memory_bytes,
            network_memory_bytes=None if manager.network is None else manager.network.guaranteed_bytes,
            tell_need=self._tell_need,
            state_dir=world.folder / self.worker_id,
            copies_dir=manager.copies.folder_of(entry.job_id),
            beside=beside,
            limits=world.plan.limits.changed(inline_state_bytes=small, inline_staged_bytes=small),
        )
        self.runtime = TaskRuntime(environment, self)
        self._report(msg.WorkerReady(worker_id=worker_id, endpoint=self.network.endpoint, pid=1))

    def loop(self, deployment: TaskDeployment) -> SubtaskLoop:
        return SubtaskLoop(self)

    def take(self, command: bytes) -> None:
        """A command has come over the control socket."""
        decoded = msg.decode_worker_command(command)
        label = type(decoded).__name__
        self.inbox.send(label, lambda: self._handle(decoded), owner=self.owner, slowest_ms=0.5)

    def _handle(self, command: msg.WorkerCommand) -> None:
        """Handle it, and look that one of an earlier leader has no effect once a later one has asked."""
        fenced = generation_of(command) < self.asked_by
        before = [len(subtask.mailbox._mails) for subtask in self.runtime.subtasks]
        self.runtime.handle(command)
        after = [len(subtask.mailbox._mails) for subtask in self.runtime.subtasks]
        if fenced and after != before:
            self.world.checks.obeyed_earlier(self.worker_id, type(command).__name__)
        if isinstance(command, msg.AskTasks):
            self.asked_by = max(self.asked_by, command.generation)
        if isinstance(command, msg.NetworkShare):
            self.network_bytes = max(self.network_bytes, command.total_bytes)
            self.world.swarm.seen("network-share")
            self.world.checks.shared(self.manager)
            self._return_memory(command)

    def _tell_need(self, need: msg.NetworkNeed) -> None:
        self._outbox.send("NetworkNeed", lambda: self.manager.needs(self, need), owner=self.manager.owner)

    def _return_memory(self, share: msg.NetworkShare) -> None:
        """Look again with each renewal of the lease until the gates keep to the share, or to a later one."""
        self.runtime.release()
        if self.runtime._network.keeps:
            self.network_bytes = self.runtime._network._total
        elif share.number == self.runtime._network._number:
            again = partial(self._return_memory, share)
            self.world.scheduler.at(20, "renewal", again, owner=self.owner)

    def kill(self) -> None:
        """SIGKILL: nothing more of it happens; its peers hear of it at once or a little later."""
        if self.dead:
            return
        self.dead = True
        self.manager.workers.pop(self.worker_id, None)
        self.manager.took_back(self)
        world = self.world
        world.swarm.seen("compaction", sum(subtask._compactor.completed for subtask in self.runtime.subtasks))
        prepared = [subtask._services.prepared for subtask in self.runtime.subtasks]
        world.swarm.seen("state-advanced", sum(one.advanced for one in prepared if one is not None))
        world.end_process(self.owner)
        self._leave_copies()
        leave = partial(world.transport.leave, self.worker_id)
        world.scheduler.at(world.random.choice([0.0, 0.0, 3.0]), "peers lose it", leave)

    def _leave_copies(self) -> None:
        """Leave copies to the next worker of the slot, some of them flipped, short, or of another checkpoint."""
        swarm, copies, entry = self.world.swarm, self.manager.copies, self._entry
        files = sorted((copies.folder_of(entry.job_id) / self.worker_id).rglob("*.pack"))
        for path, other in zip(files, files[1:] + files[:1], strict=True):
            if swarm.strikes(COPY_DAMAGED):
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                way = swarm.random.randrange(3)
                path.write_bytes(data if way == 0 else data[:-1] if way == 1 else other.read_bytes())
        copies.worker_ended(entry.job_id, self.worker_id, entry.slot)

    def ended(self) -> None:
        """A subtask is over."""
        self.world.scheduler.at(5, "release", self.runtime.release, owner=self.owner)

    def _report(self, message: msg.WorkerReport) -> None:
        data = msg.encode(message)
        relay = partial(self.manager.relay_up, self.worker_id, data)
        self._outbox.send(type(message).__name__, relay, owner=self.manager.owner, slowest_ms=0.5)


class TaskManager:
    """One incarnation of a TaskManager."""

    def __init__(self, world: World, number: int, slots: int) -> None:
        self.world = world
        self.name = f"tm{number}"
        self.owner = f"t:{number}"
        self.slots = slots
        self.dead = False
        self.session: Session | None = None
        self.workers: dict[str, Worker] = {}
        guaranteed = world.plan.network_memory_bytes
        self.network = None if guaranteed is None else NetworkPool(2 * slots * guaranteed, slots)
        self.copies = CopyFolders(world.folder / "copies" / self.name, world.clock)
        self._starting: dict[str, list[bytes]] = {}
        #: Killed workers whose processes have not ended.
        self._exiting: set[str] = set()
        #: Of the workers, as it registers them.
        self._entries: dict[str, msg.SlotStatus] = {}
        self._beside: dict[str, bool] = {}
        #: Slots that it has refused to the leader and not reported as free since.
        self._refused: set[int] = set()

    def needs(self, worker: Worker, need: msg.NetworkNeed) -> None:
        """A worker tells what its gates need."""
        if not worker.dead and self.network is not None:
            self._send_shares(self.network.needs(worker.worker_id, need))

    def took_back(self, worker: Worker) -> None:
        """A worker has ended."""
        if self.network is not None:
            self._send_shares(self.network.ended(worker.worker_id))

    def _send_shares(self, shares: list[tuple[str, msg.NetworkShare]]) -> None:
        for worker_id, share in shares:
            self.workers[worker_id].take(msg.encode(share))

    # --- the stream to the leader -------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Dial the leader there is; try again until there is one."""
        leader = self.world.leader
        if self.dead or self.session is not None:
            return
        if leader is None or not leader.ready or self.world.scheduler.is_held(leader.owner):
            self.world.scheduler.at(20, "dial", self.connect, owner=self.owner)
            return
        session = self.session = Session(self.world, self, leader)
        self._refused.clear()
        running = tuple(self._entries[name] for name in self.workers)
        session.up.send("register", lambda: leader.connected(session, running), owner=leader.owner)

    def disconnect(self, again_ms: float) -> None:
        """The stream ends; both sides notice, each in its time."""
        session, self.session = self.session, None
        if session is None:
            return
        leader, world = session.leader, self.world
        delay = world.random.choice([1.0, 10.0, 60.0])
        world.scheduler.at(delay, "session lost", lambda: leader.disconnected(session), owner=leader.owner)
        if not self.dead:
            world.scheduler.at(again_ms, "dial", self.connect, owner=self.owner)

    def registered(self, session: Session, kept: set[str]) -> None:
        """The leader has answered: the workers that it does not keep are killed."""
        if self.session is session:
            self._starting.clear()
            for worker in [worker for worker in self.workers.values() if worker.worker_id not in kept]:
                self._kill(worker)

    def start(self, session: Session, entry: msg.SlotStatus, *, beside: bool) -> None:
        """Start a worker process."""
        if self.session is not session:
            return
        worker_id = entry.worker_id
        if entry.slot in self._refused:
            self.world.scheduler.fail(f"a worker is started in slot {entry.slot}, which {self.name} has refused")
        if not beside and self.world.swarm.strikes(SLOT_REFUSED):
            self._refuse(entry)
            return
        self._starting[worker_id], self._entries[worker_id], self._beside[worker_id] = [], entry, beside
        delay = self.world.random.uniform(2, 20)
        self.world.scheduler.at(delay, "fork", lambda: self._started(worker_id), owner=self.owner)

    def _refuse(self, entry: msg.SlotStatus) -> None:
        """Another worker has the slot, until a later heartbeat reports it as free."""
        self._refused.add(entry.slot)
        slot = Slot(self.name, entry.slot, "sim")
        self._send(lambda leader, session: leader.slot_refused(session, entry.worker_id, slot))
        free_ms = self.world.random.uniform(20, 400)
        self.world.scheduler.at(free_ms, "heartbeat", partial(self._free_again, self.session), owner=self.owner)
        self.world.scheduler.at(free_ms / 2, "heartbeat", self._report_slots, owner=self.owner)

    def _free_again(self, refused_to: Session | None) -> None:
        if self.session is refused_to:
            self._refused.clear()
            self._report_slots()

    def _report_slots(self) -> None:
        taken = frozenset(self._refused)
        self._send(lambda leader, session: leader.slots_reported(session, taken))

    def stop(self, session: Session, worker_id: str) -> None:
        """Kill a worker process, paused or not."""
        if self.session is not session:
            return
        worker = self.workers.get(worker_id)
        self._starting.pop(worker_id, None)
        if worker is not None:
            self._kill(worker)
        if worker_id not in self._exiting:
            self._send_exit(worker_id, "it was killed by SIGKILL")

    def _kill(self, worker: Worker) -> None:
        """It stops at once; its process ends once the kernel has freed its memory."""
        worker.kill()
        world = self.world
        if world.plan.exit_ms is None:
            return
        self._exiting.add(worker.worker_id)
        delay = world.random.uniform(0, world.plan.exit_ms)
        stopped = lambda leader, session: leader.stopped(session, worker.worker_id)
        world.scheduler.at(min(delay, 1.0), "stop", lambda: self._send(stopped), owner=self.owner)
        world.scheduler.at(delay, "end", lambda: self._exited(worker.worker_id), owner=self.owner)

    def _exited(self, worker_id: str) -> None:
        self._exiting.discard(worker_id)
        self._send_exit(worker_id, "it was killed by SIGKILL")
        for waiting in [name for name in self._starting if self._entries[name].slot == self._entries[worker_id].slot]:
            self.world.scheduler.at(2.0, "fork", partial(self._started, waiting), owner=self.owner)

    def relay_down(self, session: Session, worker_ids: tuple[str, ...], command: bytes) -> None:
        """A command for some workers; one of a stream that has ended may still come."""
        if self.session is not session and not self.world.swarm.strikes("command-late"):
            return
        for worker_id in worker_ids:
            if worker_id in self._starting:
                self._starting[worker_id].append(command)
            elif worker_id in self.workers:
                self.workers[worker_id].take(command)

    def relay_up(self, worker_id: str, report: bytes) -> None:
        """A worker's report, if anybody is there to hear it."""
        session = self.session
        if session is not None:
            leader = session.leader
            session.up.send("report", lambda: leader.reported(session, worker_id, report), owner=leader.owner)

    def worker_died(self, worker_id: str) -> None:
        """It ended by itself: the supervisor sees that at once."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.kill()
            self._send_exit(worker_id, "it was killed by SIGKILL")

    def kill(self) -> None:
        """SIGKILL of the supervisor: its workers die with it."""
        if self.dead:
            return
        self.dead = True
        for worker in list(self.workers.values()):
            worker.kill()
        self.copies.close()
        self.disconnect(0)
        self.world.end_process(self.owner)

    def _started(self, worker_id: str) -> None:
        slot = self._entries[worker_id].slot
        if worker_id not in self._starting or any(self._entries[name].slot == slot for name in self._exiting):
            return  # killed, or started when its slot is free
        worker = self.workers[worker_id] = Worker(
            self.world, self, self._entries[worker_id], beside=self._beside[worker_id]
        )
        for command in self._starting.pop(worker_id):
            worker.take(command)

    def _send_exit(self, worker_id: str, reason: str) -> None:
        # through the same lane as its reports, which are passed on before the news of its end
        exited = lambda leader, session: leader.exited(session, worker_id, reason)
        self.world.scheduler.at(1.0, "exit", lambda: self._send(exited), owner=self.owner)

    def _send(self, tell: Callable[[Leader, Session], None]) -> None:
        session = self.session
        if session is not None:
            leader = session.leader
            session.up.send("exit", lambda: tell(leader, session), owner=leader.owner)
