"""Comparing what a job has written with what a scratch job, restored from its savepoint, writes of the same input."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from penstock_airflow import templated
from penstock_airflow.operators.operator import PenstockOperator
from penstock_airflow.outputs import Spans, differences, rows_by_span, told

#: Output that was published since a savepoint is read from a little before.
_MARGIN_MS = 60_000


class CompareCountsOperator(PenstockOperator):
    """Count the rows of two outputs in spans of event time, and fail where they differ; return how many it `compared`.

    `live` and `scratch` are outputs: `kafka://HOST:PORT/TOPIC` with JSON values, or a folder of the file sink. `column`
    has a time, `span_seconds` is a multiple of the windows' length. `newest` is what `NewestSavepointOperator` gave:
    compared are the spans behind the savepoint that event time, as it was then, has passed. What is not published yet
    is waited for, up to `timeout_seconds`. The worker reads the outputs itself.
    """

    template_fields: Collection[str] = (
        *PenstockOperator.template_fields,
        "live",
        "scratch",
        "column",
        "span_seconds",
        "newest",
    )

    def __init__(
        self,
        *,
        live: str,
        scratch: str,
        column: str,
        newest: Any,
        span_seconds: float | str = 60,
        timeout_seconds: float = 60.0,
        **kwargs: Any,
    ) -> None:
        """`newest` may be a template's text: JSON."""
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.live = live
        self.scratch = scratch
        self.column = column
        self.newest = newest
        self.span_seconds = span_seconds

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Count until they are the same."""
        newest = templated.mapping("newest", self.newest)
        span_ms = max(1, int(templated.amount("span_seconds", self.span_seconds) * 1000))
        spans = Spans(self.column, span_ms)
        until_ms = int(datetime.fromisoformat(newest["watermark"]).astimezone(UTC).timestamp() * 1000)
        deadline = self.clock.monotonic_ms() + self.timeout_seconds * 1000
        while True:
            scratch = rows_by_span(self.scratch, spans, int(newest["now_ms"]))
            live = rows_by_span(self.live, spans, int(newest["taken_ms"]) - _MARGIN_MS)
            compared = spans.compared(scratch, until_ms)
            found = differences(live, scratch, compared)
            if compared and not found:
                rows = sum(scratch[start] for start in compared)
                self.log.info("%d spans with %d rows are the same", len(compared), rows)
                return {"compared": len(compared), "rows": rows}
            if self.clock.monotonic_ms() >= deadline:
                raise AirflowException(told(found) or _nothing(newest, scratch))
            self.clock.sleep_ms(self.poll_seconds * 1000)


def _nothing(newest: dict[str, Any], scratch: dict[int, int]) -> str:
    wrote = f"has written {sum(scratch.values())} rows" if scratch else "has written nothing"
    return f"nothing to compare: the scratch job {wrote}, and event time was {newest['watermark']}"
