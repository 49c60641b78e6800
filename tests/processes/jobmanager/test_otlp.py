"""Spans on their way to a collector: what arrives, and what it costs when none is there."""

import socket
import threading

import pytest
from tests.processes.jobmanager.collector import Collector
from tests.support.waiting import wait_until

from penstock.core.errors import UsageError
from penstock.jobmanager.observe.otlp import OtlpSpans
from penstock.jobmanager.observe.spans import Span, context_of


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def span(number=0, **options):
    given = {
        "context": context_of(f"s{number}", None),
        "name": "Checkpoint",
        "parent": None,
        "start_ms": 1.5,
        "end_ms": 2.0,
        "attributes": {"n": number},
    }
    return Span(**(given | options))


def _exporting():
    return {"otlp-close", "OtelBatchSpanRecordProcessor"} & {thread.name for thread in threading.enumerate()}


def settled(spans, put):
    wait_until(lambda: sum(spans.counts) >= put, lambda: f"{put} spans: {spans.counts}")
    return spans.counts


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_a_span_arrives_whole_and_without_secrets(collector, path):
    spans = OtlpSpans(collector.url + path)
    parent = context_of("p", None)
    spans.put([span(1, parent=parent, context=context_of("c", parent), error="password=hush99", attributes={"a": 2})])
    assert settled(spans, 1) == (1, 0)
    (got,) = collector.spans
    assert collector.paths == ["/v1/traces"]
    assert (got.trace, got.parent, got.id) == (parent.trace_id, parent.span_id, context_of("c", parent).span_id)
    assert (got.start, got.end, got.attributes) == (1_500_000, 2_000_000, {"a": 2})
    assert (got.failed, got.message, got.service) == (True, "password=******", "penstock-jobmanager")
    spans.close()


def test_a_collector_that_refuses_costs_the_spans_alone(collector):
    collector.status = 400
    spans = OtlpSpans(collector.url)
    spans.put([span(n) for n in range(3)])
    assert settled(spans, 3) == (0, 3)
    collector.status = 200
    spans.put([span(4)])
    assert settled(spans, 4) == (1, 3)
    spans.close()


def test_without_a_collector_so_many_wait_and_nobody_is_held_up():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # takes connections and never answers
        spans = OtlpSpans(f"http://127.0.0.1:{deaf.getsockname()[1]}", max_queued=300, close_seconds=0.1)
        spans.put([span(n) for n in range(1000)])
        assert spans.counts == (0, 700), "no span was sent or given up meanwhile"
        spans.close()
        assert spans.counts == (0, 700)
        assert _exporting(), "the end was not waited for"
    wait_until(lambda: not _exporting(), "the exporter's threads end with the request, without another attempt")


def test_what_waits_is_sent_at_the_end(collector):
    spans = OtlpSpans(collector.url)
    spans.put([span()])
    spans.close()
    assert len(collector.spans) == 1


def test_an_endpoint_is_a_url():
    with pytest.raises(UsageError, match="not a URL of a collector"):
        OtlpSpans("localhost:4318")
