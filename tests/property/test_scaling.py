"""The autoscaler over a job of linear operators: it settles soon, within its bounds, and no restart is wasted."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.config.settings import AutoscalerSettings, JobSettings
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, JobVertex, KeyGroup, required_slots
from penstock.jobmanager.change.vertex_scaling import Scaler, VertexMetrics

SETTINGS = AutoscalerSettings(
    enabled=True, dry_run=False, metrics_window_ms=10_000, stabilization_interval_ms=0, scale_down_interval_ms=60_000,
    catch_up_duration_ms=600_000, max_parallelism=40,
)  # fmt: skip
RESTART_MS = 5_000.0
#: Seconds between two looks.
STEP = 5


def graph_of(widths, forward=()):
    """A chain of vertices, by key from each to the next but for those in `forward`, subtask by subtask."""
    vertices = tuple(
        JobVertex(id=f"v{i}", name=f"v{i}", parallelism=width, operators=(), slot_sharing_group="default")
        for i, width in enumerate(widths)
    )
    edges = tuple(
        JobEdge(
            source=f"v{i}",
            target=f"v{i + 1}",
            partitioner=Forward() if i in forward else KeyGroup(columns=("k",)),
            schema="",
        )
        for i in range(len(widths) - 1)
    )
    return JobGraph(name="j", vertices=vertices, edges=edges, settings=JobSettings(key_groups=32))


class Plant:
    """A job of one operator a vertex: it takes `capacity[i]` rows a second a subtask and gives `factor[i]` for each."""

    def __init__(self, graph, capacity, factor, *, knows_lag):
        self.graph, self.capacity, self.factor, self.knows_lag = graph, capacity, factor, knows_lag
        self.lag, self.restarts = 0.0, 0

    def demand(self, arriving):
        """What each vertex should take."""
        rates = [arriving]
        for factor in self.factor[:-1]:
            rates.append(rates[-1] * factor)
        return rates

    def run(self, arriving, seconds):
        """Some seconds of steady running: what is seen of them."""
        wanted = self.demand(arriving + self.lag / seconds if self.knows_lag else arriving)
        widths = [vertex.parallelism for vertex in self.graph.vertices]
        rooms = [w * c / rate if rate else math.inf for w, c, rate in zip(widths, self.capacity, wanted, strict=True)]
        part = min(1.0, *rooms)
        taken = [rate * part for rate in wanted]
        self.lag = max(0.0, self.lag + (arriving - taken[0]) * seconds)
        samples = []
        for i, vertex in enumerate(self.graph.vertices):
            busy = min(1.0, taken[i] / (widths[i] * self.capacity[i]))
            held = 1.0 - busy if i == 0 and min(rooms[1:], default=1.0) < 1.0 else 0.0
            samples.append(
                VertexMetrics(
                    id=vertex.id, name=vertex.name, parallelism=widths[i], inputs=(f"v{i - 1}",) if i else (),
                    rows_in=taken[i], rows_out=taken[i] * self.factor[i], busy=busy, back_pressured=held,
                    lag=self.lag if i == 0 and self.knows_lag else None,
                )
            )  # fmt: skip
        return samples

    def become(self, change, arriving):
        self.graph = msgspec.structs.replace(
            self.graph,
            vertices=tuple(
                msgspec.structs.replace(v, parallelism=change.get(v.id, v.parallelism)) for v in self.graph.vertices
            ),
        )
        self.restarts += 1
        if self.knows_lag:
            self.lag += arriving * RESTART_MS / 1000

    def utilization(self, arriving):
        return [
            rate / (vertex.parallelism * capacity)
            for rate, vertex, capacity in zip(self.demand(arriving), self.graph.vertices, self.capacity, strict=True)
        ]


def run(plant, arriving, seconds, slots, *, scaler=None, options=SETTINGS, restart_ms=RESTART_MS, at=0):
    """Let the autoscaler have its way; return what it changed, as (second, change, slots needed)."""
    scaler, changes = scaler or Scaler(options), []
    for second in range(at, at + seconds, STEP):
        rate = arriving(second) if callable(arriving) else arriving
        scaler.sample(plant.run(rate, STEP), second * 1000)
        decision = scaler.decide(plant.graph, slots, restart_ms, second * 1000)
        if decision.kind == "rescale":
            plant.become(decision.change, rate)
            scaler.changed(second * 1000)
            changes.append((second, dict(decision.change), required_slots(plant.graph)))
    return changes


JOBS = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 12), min_size=n, max_size=n),
        st.lists(st.floats(50.0, 5_000.0), min_size=n, max_size=n),
        st.lists(st.floats(0.1, 3.0), min_size=n, max_size=n),
        st.frozensets(st.integers(0, 3), max_size=2),
    )
)


def of_one_width(widths, forward):
    """What is joined subtask by subtask has one parallelism."""
    widths = list(widths)
    for i in range(len(widths) - 1):
        if i in forward:
            widths[i + 1] = widths[i]
    return widths


@examples(60)
@given(JOBS, st.floats(1.0, 20_000.0), st.booleans(), st.integers(12, 80))
def test_constant_load_is_settled_in_three_steps_and_never_left(job, arriving, knows_lag, slots):
    widths, capacity, factor, forward = job
    if not knows_lag:  # else nobody knows how much there is
        capacity[0] = max(capacity[0], 1.2 * arriving / widths[0])
    plant = Plant(graph_of(of_one_width(widths, forward), forward), capacity, factor, knows_lag=knows_lag)
    changes = run(plant, arriving, 600, slots)
    # up, and behind a source that could not tell how much there is, down to what there was; what piled up is extra
    assert len(changes) <= 3, changes
    late = run(plant, arriving, 600, slots, at=600)
    assert len(changes) + len(late) <= 3, late
    for _, change, needed in changes:
        assert needed <= slots
        assert all(1 <= count <= 32 for count in change.values())
    for i in forward:
        if i + 1 < len(plant.graph.vertices):
            assert plant.graph.vertices[i].parallelism == plant.graph.vertices[i + 1].parallelism


@examples(60)
@given(JOBS, st.floats(1.0, 20_000.0), st.booleans())
def test_where_there_are_slots_enough_the_load_is_carried(job, arriving, knows_lag):
    widths, capacity, factor, _ = job
    plant = Plant(graph_of(widths), capacity, factor, knows_lag=knows_lag)
    run(plant, arriving, 600, 1000)
    highest = SETTINGS.target_utilization + SETTINGS.utilization_boundary
    if any(vertex.parallelism == 32 for vertex in plant.graph.vertices):
        return  # as many subtasks as key groups: what is behind gets what comes through
    assert max(plant.utilization(arriving)) <= highest + 1e-6


@examples(40)
@given(JOBS, st.floats(1.0, 20_000.0), st.floats(300_000.0, 2_000_000.0))
def test_a_restart_that_costs_more_than_it_wins_is_not_done(job, arriving, restart_ms):
    widths, capacity, factor, _ = job
    options = msgspec.structs.replace(SETTINGS, catch_up_duration_ms=300_000, scale_down_interval_ms=300_000)
    plant = Plant(graph_of(widths), capacity, factor, knows_lag=False)
    assert run(plant, arriving, 600, 1000, options=options, restart_ms=restart_ms) == []


def day(second):
    """Rows a second over a day of 2400 s: a quiet night, a morning that rises, a peak with noise, an evening."""
    wave = 0.5 - 0.5 * math.cos(2 * math.pi * second / 2400)
    return 500 + 9_500 * wave**2 + 150 * math.sin(second * 1.7)


def test_a_day_is_followed_with_few_restarts_and_little_lag():
    plant = Plant(graph_of([1, 1, 1]), [4_000.0, 1_000.0, 3_000.0], [1.0, 0.5, 1.0], knows_lag=True)
    options = msgspec.structs.replace(SETTINGS, catch_up_duration_ms=120_000, scale_down_interval_ms=240_000)
    scaler, most, widest, used = Scaler(options), 0.0, 0, 0
    for start in range(0, 2400, 60):
        run(plant, day, 60, 20, scaler=scaler, options=options, at=start)
        most, widest = max(most, plant.lag), max(widest, plant.graph.vertices[1].parallelism)
        used += plant.graph.vertices[1].parallelism
    assert widest <= 20
    assert widest >= 11, "the peak of 10,000 rows/s needs more than ten that take 1,000"
    assert plant.graph.vertices[1].parallelism <= widest / 2, "the evening needs fewer again"
    assert plant.restarts <= 16
    assert most <= 200_000, "20 s of the peak at most"
    assert plant.lag < 10_000
    assert used < 0.75 * widest * 40, "a fixed width for the peak would take more"
