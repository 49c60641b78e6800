"""Faults that come from outside, at times drawn from the seed, until the world heals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim import upgrades
from tests.sim.faults import HAND_OVER, PATH_BROKEN, REQUEST, RESCALE, UPGRADE

from penstock.jobmanager.messages import events as ev

if TYPE_CHECKING:
    from tests.sim.leader import Leader
    from tests.sim.worker import TaskManager, Worker
    from tests.sim.world import World


class Nemesis:
    """Strikes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kinds: dict[str, Callable[[], bool]] = {
            "worker-killed": self._kill_worker,
            "taskmanager-killed": self._kill_taskmanager,
            "jobmanager-killed": self._kill_leader,
            "leader-paused": self._pause_leader,
            "standby-paused": self._pause_standby,
            "standby-killed": self._kill_standby,
            "worker-paused": self._pause_worker,
            "worker-zombie": self._zombie,
            "session-lost": self._lose_session,
            "connection-lost": self._lose_connection,
            "kafka-down": self._kafka_down,
            "store-down": self._store_down,
            "savepoint": self._savepoint,
            HAND_OVER: self._hand_over,
            RESCALE: self._rescale,
            PATH_BROKEN: self._break_path,
            REQUEST: world.checkpoint_requests.ask,
            UPGRADE: lambda: upgrades.strike(world),
        }

    def begin(self) -> None:
        """Plan the first strike."""
        strike = self._world.swarm.next_strike()
        if strike is not None:
            delay, kind = strike
            self._world.scheduler.at(delay, kind, lambda: self._strike(kind))

    def _strike(self, kind: str) -> None:
        if not self._world.swarm.active:
            return
        self.now(kind)
        self.begin()

    def now(self, kind: str) -> bool:
        """Strike once; False when there was nothing to strike."""
        done = self._kinds[kind]()
        if done:
            self._world.swarm.seen(kind)
            self._world.scheduler.note(f"strike: {kind}")
        return done

    def _workers(self) -> list[Worker]:
        return [worker for manager in self._world.managers for worker in manager.workers.values()]

    def _some_worker(self) -> Worker | None:
        workers = self._workers()
        return self._world.random.choice(workers) if workers else None

    def _some_manager(self) -> TaskManager | None:
        managers = [m for m in self._world.managers if m.session is not None]
        return self._world.random.choice(managers) if managers else None

    def _kill_worker(self) -> bool:
        worker = self._some_worker()
        if worker is not None:
            worker.manager.worker_died(worker.worker_id)
        return worker is not None

    def _kill_taskmanager(self) -> bool:
        manager = self._some_manager()
        if manager is not None:
            self._world.kill_taskmanager(manager)
        return manager is not None

    def _kill_leader(self) -> bool:
        leader = self._world.leader
        if leader is None or leader.dead or not leader.ready:
            return False
        self._world.kill_leader(leader)
        return True

    def _acting_leader(self) -> Leader | None:
        """The leader, if it is ready and not paused."""
        leader = self._world.leader
        if leader is None or leader.dead or not leader.ready or self._world.scheduler.is_held(leader.owner):
            return None
        return leader

    def _pause_leader(self) -> bool:
        leader = self._acting_leader()
        if leader is None:
            return False
        self._world.pause_leader(leader)
        return True

    def _hand_over(self) -> bool:
        leader = self._acting_leader()
        if leader is None:
            return False
        self._world.hand_over(leader)
        return True

    def _some_standby(self) -> str:
        standbys = sorted(self._world.standbys)
        return self._world.random.choice(standbys) if standbys else ""

    def _pause_standby(self) -> bool:
        owner = self._some_standby()
        if owner:
            self._world.pause(owner, self._world.random.uniform(20, 900))
        return bool(owner)

    def _break_path(self) -> bool:
        owner, leader = self._some_standby(), self._world.leader_owner
        if owner and leader:
            self._world.break_path(owner, leader, self._world.random.uniform(20, 1500))
        return bool(owner and leader)

    def _kill_standby(self) -> bool:
        owner = self._some_standby()
        if owner:
            self._world.kill_standby(owner)
        return bool(owner)

    def _pause_worker(self) -> bool:
        worker = self._some_worker()
        if worker is not None:
            self._world.pause(worker.owner, self._world.random.uniform(10, 700))
        return worker is not None

    def _zombie(self) -> bool:
        manager = self._some_manager()
        if manager is None:
            return False
        world = self._world
        manager.disconnect(again_ms=world.random.uniform(200, 1200))
        for worker in manager.workers.values():
            if world.random.random() < 0.6:
                world.pause(worker.owner, world.random.uniform(20, 900))
        return True

    def _lose_session(self) -> bool:
        manager = self._some_manager()
        if manager is not None:
            manager.disconnect(again_ms=self._world.random.uniform(0, 60))
        return manager is not None

    def _lose_connection(self) -> bool:
        pairs = [(w.worker_id, peer) for w in self._workers() for peer in w.network.sessions]
        if not pairs:
            return False
        self._world.transport.disconnect(*self._world.random.choice(pairs))
        return True

    def _kafka_down(self) -> bool:
        world = self._world
        if not world.kafka.up:
            return False
        world.kafka.up = False

        def up() -> None:
            world.kafka.up = True

        world.scheduler.at(world.random.uniform(10, 400), "kafka is up", up)
        return True

    def _store_down(self) -> bool:
        world = self._world
        if not world.store_up:
            return False
        world.store_up = False

        def up() -> None:
            world.store_up = True

        world.scheduler.at(world.random.uniform(50, 1500), "the store is up", up)
        return True

    def _rescale(self) -> bool:
        return self._world.rescale_now(self._world.random.randint(1, 3))

    def _savepoint(self) -> bool:
        leader = self._world.leader
        if leader is None or leader.dead or leader.master is None:
            return False
        name = self._world.next_name("savepoint")
        event = ev.SavepointRequested(name, f"{self._world.root}/sim/savepoints/{name}", native=self._world.native)
        self._world.scheduler.at(0.1, "savepoint", lambda: leader.post(event), owner=leader.owner)
        return True
