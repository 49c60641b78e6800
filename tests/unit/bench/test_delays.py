"""What is said of late results: percentiles by result, what is left out, and the two runs that are put together."""

import msgspec
import numpy as np
import pytest

from penstock.core.errors import PenstockError
from penstock_lab.bench.measuring.comparisons import measure_latency
from penstock_lab.bench.measuring.delays import latency_figures, percentile
from penstock_lab.bench.options import BenchOptions
from penstock_lab.workloads.delays import BINS, Delays, Schedule


def delays(arrivals=(), **fields):
    defaults = {"rows": 0, "first_ms": -1.0, "last_ms": -1.0}
    return Delays(**defaults | fields, arrivals=np.array(arrivals, np.int64).tobytes())


def schedule(heights, moments, **fields):
    progress = {"s": (np.array(heights, np.int64).tobytes(), np.array(moments, np.int64).tobytes())}
    return Schedule(**{"rows": 10, "first_ms": 0.0, "last_ms": 100.0, "wall_ms": 0.0, "progress": progress} | fields)


def test_windows_count_by_their_results_and_only_those_that_rows_completed_after_settling():
    made = schedule([5_000, 15_000, 25_000], [10_000, 20_000, 30_000])
    # due at 10, 20, 30 ms, and never
    seen = [delays([(0, 99_000, 1), (10_000, 21_000, 98), (20_000, 32_500, 1)]), delays([(10_000, 24_000, 1)])]
    seen.append(delays([(30_000, 40_000, 7)]))
    found = latency_figures(seen, [made], "windows", bound_ms=5, settle_ms=15.0)
    assert found["results"] == 100
    assert [found[name] for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms")] == [1.0, 2.5, 4.0, 4.0]
    assert (found["rows"], found["rows_per_second"]) == (10, 100)
    none = latency_figures(seen, [made], "windows", bound_ms=5, settle_ms=35.0)
    assert [none[name] for name in ("results", "p50_ms", "p99_ms", "max_ms")] == [0, None, None, None]


def test_windows_of_the_clock_are_due_when_the_clock_passes_their_end():
    made = schedule([], [], wall_ms=1000.0)
    found = latency_figures(
        [delays([(1_001_000, 1_002_000, 5), (1_040_000, 1_043_000, 5), (1_060_000, 1_044_000, 5)])],
        [made],
        "clock",
        bound_ms=0,
        settle_ms=20.0,
    )
    assert (found["results"], found["p50_ms"], found["max_ms"]) == (5, 3.0, 3.0)


def test_rows_are_counted_by_the_sink():
    counts = [0] * BINS
    counts[3], counts[9] = 99, 1
    seen = [delays(counts=counts, largest_us=950, rows=50, last_ms=200.0)]
    found = latency_figures(seen, [schedule([], [])], "rows", bound_ms=0, settle_ms=0.0)
    assert [found[name] for name in ("results", "p50_ms", "p99_ms", "p999_ms", "max_ms")] == [100, 0.4, 0.4, 1.0, 0.9]
    assert found["rows_per_second"] == 50, "until the last row has arrived"
    assert percentile(np.zeros(BINS, np.int64), 0.5) == 0.0


def test_nothing_left_is_an_error():
    with pytest.raises(PenstockError, match="recorded no times"):
        latency_figures([], [], "rows", bound_ms=0, settle_ms=0.0)


def runs(options, *, rate=1000.0, rows_a_row=0.5):
    asked = []

    def measure(events, chosen):
        asked.append((events, chosen))
        found = {"rows": int(events * rows_a_row), "rows_per_second": rate, "results": 3, "p50_ms": float(len(asked))}
        return {"events": events, "latency": found, "cpu_seconds": 1.0, "checkpoints": 1, "load": 0.0}

    return measure_latency(600, options, measure), asked


def test_a_job_runs_at_full_speed_then_at_half_of_that_rate():
    figures, asked = runs(BenchOptions(latency=True, events=600))
    (full, at_full), (paced, at_half) = asked
    assert (full, paced) == (600, 600)
    assert (at_full.rate, at_half.rate) == (0.0, 500.0)
    assert (at_full.latency, at_half.latency) == (False, False)
    assert at_half.settle_ms == pytest.approx(0.15 * 1000 * 300 / 500)
    late = figures["latency"]
    assert (late["most_rows_per_second"], late["rows_per_second"], late["p50_ms"]) == (1000, 500, 2.0)
    assert figures["events"] == 600


def test_without_a_size_the_runs_are_long_enough_to_show_something():
    _, asked = runs(BenchOptions(latency=True))
    assert [events for events, _ in asked] == [600, 7800, 12_000]
    assert asked[-1][1].settle_ms == pytest.approx(0.15 * 12_000)
    assert msgspec.json.decode(msgspec.json.encode(asked[-1][1]), type=BenchOptions) == asked[-1][1]
