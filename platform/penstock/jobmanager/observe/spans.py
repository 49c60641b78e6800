"""Spans as values, shared by `observe.span_builder`, which builds them, and `observe.otlp`, which sends them.

Ids are derived from the subject of a span, so that a replay of the same events gives the same spans.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: An attribute value, with OpenTelemetry's types.
Value = str | int | float | bool
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The ids of a span: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A timed operation; times are wall-clock milliseconds."""

    name: str
    context: SpanContext
    #: The parent span; None for the root of a trace.
    parent: SpanContext | None
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    #: The error; empty on success.
    error: str = ""


class SpanSink(Protocol):
    """Receives ended spans."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of spans sent, and dropped."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take spans; never blocks, never raises."""


def context_of(about: str, parent: SpanContext | None) -> SpanContext:
    """Return the ids of a span; `about` is a text unique to it."""
    digest = hashlib.blake2b(about.encode(), digest_size=24).hexdigest()
    return SpanContext(digest[:32] if parent is None else parent.trace_id, digest[32:])


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the span that a W3C `traceparent` names; None if it is invalid."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or text.startswith("ff") or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return SpanContext(match[1], match[2])
