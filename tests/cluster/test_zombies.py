"""Who was paused and replaced must not come back; who is killed leaves nobody behind."""

import os
import signal

import pytest
from tests.cluster import proc_tree
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, RATE = 12_000, 4_000


def test_a_paused_worker_that_was_replaced_publishes_nothing_and_dies(stage, paused):
    """Its whole TaskManager is paused, as a machine would be: in the middle of a publication.

    Resumed alone, it has nobody above it to end it or to hear of it: its lease in the kernel does.
    """
    point = "sink.before_publish"
    with Scene(stage, Orders(1, EVENTS), rate=RATE, taskmanagers=3, failpoints={point: "hold"}) as scene:
        scene.begin()
        held = int(scene.wait_hit(point)["pid"])
        supervisor = scene.taskmanager_of(held).pid
        tree = [supervisor, *proc_tree.descendants(supervisor)]
        assert held in tree
        paused += tree
        proc_tree.signal_all(tree, signal.SIGSTOP)
        before = len(scene.rows())  # of the held publication nothing; once replaced, all input may be read already
        scene.wait_replaced({held})
        scene.wait(lambda: len(scene.rows()) > before, "output of the successor", step=0.3)

        scene.release(point)
        assert proc_tree.stopped(held), "the zombie ended before it was resumed: nothing is shown"
        os.kill(held, signal.SIGCONT)
        scene.wait(lambda: not proc_tree.alive(held), "the resumed worker to die")
        assert proc_tree.ended_by(held) == signal.SIGALRM, "it was not its lease that ended it"
        proc_tree.signal_all(tree, signal.SIGCONT)
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()


def test_a_worker_paused_alone_is_replaced(stage, paused):
    """Its TaskManager lives and ends it as soon as it no longer answers; it never goes on."""
    with Scene(stage, Orders(2, EVENTS), rate=RATE, taskmanagers=2) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        worker = scene.look_at_workers()[0]
        victim = int(worker["pid"])
        log = scene.taskmanager_of(victim).log_file
        paused.append(victim)
        os.kill(victim, signal.SIGSTOP)
        scene.wait_replaced({victim})
        scene.wait(lambda: not proc_tree.alive(victim), "the paused worker to die")
        ended = f"worker {worker['id']} ended with -9: it did not answer for "
        scene.wait(lambda: ended in log.read_text(encoding="utf-8"), f"{ended!r} in the TaskManager's log")
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()


@pytest.mark.parametrize("victim", ["supervisor", "template"])
def test_kill_9_leaves_no_process_of_the_tree(stage, victim):
    """No process below it outlives it, and the job goes on elsewhere."""
    with Scene(stage, Orders(4, EVENTS), rate=RATE) as scene:
        scene.begin()
        scene.wait_checkpoints(1)
        worker = int(scene.look_at_workers()[0]["pid"])
        pid = scene.taskmanager_of(worker).pid if victim == "supervisor" else proc_tree.parent(worker)
        tree = proc_tree.descendants(pid)
        assert worker in tree
        scene.kill(pid)
        left = lambda: [p for p in tree if proc_tree.alive(p)]
        scene.wait(lambda: not left(), "the end of all processes below it")
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
