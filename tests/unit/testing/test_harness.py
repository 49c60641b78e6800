"""The testing kit: jobs and functions in the test's own process."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from tests.support.depth import examples

import penstock as ps
from penstock.core.errors import PenstockError, StateMismatchError
from penstock.testing import Fault, JobHarness, faults, simulate
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


class Silent(ps.Schema):
    user_id: int
    orders: int


def at(second):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def order(user_id, second, amount=1):
    return {"user_id": user_id, "amount": amount, "ts": at(second)}


class Silence(ps.KeyedProcessFunction):
    """A minute after a user's order: how many there were so far."""

    count: ps.ValueState[int] = ps.value_state()

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Silent]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timers.event(ctx.timestamp + 60_000_000)
        return iter(())

    def on_timer(self, timestamp, ctx: ps.ProcessContext) -> Iterator[Silent]:
        yield Silent(user_id=ctx.key, orders=self.count.value() or 0)


class Reminder(ps.KeyedProcessFunction):
    """Ten seconds of processing time after an order."""

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Silent]:
        ctx.timers.processing(ctx.processing_time + 10_000_000)
        return iter(())

    def on_timer(self, timestamp, ctx: ps.ProcessContext) -> Iterator[Silent]:
        yield Silent(user_id=ctx.key, orders=0)


class Forgetful(Silence):
    """Keeps its counts outside its state."""

    def open(self, ctx):
        self.counts = {}

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Silent]:
        self.counts[row.user_id] = self.counts.get(row.user_id, 0) + 1
        yield Silent(user_id=row.user_id, orders=self.counts[row.user_id])


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def orders():
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    return ps.Environment(parallelism=2).from_source(DatagenSource(), watermarks=strategy, uid="orders")


@pytest.fixture
def totals(orders):
    windows = orders.key_by("user_id").window(ps.Tumbling("10s"))
    return windows.aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")


def test_rows_and_watermarks_are_the_tests(totals):
    with JobHarness(totals) as job:
        job.push("orders", [order(1, 1, 5), order(1, 2, 6)])
        assert job.rows() == []
        job.watermark("orders", at(10))
        expected = {"user_id": 1, "window_start": at(0), "window_end": at(10), "n": 2, "total": 11}
        assert job.take() == [expected]
        assert job.take() == []
        assert job.frame().columns == list(expected)


def test_an_idle_partition_stays_idle_while_rows_of_another_come():
    strategy = ps.WatermarkStrategy.monotonic(timestamp="ts").with_idleness("10s")
    rows = ps.Environment(parallelism=1).from_source(DatagenSource(), watermarks=strategy, uid="orders")
    totals = rows.key_by("user_id").window(ps.Tumbling("10s")).aggregate(n=ps.count()).uid("totals")
    with JobHarness(totals, partitions=2) as job:
        job.push("orders", [order(1, 1)], partition=0)
        for second in (5, 15, 25):
            job.advance("5s")
            job.push("orders", [order(1, second)], partition=1)
        assert [row["n"] for row in job.rows()] == [2, 1]


def test_the_jobs_own_watermark_strategy_sees_the_rows(totals):
    with JobHarness(totals) as job:
        job.push("orders", [order(1, 1)])
        job.push("orders", [order(1, 14)])
        assert job.rows() == []
        job.push("orders", [order(1, 15)])
        assert [row["n"] for row in job.rows()] == [1]
        job.push("orders", [order(1, 2)])
        assert job.late_rows("totals") == 1


def test_the_end_of_input_fires_all_windows(totals):
    with JobHarness(totals) as job:
        job.push("orders", pl.DataFrame([order(1, 1), order(2, 99)]).select("user_id", "amount", "ts"))
        job.end()
        assert {row["user_id"] for row in job.rows()} == {1, 2}


def test_state_and_timers_can_be_seen(orders):
    with JobHarness(orders.key_by("user_id").process(Silence()).uid("silence")) as job:
        job.push("orders", [order(7, 1), order(7, 3)])
        assert job.state("silence", "count")["value"].to_list() == [2]
        assert job.timers("silence").rows() == [(7, at(61)), (7, at(63))]
        job.watermark("orders", at(62))
        assert job.rows() == [{"user_id": 7, "orders": 2}]
        assert job.timers("silence").rows() == [(7, at(63))]


def test_timers_of_processing_time_follow_the_tests_clock(orders):
    with JobHarness(orders.key_by("user_id").process(Reminder()).uid("r"), start=at(100)) as job:
        job.push("orders", [order(7, 1)])
        assert job.timers("r", domain="processing").rows() == [(7, at(110))]
        job.advance("9s")
        assert job.rows() == []
        job.advance("1s")
        assert job.rows() == [{"user_id": 7, "orders": 0}]


def test_a_crash_goes_back_to_the_checkpoint_and_output_stays_exact(totals):
    with JobHarness(totals) as job:
        job.push("orders", [order(1, 1)])
        job.checkpoint()
        job.push("orders", [order(1, 2)])
        job.watermark("orders", at(10))
        before = job.rows()
        assert [row["n"] for row in before] == [2]
        job.crash()
        assert job.rows() == before
        job.rescale(3)
        job.push("orders", [order(user, 20) for user in range(9)])
        job.end()
        assert len(job.rows()) == 10


def test_a_savepoint_starts_another_job(totals, tmp_path):
    with JobHarness(totals) as job:
        job.push("orders", [order(1, 1, 5)])
        uri = job.savepoint(tmp_path / "golden")
        job.push("orders", [order(1, 2, 7)])
    with JobHarness(totals, parallelism=2, from_savepoint=uri) as job:
        job.end()
        assert [row["total"] for row in job.rows()] == [5]


def test_a_savepoint_that_does_not_fit_is_refused(totals, orders, tmp_path):
    with JobHarness(totals) as job:
        uri = job.savepoint(tmp_path / "golden")
    with pytest.raises(StateMismatchError):
        JobHarness(orders.key_by("user_id").process(Silence()).uid("silence"), from_savepoint=uri)


def test_a_failure_has_the_users_line(orders):
    def broken(row: Order) -> Order:
        raise ValueError(f"no user {row.user_id}")

    with JobHarness(orders.map(broken).uid("broken")) as job, pytest.raises(ps.JobFailedError) as raised:
        job.push("orders", [order(7, 1)])
    assert "map 'broken': ValueError: no user 7" in str(raised.value)
    (own,) = raised.value.__notes__
    assert "in broken\n    raise ValueError" in own
    assert own.endswith("\nrow 1 of a batch of 1: user_id=7, amount=1, ts=2026-01-01 00:00:01+00:00")
    assert "subtask.py" not in own


def test_a_job_file_with_its_own_sources_and_sinks(tmp_path):
    place = tmp_path / "orders.py"
    place.write_text(
        "import penstock as ps\n"
        "from penstock_connectors.datagen import DatagenSource\n"
        "from penstock_connectors.files import FileSink\n"
        "env = ps.Environment(checkpoint_interval='1s')\n"
        "orders = env.from_source(DatagenSource(), uid='orders')\n"
        "orders.filter(lambda row: row.amount > 2).uid('large').sink_to(FileSink('/nowhere'), uid='out')\n"
        "env.execute('large-orders')\n"
    )
    with JobHarness(place) as job:
        assert job.sinks == ("out",)
        job.push("orders", [order(1, 1, 5), order(2, 1, 1)])
        assert [row["user_id"] for row in job.rows("out")] == [1]


def test_a_collection_takes_no_rows_and_the_error_names_the_way():
    env = ps.Environment()
    stream = env.from_collection(pl.DataFrame({"n": [1, 2, 3]}))
    way = r"read the results with rows\(\).*push rows to a source such as FileSource"
    with (
        JobHarness(stream) as job,
        pytest.raises(ps.UsageError, match=rf"source 'collection' has the rows of env\.from_collection.*{way}"),
    ):
        job.push("collection", [{"n": 4}])


def test_rows_of_a_collection_are_read_at_once():
    env = ps.Environment(checkpoint_interval="1s")
    env.from_collection(pl.DataFrame({"n": [1, 2, 3]})).map(lambda row: row).sink_to(FileSink("/nowhere"), uid="out")
    with JobHarness(env) as job:
        assert job.rows() == [{"n": 1}, {"n": 2}, {"n": 3}]
        with pytest.raises(ps.UsageError, match="there are: "):
            job.push("orders", [])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda job: job.push("order", []), r"no source 'order' \(there are: orders\)"),
        (lambda job: job.push("orders", [], partition=1), "no partition 1 .*partitions=N"),
        (lambda job: job.push("orders", [{"amount": 1}]), "push to 'orders': a row has no field 'user_id'"),
        (lambda job: job.rows("out"), r"no sink 'out' \(there are: result\)"),
        (lambda job: job.late_rows("total"), r"no operator 'total' \(there are: orders, totals, result\)"),
        (lambda job: job.state("totals", "window"), "'totals' has no state 'window' .did you mean 'windows'"),
        (lambda job: job.watermark("orders", "soon"), "'soon' is not a time"),
        (lambda job: job.watermark("orders", 5.0), "5.0 is not a time .*whole milliseconds"),
        (lambda job: job.advance("soon"), "advance"),
    ],
)
def test_mistakes_are_told(totals, call, message):
    with JobHarness(totals) as job, pytest.raises(ps.PenstockError, match=message):
        call(job)


def scenario(job):
    for step in range(6):
        job.push("orders", [order(user, 3 * step + user) for user in range(3)], partition=step % 2)
    job.end()


def test_a_simulation_finds_no_difference_in_an_exact_job(totals):
    simulate(totals, scenario, seeds=3, partitions=2)


def test_a_simulation_finds_state_outside_of_states(orders):
    forgetful = orders.key_by("user_id").process(Forgetful()).uid("forgetful")
    with pytest.raises(AssertionError, match=r"seed \d+: sink 'result' has other rows") as raised:
        simulate(forgetful, scenario, seeds=20, partitions=2)
    assert "repeat it with simulate(..., seeds=range(" in str(raised.value)


class Strict(Forgetful):
    """Fails where its counts are gone."""

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Silent]:
        ctx.timers.event(ctx.timestamp)
        self.counts[row.user_id] = 1
        yield from ()

    def on_timer(self, timestamp, ctx: ps.ProcessContext) -> Iterator[Silent]:
        yield Silent(user_id=ctx.key, orders=self.counts[ctx.key])


def test_a_simulation_names_the_seed_of_a_job_that_fails(orders):
    strict = orders.key_by("user_id").process(Strict()).uid("strict")
    with pytest.raises(AssertionError, match=r"seed \d+: with faults the job fails: .*KeyError") as raised:
        simulate(strict, scenario, seeds=50, partitions=2)
    printed = str(raised.getrepr(chain=True))
    assert "in on_timer" in printed, "the line of the user's function"
    assert "in_process.py" not in printed, "no frames of the engine"


def test_each_fault_happens_at_its_step(totals):
    kinds = ("checkpoint", "crash", "crash-in-checkpoint", "rescale")
    with JobHarness(totals, faults=[Fault(kind, steps=9, parallelism=2) for kind in kinds]) as job:
        for second in range(5):
            job.push("orders", [order(1, second)])
        job.end()
        assert [row["n"] for row in job.rows()] == [5]


@examples(60)
@given(faults=faults())
def test_any_faults_leave_the_result(faults):
    env = ps.Environment()
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("0s", timestamp="ts")
    stream = env.from_source(DatagenSource(), watermarks=strategy, uid="orders").key_by("user_id").process(Silence())
    with JobHarness(stream.uid("silence"), faults=faults) as job:
        job.push("orders", [order(7, 1)])
        job.push("orders", [order(7, 2)])
        job.watermark("orders", at(70))
        assert job.rows() == [{"user_id": 7, "orders": 2}] * 2


def blocked(row: Order) -> Order:
    held = threading.Lock()
    held.acquire()
    while True:
        with contextlib.suppress(Exception):  # a timeout is no exception that a function may suppress
            held.acquire()


def test_a_function_that_does_not_return_ends_the_call_with_its_place(orders):
    says = (
        r"job job did not end its work within 1 s: in operator 'blocked' \(0\), "
        r"at test_harness\.py:\d+ in blocked \(change the function so that it returns, or raise timeout=\)"
    )
    with JobHarness(orders.map(blocked).uid("blocked"), timeout="1s") as job, pytest.raises(PenstockError, match=says):
        job.push("orders", [order(1, 0)])


def test_an_unknown_option_is_refused(orders):
    with pytest.raises(TypeError, match=r"JobHarness\(\) got an unexpected keyword argument 'limit'"):
        JobHarness(orders, limit=3)
