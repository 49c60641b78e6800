"""Spans as values, made by `observe.span_builder` and sent by `observe.otlp`.

Ids are made of what a span is about, so that the same events give the same spans, whoever replays them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: A span's attribute, as OpenTelemetry has them.
Value = str | int | float | bool
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Which span: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took its time: wall milliseconds."""

    name: str
    context: SpanContext
    #: The span it is part of; None: it is the first of its trace.
    parent: SpanContext | None
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    #: Why it did not come to a good end; empty: it did.
    error: str = ""


class SpanSink(Protocol):
    """Takes ended spans."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many were sent, and dropped."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take them; never blocks, never raises."""


def context_of(about: str, parent: SpanContext | None) -> SpanContext:
    """Return the ids of the span that is about `about`, a text that no other span has."""
    digest = hashlib.blake2b(about.encode(), digest_size=24).hexdigest()
    return SpanContext(digest[:32] if parent is None else parent.trace_id, digest[32:])


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the span that a W3C `traceparent` names; None when it names none."""
    match = _TRACEPARENT.fullmatch(text.strip().lower())
    if match is None or text.startswith("ff") or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return SpanContext(match[1], match[2])
