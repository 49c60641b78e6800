"""The live display of a running job: a panel on a terminal, otherwise plain lines, nothing with `--json`.

Used by `penstock run` and `penstock demo`; updated by the executor's `on_poll`.
"""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING, Any, Self

from penstock.client.failures import FailureWatch, function_in_call, resume_point
from penstock.client.operation_progress import slow_checkpoint
from penstock.core.clock import Clock, SystemClock
from penstock.core.counts import counted
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from penstock.client.handle import JobHandle

#: Intervals between two looks at the job: with plain lines, on a terminal.
_PLAIN_EVERY_MS = 1_000
_LIVE_EVERY_MS = 250
#: Interval between two plain lines of progress: of a job that reads rows, and of one that waits for input.
_LINE_EVERY_MS, _IDLE_EVERY_MS = 2_000, 30_000


class JobProgress:
    """Shows rates, watermark, checkpoints and restarts of a job, and notes (`note`)."""

    def __init__(
        self,
        *,
        enabled: bool = True,
        attached: bool = False,
        console: Console | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the display; with `enabled` False it shows nothing; `attached`: the job ran before."""
        self._given = console
        self._clock = clock or SystemClock()
        self._enabled = enabled
        self._live: Live | None = None
        self._begun = False
        self._last_ms = self._line_ms = -1e12
        self._notes: list[str] = []
        self._failures = FailureWatch(attached=attached)
        self._start_reported = False
        #: The last line without its checkpoints.
        self._last_flow: tuple[str, str] | None = None
        #: Id of the last checkpoint that was reported as slow.
        self._slow_checkpoint = 0
        #: Job name and newest summary.
        self._newest: tuple[str, dict[str, Any]] | None = None

    def __enter__(self) -> Self:
        """Return self; the display starts with the first output."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display and leave its last state."""
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Show a separate line, for example about a finished step."""
        if not self._enabled:
            return
        self._begin()
        if self._live is None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            self._notes = [*self._notes[-7:], text]
            self._live.console.print(text, markup=False, soft_wrap=True)

    def step(self, text: str) -> None:
        """Print what is done before the job starts, at once: the display, which takes time to load, starts later."""
        if self._begun:
            self.note(text)
        elif self._enabled:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def on_poll(self, handle: JobHandle, job: dict[str, Any]) -> None:
        """Show the newest state, at most at the rate of the display."""
        now_ms = self._clock.monotonic_ms()
        every_ms = _LIVE_EVERY_MS if self._live is not None else _PLAIN_EVERY_MS
        if not self._enabled or now_ms - self._last_ms < every_ms:
            return
        try:
            summary = handle.client.summary(handle.job_id)
        except PenstockError:  # the JobManager is restarting: the next poll shows it
            return
        if not self._start_reported and not summary["restarts"] and (start := resume_point(summary)):
            self._start_reported = True
            self.note(f"{handle.name} resumes from {start}")
        self._start_reported = self._start_reported or summary["state"] == "RUNNING"
        self._newest = handle.name, summary
        for line in self._failures.poll(handle, summary):
            self.note(line)
        slow, line = slow_checkpoint(summary, self._clock.now_ms())
        if slow not in (0, self._slow_checkpoint):
            self._slow_checkpoint = slow
            self.note(f"{handle.name}: {line}")
        self._last_ms = now_ms
        self._begin()
        if self._live is not None:
            self._live.update(_panel(job, summary, self._clock.now_ms()))
        elif now_ms - self._line_ms >= _LINE_EVERY_MS:
            flow = _flow(job, summary, self._clock.now_ms())
            # checkpoints continue while a job waits for input: they alone are no reason for a line
            if flow != self._last_flow or now_ms - self._line_ms >= _IDLE_EVERY_MS:
                self._line_ms = now_ms
                self._console.print(_line(*flow, summary), markup=False, soft_wrap=True)
            self._last_flow = flow

    def so_far(self) -> list[str]:
        """Return the newest totals of a job that was interrupted, and where its next run continues."""
        if self._newest is None:
            return []
        name, summary = self._newest
        completed = summary["checkpoints-completed"] or summary["restored"]
        lines = [f"{name} was interrupted"]
        lines += [f"  read {counted(count, 'row')} from {uid}" for uid, count in summary["rows-read"].items()]
        lines += [f"  wrote {counted(count, 'row')} to {uid}" for uid, count in summary["rows-written"].items()]
        after = "resumes from its newest checkpoint; --fresh starts over" if completed else "starts from the beginning"
        return [*lines, f"  the next run {after}"]

    def _begin(self) -> None:
        """Start the display; its modules are imported only now, while the job runs."""
        if self._begun:
            return
        from rich.console import Console
        from rich.live import Live

        self._begun = True
        self._console = self._given or Console(highlight=False)
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=False)
            self._live.start()


def _rate(summary: dict[str, Any]) -> float:
    """Return the rows that all sources read per second, as measured by their subtasks."""
    return float(sum(summary["rows-read-per-second"].values()))


def _unread(summary: dict[str, Any]) -> str:
    """Return the rows that the sources have not read yet; empty if no source reports them."""
    unread = summary.get("rows-unread")
    if not unread:
        return ""
    return ", unread unknown" if None in unread.values() else f", {sum(unread.values()):,} unread"


def _flow(job: dict[str, Any], summary: dict[str, Any], now_ms: int) -> tuple[str, str]:
    """Return the parts of a line before and after the number of checkpoints."""
    in_call = function_in_call(summary, now_ms)
    rows = (
        f"{job['name']} {job['state']}: {summary['source-records']:,.0f} records read ({_rate(summary):,.0f}/s)"
        f"{_unread(summary)}, "
        f"{summary['records-out']:,.0f} rows out, watermark {_time(summary['watermark'], now_ms)}"
    )
    failed = f"({summary['checkpoints-failed']} failed)"
    return rows, f"{failed}, restarts {summary['restarts']}{f'; {in_call}' if in_call else ''}"


def _line(rows: str, rest: str, summary: dict[str, Any]) -> str:
    return f"{rows}, checkpoints {summary['checkpoints-completed']} {rest}"


def _panel(job: dict[str, Any], summary: dict[str, Any], now_ms: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, title=f"{job['name']} [bold]{job['state']}[/]", title_justify="left")
    table.add_row("records read", f"{summary['source-records']:,.0f}", f"{_rate(summary):,.0f}/s{_unread(summary)}")
    table.add_row("rows out", f"{summary['records-out']:,.0f}", "")
    table.add_row("watermark", _time(summary["watermark"], now_ms), "")
    table.add_row("checkpoints", str(summary["checkpoints-completed"]), f"{summary['checkpoints-failed']} failed")
    table.add_row("restarts", str(summary["restarts"]), "")
    if in_call := function_in_call(summary, now_ms):
        table.add_row("slow call", escape(in_call), "")
    return table


def _time(timestamp_ms: float | None, now_ms: float) -> str:
    """Return an event time in UTC, with its date if that is not today."""
    if timestamp_ms is None:
        return "-"
    try:
        moment, now = (dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in (timestamp_ms, now_ms))
        return moment.strftime("%H:%M:%S.%f" if moment.date() == now.date() else "%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return "end"
