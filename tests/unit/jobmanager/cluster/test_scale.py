"""What a job master does and sends grows with the number of subtasks, never with its square: it is counted."""

import sys
from collections import Counter

import msgspec
import pytest
from tests.unit.jobmanager.conftest import World, make_graph

from penstock.checkpoint.memory_store import MemoryStore
from penstock.graph.job_graph import Forward, KeyGroup
from penstock.jobmanager.cluster.slots import SlotPool
from penstock.jobmanager.deploy.deployment import SplitAssigner
from penstock.jobmanager.messages.events import SlotsGranted
from penstock.jobmanager.messages.placement import Slot
from penstock_lab.bench.jobs.planning import deploy

SMALL, LARGE = 40, 160
#: A quarter more than linear: what is done once, and containers that grow by doubling.
GROWTH = LARGE / SMALL * 1.25


class Counted:
    """Counts the calls of Python and C functions, generators' steps included, where it is asked to."""

    def __init__(self):
        self.total = 0
        self.where = Counter()

    def __call__(self, frame, event, argument):
        if event in ("call", "c_call"):
            self.total += 1
            self.where[frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name] += 1

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def grown(small, large):
    """What grew too fast, for the text of a failure."""
    return {
        name: (small.where[name], count)
        for name, count in large.where.most_common(30)
        if count > GROWTH * max(1, small.where[name]) and count > LARGE
    }


def forward_graph(parallelism):
    """As many channels as subtasks of a vertex."""
    graph = make_graph(parallelism=parallelism, bounded=True)
    edges = tuple(msgspec.structs.replace(edge, partitioner=Forward()) for edge in graph.edges)
    return msgspec.structs.replace(graph, edges=edges)


def life_of_a_job(parallelism, graph_of=forward_graph):
    """Start, run, checkpoint, lose a worker, restart, end; only the master's own work is counted."""
    world = World(graph_of(parallelism), MemoryStore())
    world.free = [Slot(f"tm-{i}", 0) for i in range(2 * parallelism)]
    world.discovered = tuple({"id": f"t-{i}"} for i in range(parallelism))
    handle, counted = world.master.handle, Counted()

    def handled(event, now_ms):
        with counted:
            return handle(event, now_ms)

    world.master.handle = handled
    world.start().pass_time(1500)
    assert len(world.manifests()) == 1
    world.kill(next(iter(world.workers))).pass_time(2000)
    assert world.master.restarts == 1
    world.end_input().pass_time(2000)
    assert world.terminal is not None
    assert world.terminal.state == "FINISHED"
    return counted


def keyed_graph(parallelism):
    """A channel from each subtask to each."""
    return make_graph(parallelism=parallelism, bounded=True)


@pytest.mark.parametrize("graph_of", [forward_graph, keyed_graph])
def test_the_life_of_a_job_is_linear_in_its_subtasks(graph_of):
    small, large = life_of_a_job(SMALL, graph_of), life_of_a_job(LARGE, graph_of)
    assert large.total <= GROWTH * small.total, grown(small, large)


@pytest.mark.parametrize("partitioner", [Forward(), KeyGroup(("k",))], ids=["forward", "keyed"])
def test_what_is_sent_at_a_deployment_is_linear_in_the_subtasks(partitioner):
    small, large = (deploy(parallelism, partitioner)[1] for parallelism in (SMALL, LARGE))
    assert large <= GROWTH * small


def pool_of(managers):
    pool, told = SlotPool(1000), []
    for job in ("job", "other"):
        pool.attach(job, lambda event: told.append(event) if isinstance(event, SlotsGranted) else None, job)
    with Counted() as counted:
        pool.request("job", managers, 0)
        for index in range(managers):
            pool.add(f"tm-{index}", "host", 1)
        (granted,) = told
        assert len(granted.slots) == managers
        pool.release("job", granted.slots)
        assert pool.free == managers
        pool.request("other", managers, 0)
        assert len(told[-1].slots) == managers
        pool.release("other")
    return counted


def assigned(splits):
    assigner = SplitAssigner(splits, bounded=True, restored=None)
    with Counted() as counted:
        assigner.discovered([{"id": f"t-{index}"} for index in range(splits)])
        assert all(len(given) == 1 for given, _ in assigner.take().values())
    return counted


@pytest.mark.parametrize("work", [pool_of, assigned], ids=["slots", "splits"])
def test_slots_and_splits_are_given_out_in_linear_time(work):
    small, large = work(SMALL), work(LARGE)
    assert large.total <= GROWTH * small.total, grown(small, large)
