"""Timers of processing time: the chain fires those that are due, and none behind the last barrier."""

from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier, BarrierKind
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import Capabilities, Operator
from penstock.task.chain.chain import Chain, ChainLink


class Timed(Operator):
    def __init__(self, due):
        self.due = due
        self.fired = []

    def open(self, context):
        return Capabilities(timers=self)

    def process_batch(self, batch, input_index, out):
        out.batch(batch)

    @property
    def next_timer_ms(self):
        return self.due

    def process_time(self, now_ms, out):
        self.fired.append(now_ms)
        self.due = None


class Plain(Operator):
    def process_batch(self, batch, input_index, out):
        out.batch(batch)


def chain_of(*operators):
    links = [ChainLink(OperatorSpec(uid=f"o{i}", name="o", kind="o"), o) for i, o in enumerate(operators)]
    chain = Chain(links, [], ManualClock())
    chain._edges._all = chain._edges._main = ()
    chain.open([None] * len(links))
    return chain


def test_a_chain_without_timed_operators_waits_for_nothing():
    assert chain_of(Plain(), Plain()).next_timer_ms is None


def test_the_next_timer_of_all_operators_counts_and_only_those_due_fire():
    first, second, idle = Timed(500), Timed(300), Timed(None)
    chain = chain_of(Plain(), first, second, idle)
    assert chain.next_timer_ms == 300
    chain.process_time(400)
    assert (first.fired, second.fired, idle.fired) == ([], [400], [])
    assert chain.next_timer_ms == 500


def test_behind_the_barrier_that_ends_the_job_no_timer_fires():
    timed = Timed(300)
    chain = chain_of(timed)
    chain.snapshot(Barrier(1, BarrierKind.SAVEPOINT))
    assert chain.next_timer_ms == 300
    chain.snapshot(Barrier(2, BarrierKind.STOP))
    assert chain.next_timer_ms is None
    chain.process_time(400)
    assert timed.fired == []
