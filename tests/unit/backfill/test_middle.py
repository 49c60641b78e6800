"""Event time that is assigned behind a shuffle: parts that get no row hold nobody back; rows late there are counted."""

import pytest
from msgspec.structs import replace

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.qualify import findings
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.core.clock import SystemClock
from penstock.core.rand import SystemRand
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

BOUNDED = ps.WatermarkStrategy.bounded_out_of_orderness("100ms", timestamp="ts")


def graph(strategy=BOUNDED):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s")
    source = DatagenSource(rows=600, splits=1, users=5, event_rate=200, disorder_ms=0)
    orders = env.from_source(source, watermarks=ps.WatermarkStrategy.none(), uid="orders").rebalance()
    timed = orders.assign_timestamps_and_watermarks(strategy).uid("timed")
    counts = timed.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count()).uid("counts")
    counts.sink_to(FileSink("/tmp/none"), uid="out")
    return env.job_graph()


@pytest.mark.parametrize("parts", [1, 8])
def test_parts_without_rows_do_not_hold_event_time_back(parts, tmp_path):
    options = BackfillOptions(target=str(tmp_path / "savepoint"), parts=parts)
    made = Backfill(graph(), options, SystemClock(), SystemRand()).run(LocalEngine(), lambda *_: None)
    assert made.rows_read == 600
    assert made.rows_staged == 2 * 5, "two of three seconds are over, for each of five users"


class LateEngine(LocalEngine):
    """Runs tasks of which each has dropped two rows as late."""

    def run(self, stage, progress):
        return [replace(result, late=2) for result in super().run(stage, progress)]


def test_late_rows_are_counted_over_all_tasks(tmp_path):
    options = BackfillOptions(target=str(tmp_path / "savepoint"), parts=8)
    made = Backfill(graph(), options, SystemClock(), SystemRand()).run(LateEngine(), lambda *_: None)
    assert made.rows_late == 2 * (1 + 8 + 8), "one split, eight parts of each stage behind it"


class Marks:
    def on_batch(self, times, rows):
        return None

    def on_periodic(self, now):
        return None


def test_a_generator_that_only_the_clock_would_ask_is_taken_by_name_only():
    (found,) = findings(graph(ps.WatermarkStrategy.for_generator(Marks, timestamp="ts")))
    assert (found.uid, found.acceptable) == ("timed", True)
