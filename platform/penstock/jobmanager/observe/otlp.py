"""Sends spans to a collector by OTLP over HTTP, in a thread of the OpenTelemetry SDK; made by `jobmanager.main`.

The SDK's own variables apply besides the endpoint: `OTEL_EXPORTER_OTLP_HEADERS`, `..._CERTIFICATE`, `..._TIMEOUT`. A
slow or failing collector never blocks the JobManager: the queue is bounded, and dropped spans are counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext as OtelContext
from opentelemetry.trace import Status, StatusCode, TraceFlags

from penstock.core.errors import UsageError
from penstock.core.secrets import redact
from penstock.jobmanager.observe.spans import Span, SpanContext

_MAX_QUEUED = 4096
_BATCH = 256
_DELAY_MS = 500.0
_CLOSE_SECONDS = 2.0
_PATH = "/v1/traces"


class OtlpSpans:
    """A `SpanSink`; call `put` and `close` from one thread."""

    def __init__(self, endpoint: str, *, max_queued: int = _MAX_QUEUED, close_seconds: float = _CLOSE_SECONDS) -> None:
        """Open an exporter to `endpoint`, the collector's URL with or without `/v1/traces`.

        The queue holds at most `max_queued` spans; `close` flushes it for at most `close_seconds`.

        Raises:
            UsageError: `endpoint` is not an HTTP URL.
        """
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError(f"{endpoint!r} is not a URL of a collector", hint="for example http://localhost:4318")
        url = endpoint.rstrip("/")
        self._exporter = _CountingExporter(OTLPSpanExporter(url if url.endswith(_PATH) else url + _PATH))
        self._counts = self._exporter.counts
        self._resource = Resource.create({"service.name": "penstock-jobmanager"})
        self._processor = BatchSpanProcessor(cast("SpanExporter", self._exporter), max_queued, _DELAY_MS, _BATCH)
        self._max_queued, self._close_seconds = max_queued, close_seconds
        self._put = self._refused = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Number of spans that the collector accepted, and of those that failed or did not fit in the queue."""
        return self._counts.taken, self._refused + self._counts.failed

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans; drop those that do not fit."""
        for span in spans:
            if self._put - self._counts.taken - self._counts.failed >= self._max_queued:
                self._refused += 1
                continue
            self._put += 1
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Flush the queue, for a limited time; then end the exporter, which stops its attempts."""
        sending = threading.Thread(target=self._processor.shutdown, name="otlp-close", daemon=True)
        sending.start()
        sending.join(self._close_seconds)
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        attributes = {k: redact(v) if isinstance(v, str) else v for k, v in span.attributes.items()}
        return ReadableSpan(
            name=span.name,
            context=_context(span.context),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes=attributes,
            status=Status(StatusCode.ERROR, redact(span.error)) if span.error else Status(StatusCode.OK),
            start_time=int(span.start_ms * 1e6),
            end_time=int(span.end_ms * 1e6),
        )


class _Counts:
    """Counters; written by the exporting thread only."""

    taken = 0
    failed = 0


def _context(context: SpanContext) -> OtelContext:
    return OtelContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


class _CountingExporter:
    """An exporter that counts accepted and failed spans."""

    def __init__(self, inner: SpanExporter) -> None:
        self.counts = _Counts()
        self._inner = inner
        self._closed = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        closed = self._closed.is_set()
        result = SpanExportResult.FAILURE if closed else self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.counts.taken += len(spans)
        else:
            self.counts.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """End the exporter; also called by the processor when it has sent all."""
        if not self._closed.is_set():
            self._closed.set()
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        flushed: bool = self._inner.force_flush(timeout_millis)
        return flushed
