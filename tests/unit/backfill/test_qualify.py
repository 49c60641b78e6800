"""What a backfill takes of a job, what only by name, and what never."""

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.backfill.qualify import findings, require_qualified
from penstock.core.errors import UsageError
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
from penstock_connectors.kafka import KafkaSource

ORDERS = pa.schema({"user_id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "amount": pa.int64()})
BOUNDED = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")


def graph(build, watermarks=BOUNDED, folder="/tmp/none", source=None):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s")
    source = env.from_source(source or DatagenSource(rows=10), watermarks=watermarks, uid="orders")
    build(source).sink_to(FileSink(folder), uid="out")
    return env.job_graph()


def windows(orders):
    return orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count()).uid("windows")


def running(orders):
    return orders.filter(pl.col("amount") > 1).key_by("user_id").aggregate(n=ps.count()).uid("running")


def test_windows_of_event_time_qualify():
    assert findings(graph(windows)) == []
    require_qualified(graph(windows))


def test_what_goes_by_arrival_is_taken_by_name_only():
    (found,) = findings(graph(running))
    assert (found.uid, found.acceptable, found.accepted) == ("running", True, False)
    with pytest.raises(UsageError, match=r"'running' \(running_aggregate\).*--accept running"):
        require_qualified(graph(running))
    require_qualified(graph(running), ["running"])


def test_ingestion_time_is_never_taken():
    job = graph(windows, ps.WatermarkStrategy.ingestion_time())
    (found,) = findings(job)
    assert (found.uid, found.acceptable) == ("orders", False)
    with pytest.raises(UsageError, match="needs it"):
        require_qualified(job, ["orders"])


def test_a_sink_that_cannot_wait_is_refused():
    job = graph(windows)
    sink = job.vertices[-1].operators[-1]
    sink.config["sink"]["delivery"] = "at-least-once"
    with pytest.raises(UsageError, match=r"'out'.*'at-least-once' has no staged output"):
        require_qualified(job)


def test_a_name_that_needs_no_accepting_is_an_error():
    with pytest.raises(UsageError, match="--accept windows"):
        findings(graph(windows), ["windows"])


def joined(window):
    def build(orders):
        return (
            orders.join(orders.select("user_id", "ts", more="amount"))
            .where("user_id")
            .equal_to("user_id")
            .window(window)
            .uid("joined")
        )

    return build


@pytest.mark.parametrize("window", [ps.Tumbling("1s", time="processing"), ps.Session("1s", time="processing")])
def test_a_join_over_windows_of_processing_time_is_never_taken(window):
    job = graph(joined(window))
    (found,) = findings(job)
    assert (found.uid, found.acceptable, found.reason) == ("joined", False, "it uses processing time")
    with pytest.raises(UsageError, match="needs it"):
        findings(job, ["joined"])
    assert findings(graph(joined(ps.Session("1s")))) == []


def test_a_session_of_processing_time_that_keeps_its_rows_is_never_taken():
    session = ps.Session("1s", time="processing")
    job = graph(lambda orders: orders.key_by("user_id").window(session).aggregate(n=ps.count()).uid("sessions"))
    (found,) = findings(job)
    assert (found.kind, found.acceptable) == ("window_rows", False)


class Seen(ps.Schema):
    n: int


class Remembers(ps.KeyedProcessFunction):
    seen: ps.ValueState[int] = ps.value_state(ttl="1h")

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Seen]:
        yield Seen(n=1)


def longest(left, right):
    return max(left, right)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda keyed: keyed.deduplicate(keep="first"), "the order in which rows arrive"),
        (lambda keyed: keyed.reduce(longest), "the order in which rows arrive"),
        (lambda keyed: keyed.process(Remembers()), "its time-to-live uses the clock"),
    ],
)
def test_what_differs_by_order_or_by_the_clock_is_taken_by_name_only(build, reason):
    job = graph(lambda orders: build(orders.key_by("user_id")).uid("one"))
    (found,) = findings(job)
    assert found.acceptable
    assert reason in found.reason
    require_qualified(job, ["one"])


def test_dead_letters_that_a_reader_publishes_are_taken_by_name_only():
    def source(topic):
        return KafkaSource(
            "localhost:9092", "orders", schema=ORDERS,
            on_bad_record="dead-letter", dead_letter_topic=topic,
        )  # fmt: skip

    def with_letters(orders):
        orders.side_output("dead-letter").sink_to(FileSink("/tmp/letters"), uid="letters")
        return windows(orders)

    (found,) = findings(graph(with_letters, source=source("bad")))
    assert (found.uid, found.acceptable) == ("orders", True)
    assert "writes bad records to 'bad'" in found.reason
    assert findings(graph(with_letters, source=source(None))) == []
