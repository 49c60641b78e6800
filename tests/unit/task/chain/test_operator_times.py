"""Each moment of a call into a chain belongs to one operator; CPU time is sampled and holds for the rest."""

from penstock.core.clock import ManualClock
from penstock.core.elements import Batch, Watermark
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import NO_CAPABILITIES, Operator
from penstock.task.chain.chain import Chain, ChainLink
from penstock.task.chain.operator_times import OUTPUT, SAMPLE_EVERY_MS, OperatorTimes


class HalfClock(ManualClock):
    """Half of the time the thread waits; counts how often it is asked for CPU time."""

    asked = 0

    def cpu_ms(self):
        self.asked += 1
        return self.monotonic_ms() / 2


class Slow(Operator):
    """Takes its time before and behind what it emits."""

    def __init__(self, clock, before, behind=0.0):
        self.clock, self.before, self.behind = clock, before, behind

    def process_batch(self, batch, input_index, out):
        self.clock.advance(self.before)
        out.batch(batch)
        self.clock.advance(self.behind)

    def process_watermark(self, watermark, out):
        self.clock.advance(100)
        out.watermark(watermark)

    def finish(self, out):
        self.clock.advance(1000)


class Edge:
    def __init__(self, clock):
        self.clock = clock
        self.spec = OperatorSpec(uid="", name="", kind="")

    def batch(self, batch):
        self.clock.advance(7)

    def watermark(self, watermark):
        self.clock.advance(1)

    def status(self, status):
        """Costs nothing."""


def chain_of(clock, *operators):
    links = [ChainLink(OperatorSpec(uid=f"o{i}", name="o", kind="o"), o) for i, o in enumerate(operators)]
    chain = Chain(links, [], clock)
    chain._edges._all = chain._edges._main = (Edge(clock),)
    return chain


def times(chain, metric="accumulatedBusyTimeMs"):
    return [chain.times.read()[f"operator/{name}/{metric}"] for name in (*[x.spec.uid for x in chain.links], OUTPUT)]


def rows():
    import pyarrow as pa

    return Batch(pa.record_batch({"k": [1, 2]}))


def test_an_operators_time_is_its_own_without_that_of_those_it_feeds():
    clock = HalfClock()
    chain = chain_of(clock, Slow(clock, 3, 2), Slow(clock, 10, 20))
    chain.batch(rows(), 0)
    assert times(chain) == [5, 30, 7]
    clock.advance(10_000)  # between calls nobody is at work
    chain.watermark(Watermark(1))
    assert times(chain) == [105, 130, 8]
    assert times(chain, "accumulatedCpuTimeMs") == [52.5, 65, 4]


def test_what_is_emitted_outside_of_a_call_counts_and_the_pause_before_does_not():
    clock = HalfClock()
    chain = chain_of(clock, Slow(clock, 3), Slow(clock, 10))
    clock.advance(5000)
    chain.emit_watermark(Watermark(1))  # at a drain
    assert times(chain) == [0, 100, 1]
    chain.finish()
    assert times(chain) == [1000, 1100, 1]


def test_an_operator_is_at_work_while_it_is_opened():
    """It may start calls then, of the rows that were under way: their log lines name it."""
    clock, seen = HalfClock(), []

    class Opened(Slow):
        def open(self, context):
            clock.advance(self.before)
            seen.append((context, chain.times.index))
            return NO_CAPABILITIES

    chain = chain_of(clock, Opened(clock, 3), Opened(clock, 10))
    chain._edges._all = chain._edges._main = ()
    chain.open(["first", "second"])
    assert seen == [("second", 1), ("first", 0)]
    assert times(chain) == [3, 10, 0]
    assert chain.times.index == chain.times.output + 1


def test_the_cpu_clock_is_read_seldom():
    clock = HalfClock()
    chain = chain_of(clock, Slow(clock, 0.01), Slow(clock, 0.03))
    chain._edges._all = chain._edges._main = ()
    for _ in range(10_000):
        chain.batch(rows(), 0)
    calls = 0.04 * 10_000 / SAMPLE_EVERY_MS
    assert 0 < clock.asked <= 6 * calls + 6
    busy, cpu = times(chain), times(chain, "accumulatedCpuTimeMs")
    assert [round(b, 3) for b in busy] == [100, 300, 0]
    assert [round(c, 3) for c in cpu] == [50, 150, 0]


def test_rates_are_those_of_the_last_whole_interval():
    clock = ManualClock()
    budget = OperatorTimes(clock, ["a"])
    budget.begin(0)
    clock.advance(300)
    budget.end()
    clock.advance(300)
    assert budget.read()["operator/a/busyTimeMsPerSecond"] == 0, "the interval is not over"
    clock.advance(600)
    assert budget.read()["operator/a/busyTimeMsPerSecond"] == 250
    assert budget.read()["operator/a/cpuTimeMsPerSecond"] == 250, "nor is the next one"
    clock.advance(1000)
    assert budget.read()["operator/a/busyTimeMsPerSecond"] == 0
    assert budget.read()["operator/a/accumulatedBusyTimeMs"] == 300
