"""Computes a job's target parallelism from its metrics, as Flink's autoscaler (DS2) does; a pure decider.

`RestartCost` measures what a restart costs. `Scaler` collects samples and decides. Called by `jobs.autoscaler`,
which knows jobs and clocks. Rates are rows per second, shares 0 to 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.config.settings import AutoscalerSettings
from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.rescale import forward_groups, is_single, within_bounds

_KEPT = 5


class RestartCost:
    """The restart cost of one job, sampled regularly; the first start does not count."""

    def __init__(self, assumed_ms: float) -> None:
        """Start with an estimate of `assumed_ms`, used until the first measurement."""
        self._assumed_ms = assumed_ms
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._stopped_ms: int | None = None
        self._checkpoints = 0
        self._ran = False
        self._since_ms: int | None = None
        self._sampled_ms = 0

    def sample(self, now_ms: int, *, running_since_ms: int | None, checkpoints: int, periodic: bool) -> None:
        """Sample the job: since when it runs (None: it does not) and its number of completed checkpoints."""
        if running_since_ms is None:
            if self._ran and self._stopped_ms is None:
                self._stopped_ms, self._checkpoints = now_ms, checkpoints
            return
        if self._ran and self._stopped_ms is None and running_since_ms != self._since_ms:
            # a restart between two samples: the job still ran at the previous one
            self._stopped_ms, self._checkpoints = self._sampled_ms, checkpoints
        self._ran, self._since_ms, self._sampled_ms = True, running_since_ms, now_ms
        if self._stopped_ms is None or (periodic and checkpoints <= self._checkpoints):
            return
        self._seen.append((now_ms if periodic else running_since_ms) - self._stopped_ms)
        self._stopped_ms = None

    @property
    def pending(self) -> bool:
        """Whether a restart is in progress."""
        return self._stopped_ms is not None

    @property
    def measured(self) -> int:
        """The number of measured restarts."""
        return len(self._seen)

    @property
    def cost_ms(self) -> float:
        """The mean of the last measurements, or the estimate."""
        return sum(self._seen) / len(self._seen) if self._seen else self._assumed_ms


#: Shares below these are measurement noise.
_MIN_BUSY, _MIN_BACK_PRESSURE = 0.01, 0.05
#: Upper limit of the back-pressured share of a source.
_MAX_BACK_PRESSURE = 0.95


@dataclass(frozen=True, slots=True)
class VertexMetrics:
    """The metrics of one vertex at one time: sums of its subtasks' rates, means of their shares."""

    id: str
    name: str
    parallelism: int
    #: Upstream vertices; empty for a source.
    inputs: tuple[str, ...]
    #: Rows received per second (emitted, for a source) and emitted per second.
    rows_in: float
    rows_out: float
    busy: float
    back_pressured: float
    #: Rows waiting in front of a source, if it reports them.
    lag: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """The measured capacity of a vertex and its target parallelism."""

    name: str
    parallelism: int
    #: Capacity of all its subtasks and demand, in rows per second.
    true_rate: float
    target_rate: float
    #: Subtasks for the demand; the current number if utilization is within bounds.
    wanted: int

    @property
    def utilization(self) -> float:
        """The share of time that the vertex would be busy at the target rate."""
        return self.target_rate / self.true_rate if self.true_rate else 0.0

    def sustained_share(self, parallelism: int, target: float) -> float:
        """Return the share of the target rate that `parallelism` subtasks process at a utilization of `target`."""
        if not self.target_rate:
            return 1.0
        return min(1.0, self.true_rate / self.parallelism * parallelism * target / self.target_rate)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a sample. `kind`: `wait`, `keep`, `rescale`, `not-worth`."""

    kind: str
    text: str
    targets: Mapping[str, ScalingTarget]
    #: Vertex id -> new parallelism, for the vertices that change.
    change: Mapping[str, int]


def targets(
    samples: Sequence[VertexMetrics], settings: AutoscalerSettings, lag_growth: Mapping[str, float]
) -> dict[str, ScalingTarget]:
    """Return the target of each vertex.

    `samples` are in topological order, `lag_growth` is in rows per second by source.
    """
    target, boundary = settings.target_utilization, settings.utilization_boundary
    by_id = {sample.id: sample for sample in samples}
    more: dict[str, float] = {}
    found: dict[str, ScalingTarget] = {}
    for sample in samples:
        more[sample.id] = (
            _source_factor(sample, settings, lag_growth) if not sample.inputs else _inputs_factor(sample, by_id, more)
        )
        target_rate = sample.rows_in * more[sample.id]
        true_rate = sample.rows_in / min(1.0, max(sample.busy, _MIN_BUSY))
        need = ScalingTarget(sample.name, sample.parallelism, true_rate, target_rate, sample.parallelism)
        if target_rate and not target - boundary <= need.utilization <= target + boundary:
            exact = sample.parallelism * need.utilization / target
            # ignore rounding errors just above a whole number
            count = max(settings.min_parallelism, math.ceil(min(settings.max_parallelism, exact - 1e-6)))
            need = ScalingTarget(sample.name, sample.parallelism, true_rate, target_rate, count)
        found[sample.id] = need
    return found


def _source_factor(sample: VertexMetrics, settings: AutoscalerSettings, lag_growth: Mapping[str, float]) -> float:
    """Return the factor by which a source should emit more than now."""
    if not sample.rows_in:
        return 1.0
    if sample.lag is not None:
        wanted = sample.rows_in + lag_growth.get(sample.id, 0.0) + sample.lag * 1000 / settings.catch_up_duration_ms
        return max(0.0, wanted) / sample.rows_in
    held = min(_MAX_BACK_PRESSURE, sample.back_pressured)
    return 1.0 / (1.0 - held) if held > _MIN_BACK_PRESSURE else 1.0


def _inputs_factor(sample: VertexMetrics, by_id: Mapping[str, VertexMetrics], more: Mapping[str, float]) -> float:
    """Return the mean of the inputs' factors, weighted by their output rates."""
    rows = sum(by_id[i].rows_out for i in sample.inputs)
    if not rows:
        return max(more[i] for i in sample.inputs)
    return sum(more[i] * by_id[i].rows_out for i in sample.inputs) / rows


class Scaler:
    """The samples of one job, and the decisions from them."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        """Start without samples."""
        self._settings = settings
        self._samples: deque[tuple[int, tuple[VertexMetrics, ...]]] = deque()
        self._changed_ms: int | None = None
        self._not_before_ms = 0

    def sample(self, samples: Sequence[VertexMetrics], now_ms: int) -> None:
        """Add a sample; the job's shape must equal that of the previous one."""
        self._samples.append((now_ms, tuple(samples)))
        while now_ms - self._samples[0][0] > self._settings.metrics_window_ms and len(self._samples) > 2:
            self._samples.popleft()

    def discard_samples(self) -> None:
        """Discard the samples: the job is not running."""
        self._samples.clear()

    def changed(self, now_ms: int) -> None:
        """Discard the samples: the job has other vertices or another parallelism."""
        self._changed_ms = now_ms
        self._samples.clear()

    def failed(self, now_ms: int, *, retry_soon: bool = False) -> None:
        """Pause after a failed rescale: a short time if the obstacle was temporary, otherwise a long one."""
        settings = self._settings
        pause_ms = settings.stabilization_interval_ms if retry_soon else settings.scale_down_interval_ms
        self._not_before_ms = now_ms + pause_ms

    def decide(self, graph: JobGraph, slots: int, restart_ms: float, now_ms: int) -> Decision:
        """Decide for a job that has run for at least `stabilization_interval` and is not being changed.

        `slots` is the number it has or could get, `restart_ms` the cost of a restart.
        """
        settings = self._settings
        begun = self._samples[0][0] if self._samples else now_ms
        missing = settings.metrics_window_ms - (now_ms - begun)
        # samples are a second apart: the first of the window may be a second late
        if missing > 1000 or len(self._samples) < 2:
            return Decision("wait", f"collecting metrics for {max(0, missing) / 1000:.0f} s more", {}, {})
        if now_ms < self._not_before_ms:
            return Decision("wait", "pausing after the last change failed", {}, {})
        samples, growth = self._mean()
        found = targets(samples, settings, growth)
        change = self._change(graph, found, slots, now_ms)
        if not change:
            return Decision("keep", _seen(found) or "no input rows", found, {})
        text = ", ".join(f"{found[i].name} {found[i].parallelism} -> {count}" for i, count in change.items())
        loss = _net_loss(graph, found, change, settings, restart_ms)
        if loss:
            return Decision("not-worth", f"{text} is not worthwhile: {loss}; {_seen(found)}", found, change)
        cost = f"a restart costs {restart_ms / 1000:.1f} s"
        return Decision("rescale", f"{text}: {_seen(found)}; {cost}", found, change)

    def _mean(self) -> tuple[tuple[VertexMetrics, ...], dict[str, float]]:
        count = len(self._samples)
        first_ms, first = self._samples[0]
        last_ms, last = self._samples[-1]
        seconds = max(1e-3, (last_ms - first_ms) / 1000)

        def mean(place: int, name: str) -> float:
            return sum(float(getattr(samples[place], name)) for _, samples in self._samples) / count

        averaged = tuple(
            VertexMetrics(
                id=sample.id,
                name=sample.name,
                parallelism=sample.parallelism,
                inputs=sample.inputs,
                rows_in=mean(place, "rows_in"),
                rows_out=mean(place, "rows_out"),
                busy=mean(place, "busy"),
                back_pressured=mean(place, "back_pressured"),
                lag=sample.lag,
            )
            for place, sample in enumerate(last)
        )
        growth = {
            new.id: (new.lag - old.lag) / seconds
            for old, new in zip(first, last, strict=True)
            if new.lag is not None and old.lag is not None
        }
        return averaged, growth

    def _change(self, graph: JobGraph, found: Mapping[str, ScalingTarget], slots: int, now_ms: int) -> dict[str, int]:
        """Return the vertices whose parallelism changes, within the limits of slots and key groups."""
        settings = self._settings
        wanted: dict[str, int] = {}
        for group in forward_groups(graph):
            known = [found[v.id].wanted for v in group if v.id in found]
            if known and not any(is_single(v) for v in group):
                count = min(max(known), graph.settings.key_groups)
                wanted.update((v.id, count) for v in group)
        today = {v.id: v.parallelism for v in graph.vertices}
        smaller_at = None if self._changed_ms is None else self._changed_ms + settings.scale_down_interval_ms
        if smaller_at is not None and now_ms < smaller_at:
            wanted = {i: max(count, today[i]) for i, count in wanted.items()}
        try:
            least = {i: min(count, today[i]) for i, count in wanted.items()}
            fitting = (
                within_bounds(graph, {i: (least[i], count) for i, count in wanted.items()}, slots) if wanted else {}
            )
        except UsageError:
            return {}  # slots were lost: the job holds more than are available
        return {i: count for i, count in fitting.items() if count != today[i]}


def _net_loss(
    graph: JobGraph,
    found: Mapping[str, ScalingTarget],
    change: Mapping[str, int],
    settings: AutoscalerSettings,
    restart_ms: float,
) -> str:
    """Return why a change costs more than it gains, or an empty string."""
    target = settings.target_utilization
    now = min(need.sustained_share(need.parallelism, target) for need in found.values())
    then = min(need.sustained_share(change.get(i, need.parallelism), target) for i, need in found.items())
    if then > now:
        period = settings.catch_up_duration_ms
        won, lost = (then - now) * max(0.0, period - restart_ms), now * restart_ms
        what = f"within {period / 1000:.0f} s the gain is {won / 1000:.1f} s of the whole load"
    elif any(count > found[i].parallelism for i, count in change.items() if i in found):
        return f"another vertex still limits the job to {now:.0%} of the load"
    else:
        period = settings.scale_down_interval_ms
        before = required_slots(graph)
        vertices = tuple(
            msgspec.structs.replace(v, parallelism=change.get(v.id, v.parallelism)) for v in graph.vertices
        )
        after = required_slots(msgspec.structs.replace(graph, vertices=vertices))
        if before == after:
            return "it frees no slot"
        won, lost = (before - after) * max(0.0, period - restart_ms), before * restart_ms
        what = f"within {period / 1000:.0f} s it saves {won / 1000:.1f} slot seconds"
    return "" if won > lost else f"{what}, and a restart costs {lost / 1000:.1f} s"


def _seen(found: Mapping[str, ScalingTarget]) -> str:
    return ", ".join(
        f"{need.name} x{need.parallelism} would be busy {need.utilization:.0%} of the time at {need.target_rate:,.0f}/s"
        for need in found.values()
        if need.target_rate
    )
