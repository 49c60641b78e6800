"""Computes a job's target parallelism from its metrics: a pure decider, as in Flink's autoscaler (DS2).

The true rate of a vertex is its rate while it works: rate / busy share. Demand starts at the sources (rate, growth of
lag, share held back by back-pressure) and propagates along the graph with the rows. A vertex gets the number of
subtasks at which they are busy for `target_utilization` of the time. A restart must gain more than it costs. Called by
`jobmanager.jobs.autoscaler`, which knows jobs and clocks. Rates are rows per second, shares 0 to 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.config.settings import AutoscalerSettings
from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import required_slots
from penstock.graph.rescale import alike, is_single, within

#: Shares below these are measurement noise.
_LEAST_BUSY, _LEAST_HELD = 0.01, 0.05
#: Upper limit of the back-pressured share of a source.
_MOST_HELD = 0.95


@dataclass(frozen=True, slots=True)
class VertexLook:
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
class Need:
    """The measured capacity of a vertex and its target parallelism."""

    name: str
    parallelism: int
    #: Capacity of all its subtasks and demand, in rows per second.
    true_rate: float
    wanted_rate: float
    #: Subtasks for the demand; the current number if utilization is within bounds.
    wanted: int

    @property
    def utilization(self) -> float:
        """The share of time that the vertex would be busy at the wanted rate."""
        return self.wanted_rate / self.true_rate if self.true_rate else 0.0

    def carried(self, parallelism: int, target: float) -> float:
        """Return the share of the wanted rate that `parallelism` subtasks process at a utilization of `target`."""
        if not self.wanted_rate:
            return 1.0
        return min(1.0, self.true_rate / self.parallelism * parallelism * target / self.wanted_rate)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a sample. `kind`: `wait`, `keep`, `rescale`, `not-worth`."""

    kind: str
    text: str
    needs: Mapping[str, Need]
    #: Vertex id -> new parallelism, for the vertices that change.
    change: Mapping[str, int]


def needs(
    looks: Sequence[VertexLook], settings: AutoscalerSettings, lag_growth: Mapping[str, float]
) -> dict[str, Need]:
    """Return the target of each vertex.

    `looks` are in topological order, `lag_growth` is in rows per second by source.
    """
    target, boundary = settings.target_utilization, settings.utilization_boundary
    by_id = {look.id: look for look in looks}
    more: dict[str, float] = {}
    found: dict[str, Need] = {}
    for look in looks:
        more[look.id] = _of_source(look, settings, lag_growth) if not look.inputs else _of_inputs(look, by_id, more)
        wanted_rate = look.rows_in * more[look.id]
        true_rate = look.rows_in / min(1.0, max(look.busy, _LEAST_BUSY))
        need = Need(look.name, look.parallelism, true_rate, wanted_rate, look.parallelism)
        if wanted_rate and not target - boundary <= need.utilization <= target + boundary:
            exact = look.parallelism * need.utilization / target
            # ignore rounding errors just above a whole number
            count = max(settings.min_parallelism, math.ceil(min(settings.max_parallelism, exact - 1e-6)))
            need = Need(look.name, look.parallelism, true_rate, wanted_rate, count)
        found[look.id] = need
    return found


def _of_source(look: VertexLook, settings: AutoscalerSettings, lag_growth: Mapping[str, float]) -> float:
    """Return the factor by which a source should emit more than now."""
    if not look.rows_in:
        return 1.0
    if look.lag is not None:
        wanted = look.rows_in + lag_growth.get(look.id, 0.0) + look.lag * 1000 / settings.catch_up_duration_ms
        return max(0.0, wanted) / look.rows_in
    held = min(_MOST_HELD, look.back_pressured)
    return 1.0 / (1.0 - held) if held > _LEAST_HELD else 1.0


def _of_inputs(look: VertexLook, by_id: Mapping[str, VertexLook], more: Mapping[str, float]) -> float:
    """Return the mean of the inputs' factors, weighted by their output rates."""
    rows = sum(by_id[i].rows_out for i in look.inputs)
    if not rows:
        return max(more[i] for i in look.inputs)
    return sum(more[i] * by_id[i].rows_out for i in look.inputs) / rows


class Scaler:
    """The samples of one job, and the decisions from them."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        """Start without samples."""
        self._settings = settings
        self._looks: deque[tuple[int, tuple[VertexLook, ...]]] = deque()
        self._changed_ms: int | None = None
        self._not_before_ms = 0

    def look(self, looks: Sequence[VertexLook], now_ms: int) -> None:
        """Add a sample; the job's shape must equal that of the previous one."""
        self._looks.append((now_ms, tuple(looks)))
        while now_ms - self._looks[0][0] > self._settings.metrics_window_ms and len(self._looks) > 2:
            self._looks.popleft()

    def unsettled(self) -> None:
        """Discard the samples: the job is not running."""
        self._looks.clear()

    def changed(self, now_ms: int) -> None:
        """Discard the samples: the job has other vertices or another parallelism."""
        self._changed_ms = now_ms
        self._looks.clear()

    def failed(self, now_ms: int, *, put_off: bool = False) -> None:
        """Pause after a failed rescale: a short time if the obstacle was temporary, otherwise a long one."""
        settings = self._settings
        pause_ms = settings.stabilization_interval_ms if put_off else settings.scale_down_interval_ms
        self._not_before_ms = now_ms + pause_ms

    def decide(self, graph: JobGraph, slots: int, restart_ms: float, now_ms: int) -> Decision:
        """Decide for a job that has run for at least `stabilization_interval` and is not being changed.

        `slots` is the number it has or could get, `restart_ms` the cost of a restart.
        """
        settings = self._settings
        begun = self._looks[0][0] if self._looks else now_ms
        missing = settings.metrics_window_ms - (now_ms - begun)
        # samples are a second apart: the first of the window may be a second late
        if missing > 1000 or len(self._looks) < 2:
            return Decision("wait", f"collecting metrics for {max(0, missing) / 1000:.0f} s more", {}, {})
        if now_ms < self._not_before_ms:
            return Decision("wait", "pausing after the last change failed", {}, {})
        looks, growth = self._mean()
        found = needs(looks, settings, growth)
        change = self._change(graph, found, slots, now_ms)
        if not change:
            return Decision("keep", _seen(found) or "no input rows", found, {})
        text = ", ".join(f"{found[i].name} {found[i].parallelism} -> {count}" for i, count in change.items())
        loss = _loss(graph, found, change, settings, restart_ms)
        if loss:
            return Decision("not-worth", f"{text} is not worthwhile: {loss}; {_seen(found)}", found, change)
        cost = f"a restart costs {restart_ms / 1000:.1f} s"
        return Decision("rescale", f"{text}: {_seen(found)}; {cost}", found, change)

    def _mean(self) -> tuple[tuple[VertexLook, ...], dict[str, float]]:
        count = len(self._looks)
        first_ms, first = self._looks[0]
        last_ms, last = self._looks[-1]
        seconds = max(1e-3, (last_ms - first_ms) / 1000)

        def mean(place: int, name: str) -> float:
            return sum(float(getattr(looks[place], name)) for _, looks in self._looks) / count

        averaged = tuple(
            VertexLook(
                id=look.id,
                name=look.name,
                parallelism=look.parallelism,
                inputs=look.inputs,
                rows_in=mean(place, "rows_in"),
                rows_out=mean(place, "rows_out"),
                busy=mean(place, "busy"),
                back_pressured=mean(place, "back_pressured"),
                lag=look.lag,
            )
            for place, look in enumerate(last)
        )
        growth = {
            new.id: (new.lag - old.lag) / seconds
            for old, new in zip(first, last, strict=True)
            if new.lag is not None and old.lag is not None
        }
        return averaged, growth

    def _change(self, graph: JobGraph, found: Mapping[str, Need], slots: int, now_ms: int) -> dict[str, int]:
        """Return the vertices whose parallelism changes, within the limits of slots and key groups."""
        settings = self._settings
        wanted: dict[str, int] = {}
        for group in alike(graph):
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
            fitting = within(graph, {i: (least[i], count) for i, count in wanted.items()}, slots) if wanted else {}
        except UsageError:
            return {}  # slots were lost: the job holds more than are available
        return {i: count for i, count in fitting.items() if count != today[i]}


def _loss(
    graph: JobGraph,
    found: Mapping[str, Need],
    change: Mapping[str, int],
    settings: AutoscalerSettings,
    restart_ms: float,
) -> str:
    """Return why a change costs more than it gains, or an empty string."""
    target = settings.target_utilization
    now = min(need.carried(need.parallelism, target) for need in found.values())
    then = min(need.carried(change.get(i, need.parallelism), target) for i, need in found.items())
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


def _seen(found: Mapping[str, Need]) -> str:
    return ", ".join(
        f"{need.name} x{need.parallelism} would be busy {need.utilization:.0%} of the time at {need.wanted_rate:,.0f}/s"
        for need in found.values()
        if need.wanted_rate
    )
