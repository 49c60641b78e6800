"""The stages of windows with aggregates: whole windows, partial windows of a spread key, and their merge.

A window operator has one of them, by the `stage` of its configuration. A partial window has a key with a salt and emits
its accumulators (the rows of `operators.aggregates.combine`), one row per key, salt and window. The merge has the key
alone and one pane per window, into which it adds these rows. Used by `operators.windows.window_aggregate`; the API
takes the schema of partial rows from here.

A partial window emits its rows before the watermark that closes it, so none of them is late for the merge.
`WindowTime` is the time that windows count in: instants, or the wall clock of a zone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.schema import schema_from_text
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import WINDOW_START, WindowConfig, key_schema, output_schema, parse
from penstock.operators.aggregates.combine import combined_rows, combined_schema
from penstock.operators.windows.window_assigners import TimeZone
from penstock.operators.windows.window_schemas import MERGED, PARTIAL

if TYPE_CHECKING:
    from penstock.eventtime.windows import TimeWindow
    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.pane_memory import Fired


class WindowTime(Protocol):
    """Converts event time to the time in which a window's size and start are given, and back; microseconds."""

    def of_rows(self, times: I64) -> I64:
        """Return the times that determine the rows' windows."""

    def of_watermark(self, watermark: int) -> int:
        """Return the time up to which windows are over at this watermark."""

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        """Return the instants of a window's start and end, and the event time of its output."""


class InstantTime:
    """Windows of event time itself."""

    def of_rows(self, times: I64) -> I64:
        return times

    def of_watermark(self, watermark: int) -> int:
        return watermark

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        return window.start, window.end, window.max_timestamp


class WallClockTime:
    """Windows of a zone's wall clock; those that its clock passes twice end after the second time."""

    def __init__(self, zone: str) -> None:
        """Take the name of the zone."""
        self._zone = TimeZone(zone)

    def of_rows(self, times: I64) -> I64:
        return self._zone.local(times)

    def of_watermark(self, watermark: int) -> int:
        return self._zone.local_watermark(watermark)

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        zone = self._zone
        start, end = zone.instant(window.start, last=False), zone.instant(window.end, last=False)
        # a skipped end is at the clock change; at a repeated end, no row of the window can follow
        time = min(zone.instant(window.end, last=True) - 1, zone.instant(window.max_timestamp, last=True))
        return start, end, time


def window_time(config: dict[str, Any]) -> WindowTime:
    """Return the time of the windows of an operator's configuration."""
    zone = config["window"].get("time_zone")
    return InstantTime() if zone is None else WallClockTime(zone)


class WindowStage(Protocol):
    """The part by which the stages differ."""

    @property
    def config(self) -> WindowConfig:
        """The windows of the operator's panes."""

    @property
    def plan(self) -> AggregatePlan:
        """The accumulators."""

    @property
    def time(self) -> WindowTime:
        """The time in which windows are given."""

    @property
    def merges(self) -> bool:
        """Whether the input is rows of accumulators with the last microsecond of their window."""

    def rows_of(self, fired: Fired, bounds: tuple[int, int, int]) -> pa.RecordBatch:
        """Return the output for the keys of a window, given its start, its end and the output's event time."""


class WholeWindows:
    """Windows whose rows all reach one subtask; they emit results."""

    merges = False

    def __init__(self, config: dict[str, Any], rows: pa.Schema) -> None:
        """`rows` is the schema of the aggregated rows."""
        self.config = parse(config)
        self.plan = AggregatePlan(self.config, rows)
        self.time = window_time(config)
        self._schema = output_schema(config, rows)

    def rows_of(self, fired: Fired, bounds: tuple[int, int, int]) -> pa.RecordBatch:
        """Return keys, bounds, aggregates and event time."""
        return _results(self._schema, self.plan, fired, bounds)


class PartialWindows:
    """Windows of a key and a salt; the salt is the last column of the key and ends here."""

    merges = False

    def __init__(self, config: dict[str, Any], rows: pa.Schema) -> None:
        """`rows` is the schema of the aggregated rows."""
        self.config = parse(config)
        self.plan = AggregatePlan(self.config, rows)
        self.time = window_time(config)
        self._schema = partial_schema(self.config, rows)

    def rows_of(self, fired: Fired, bounds: tuple[int, int, int]) -> pa.RecordBatch:
        """Return keys, event time and accumulators."""
        times = pa.array(np.full(len(fired.hashes), bounds[2], np.int64))
        cells = np.ascontiguousarray(fired.cells)
        cells[:, 0] <<= 1  # the form of a cell: twice the number of rows
        return combined_rows(self._schema, self.plan.spec, [*fired.keys[:-1], times], cells)


class MergedWindows:
    """One pane for each window of the first stage, found by the window's end."""

    merges = True

    def __init__(self, config: dict[str, Any]) -> None:
        """`config` names the windows of the job and, as `rows`, the schema of the aggregated rows."""
        rows = schema_from_text(config["rows"])
        windows = parse(config)
        self.config = merged_config(windows)
        self.plan = AggregatePlan(self.config, rows)
        self.time = EndTime(windows)
        self._schema = output_schema(config, rows)

    def rows_of(self, fired: Fired, bounds: tuple[int, int, int]) -> pa.RecordBatch:
        """Return keys, bounds, aggregates and event time."""
        return _results(self._schema, self.plan, fired, bounds)


def stage_of(config: dict[str, Any], rows: pa.Schema) -> WindowStage:
    """Return the stage of an operator's configuration; `rows` is the schema of its input."""
    stage = config.get("stage")
    if stage == MERGED:
        return MergedWindows(config)
    return PartialWindows(config, rows) if stage == PARTIAL else WholeWindows(config, rows)


def partial_schema(config: WindowConfig, rows: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that a partial window emits."""
    keys = key_schema(config, rows)
    return combined_schema(config.key[:-1], keys, AggregatePlan(config, rows).spec)


def merged_config(windows: WindowConfig) -> WindowConfig:
    """Return windows as long as the distance of ends, which are at the same times; each is one window of the job."""
    step = windows.step or windows.slide
    return dataclasses.replace(windows, size=step, slide=step, offset=(windows.offset + windows.size) % step, step=0)


class EndTime:
    """Event time; the bounds of a window of `merged_config` are those of the job's window with this end."""

    def __init__(self, windows: WindowConfig) -> None:
        """`windows` are those of the job."""
        self._windows = windows

    def of_rows(self, times: I64) -> I64:
        return times

    def of_watermark(self, watermark: int) -> int:
        return watermark

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        end, windows = window.end, self._windows
        start = end - windows.size
        if windows.step:
            start = end - 1 - (end - 1 - windows.offset) % windows.size
        return start, end, end - 1


def _results(schema: pa.Schema, plan: AggregatePlan, fired: Fired, bounds: tuple[int, int, int]) -> pa.RecordBatch:
    rows = len(fired.hashes)
    start, end, ts = (np.full(rows, time, np.int64) for time in bounds)
    kind = schema.field(WINDOW_START).type
    columns = [
        *fired.keys,
        pa.array(start).view(kind),
        pa.array(end).view(kind),
        *plan.outputs(fired.cells),
        pa.array(ts),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
