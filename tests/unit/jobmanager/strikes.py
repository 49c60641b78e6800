"""What strikes a job while it changes in place: for the tests of rescales and of upgrades."""

from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot


def kill_one(world):
    if world.workers:
        world.queue.append(ev.WorkerLost(next(iter(world.workers)), "killed"))
        world.workers.pop(next(iter(world.workers)))
        world.owed = []


def lose_all(world):
    world.workers.clear()
    world.owed = []
    world.free = [Slot("tm2", i) for i in range(8)]
    world.queue.append(ev.TaskManagerLost("tm", "silent"))
