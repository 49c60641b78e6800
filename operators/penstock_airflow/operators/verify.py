"""Compares the output of a job with that of a scratch job, restored from its savepoint, for the same input."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock_airflow import templated
from penstock_airflow.operators.operator import PenstockOperator
from penstock_airflow.outputs import OutputContent, differences, first_differences, read_output, spans_after

#: Output that was published since a savepoint is read from a little earlier.
_MARGIN_MS = 60_000


class CompareOutputsOperator(PenstockOperator):
    """Compare two outputs in spans of event time; fail if they differ, else return the number of `compared` spans.

    `live` and `scratch` are outputs: `kafka://HOST:PORT/TOPIC` with JSON values, or a folder of the file sink. `column`
    contains a time; `span_seconds` is a multiple of the windows' length. `newest` is the result of
    `NewestSavepointOperator`. The compared spans begin after the savepoint's event time and end before the event time
    of that result: they have to hold the same rows. Earlier rows of the scratch job have to be among those of the live
    job. `window_seconds` is the length of windows whose start is in `column`: then the windows that were open at the
    savepoint are compared, too. `compare="counts"` compares only numbers of rows, for jobs whose rows differ when they
    are computed again (sums of floats in another order, processing times). Output that is not published yet is waited
    for, up to `timeout_seconds`. The worker reads the outputs itself.
    """

    template_fields: Collection[str] = (
        *PenstockOperator.template_fields,
        "live",
        "scratch",
        "column",
        "span_seconds",
        "window_seconds",
        "newest",
        "compare",
    )

    def __init__(
        self,
        *,
        live: str,
        scratch: str,
        column: str,
        newest: Any,
        span_seconds: float | str = 60,
        compare: str = "rows",
        **kwargs: Any,
    ) -> None:
        """Take `newest`, also as JSON from a template.

        `timeout_seconds` is 60 by default, `window_seconds` 0 (unknown).
        """
        self.window_seconds: float | str = kwargs.pop("window_seconds", 0)
        super().__init__(**{"timeout_seconds": 60.0, **kwargs})
        self.live = live
        self.scratch = scratch
        self.column = column
        self.newest = newest
        self.span_seconds = span_seconds
        self.compare = compare

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Read both outputs until they are the same."""
        if self.compare not in ("rows", "counts"):
            raise AirflowFailException(f"compare={self.compare!r}: use rows or counts")
        newest = templated.mapping("newest", self.newest)
        span_ms = max(1, int(templated.amount("span_seconds", self.span_seconds) * 1000))
        window_ms = int(templated.amount("window_seconds", self.window_seconds) * 1000)
        reached = datetime.fromisoformat(newest["savepoint_watermark"]).astimezone(UTC)
        spans = spans_after(self.column, reached, span_ms, window_ms)
        until_ms = int(datetime.fromisoformat(newest["watermark"]).astimezone(UTC).timestamp() * 1000)
        deadline = self.clock.monotonic_ms() + self.timeout_seconds * 1000
        while True:
            scratch = read_output(self.scratch, spans, int(newest["now_ms"]))
            live = read_output(self.live, spans, int(newest["taken_ms"]) - _MARGIN_MS, scratch.before)
            compared = spans.compared(until_ms)
            found = differences(live, scratch, compared, counts_only=self.compare == "counts")
            rows = sum(scratch.rows[start] for start in compared)
            if rows and not found:
                self.log.info("%d spans with %d rows are the same", len(compared), rows)
                return {"compared": len(compared), "rows": rows}
            if self.clock.monotonic_ms() >= deadline:
                raise AirflowException((first_differences(found) if scratch.rows else "") or _nothing(newest, scratch))
            self.clock.sleep_ms(self.poll_seconds * 1000)


def _nothing(newest: dict[str, Any], scratch: OutputContent) -> str:
    wrote = f"has written {scratch.rows.total()} rows" if scratch.rows else "has written nothing"
    reached = f"{newest['savepoint_watermark']} at the savepoint and {newest['watermark']} later"
    return f"nothing to compare: the scratch job {wrote}, and event time was {reached}"
