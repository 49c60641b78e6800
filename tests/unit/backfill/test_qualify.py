"""What a backfill takes of a job, what only by name, and what never."""

import polars as pl
import pytest

import penstock as ps
from penstock.backfill.qualify import findings, require_qualified
from penstock.core.errors import UsageError
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

BOUNDED = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")


def graph(build, watermarks=BOUNDED, folder="/tmp/none"):
    env = ps.Environment(parallelism=2)
    source = env.from_source(DatagenSource(rows=10), watermarks=watermarks, uid="orders")
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
    with pytest.raises(UsageError, match=r"'out'.*'at-least-once' has no output that can wait"):
        require_qualified(job)


def test_a_name_that_needs_no_accepting_is_an_error():
    with pytest.raises(UsageError, match="--accept windows"):
        findings(graph(windows), ["windows"])
