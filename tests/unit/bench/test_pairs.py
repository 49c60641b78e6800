"""Pairs with and without checkpoints: their order, the losses and their medians."""

from penstock_lab.bench.measuring.comparisons import measure_pairs
from penstock_lab.bench.options import BenchOptions


def test_pairs_are_run_in_turn_and_compared_by_medians():
    rates = {True: iter([80, 90, 100]), False: iter([100, 100, 100])}
    order = []

    def measure(options):
        checkpoints = options.checkpoint_interval_ms is not None
        order.append(checkpoints)
        rate = next(rates[checkpoints])
        common = {"workload": "w1", "events": 1000, "load": 0.5, "checkpoints": 3, "max_freeze_ms": 0.1}
        return common | {"wall_seconds": 1000 / rate, "cpu_seconds": 1.0, "events_per_cpu_second": rate * 10}

    found = measure_pairs(BenchOptions(pairs=3), measure)
    assert order == [True, False, False, True, True, False]
    assert found["events_per_cpu_second"] == 800, "the first run with checkpoints"
    assert found["loss_percent"]["events_per_cpu_second"] == [20.0, 10.0, 0.0]
    assert found["median_loss_percent"] == {"events_per_cpu_second": 10.0, "events_per_second": 10.0}
    assert found["medians"]["events_per_cpu_second"] == {"with": 900, "without": 1000}
    assert [pair["without"]["events_per_second"] for pair in found["pairs"]] == [100, 100, 100]
