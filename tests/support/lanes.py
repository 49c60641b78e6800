"""Several pytest processes share the suite: they take groups of tests one by one, the longest first.

`tests/conftest.py` registers the plugin. A group is a file, or a whole level whose tests share what is expensive. The
seconds of each test are recorded in `.cache/durations.json`; a new checkout starts with `tests/support/durations.json`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / ".cache" / "durations.json"
COMMITTED = Path(__file__).with_name("durations.json")
#: Levels whose tests share one server, browser, JVM or syntax tree: one process runs them all.
TOGETHER = ("airflow", "spark", "flink_tools", "ui", "tidy")
#: Characters of a failure that are printed when it happens; the whole follows at the end.
REPORTED = 2000
#: Seconds of a test that was never run.
UNKNOWN_S = 0.3


def level_of(nodeid):
    """Return the folder below `tests` that a test belongs to."""
    return nodeid.split("/")[1] if nodeid.startswith("tests/") else ""


def file_of(nodeid):
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def group_of(nodeid):
    """Return what a process takes as a whole."""
    level = level_of(nodeid)
    return level if level in TOGETHER else file_of(nodeid)


def in_worker():
    """Whether this process runs tests for another one that schedules them."""
    return "PYTEST_XDIST_WORKER" in os.environ


class Lanes(LoadScopeScheduling):
    """Gives each free process the next group."""

    def _split_scope(self, nodeid):
        return group_of(nodeid)


class Durations:
    """Seconds of tests: recorded ones, and those of this run."""

    def __init__(self, recorded=RECORDED, committed=COMMITTED):
        self.path = recorded
        self.tests = _load(recorded)
        self.files = {name: seconds / max(1, cases) for name, (cases, seconds) in _load(committed).items()}
        self.seen = Counter()

    def of(self, nodeid):
        """Return the seconds that a test will take, as far as they are known."""
        return self.tests.get(nodeid) or self.files.get(file_of(nodeid), UNKNOWN_S)

    def longest_first(self, nodeids):
        """Return the tests in the order in which processes take them; a group stays together, in its order."""
        seconds = Counter()
        for nodeid in nodeids:
            seconds[group_of(nodeid)] += self.of(nodeid)
        return sorted(nodeids, key=lambda nodeid: (-seconds[group_of(nodeid)], group_of(nodeid)))

    def save(self):
        """Keep the seconds of this run for the next one, and forget tests whose file is gone."""
        kept = {nodeid: value for nodeid, value in self.tests.items() if (ROOT / file_of(nodeid)).exists()}
        kept |= {nodeid: round(value, 3) for nodeid, value in self.seen.items()}
        self.path.parent.mkdir(exist_ok=True)
        written = self.path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(kept, indent=0, sort_keys=True))
        written.replace(self.path)


def by_level(counted):
    """Return (level, cases, seconds) of (test or file, cases, seconds), the longest first."""
    cases, seconds = Counter(), Counter()
    for name, count, value in counted:
        cases[level_of(name)] += count
        seconds[level_of(name)] += value
    return [(level, cases[level], value) for level, value in seconds.most_common()]


def _load(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


class LanesPlugin:
    """Hooks of pytest: order of the tests, scheduling, record of the durations, the table at the end."""

    def __init__(self):
        self.durations = Durations()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if in_worker():
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[nodeid] for nodeid in self.durations.longest_first(list(by_id))]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        config.option.loadscopereorder = False
        return Lanes(config, log)

    def pytest_runtest_logreport(self, report):
        self.durations.seen[report.nodeid] += report.duration
        if report.failed and not in_worker():
            text = report.longreprtext
            # the first line of the error says what is wrong; what it quotes may be longer than the end that is shown
            error = next((line for line in text.splitlines() if line.startswith("E  ")), "")[:REPORTED]
            print(f"\n{report.nodeid}: {report.when} failed\n{error}\n...\n{text[-REPORTED:]}", file=sys.stderr)

    def pytest_sessionfinish(self):
        if not in_worker() and self.durations.seen:
            self.durations.save()

    def pytest_terminal_summary(self, terminalreporter):
        levels = by_level((nodeid, 1, value) for nodeid, value in self.durations.seen.items())
        total = sum(seconds for _, _, seconds in levels)
        if total and len(levels) > 1:
            terminalreporter.write_line(f"{'level':<12} {'cases':>6} {'seconds':>8} {'share':>6}")
            for level, cases, seconds in levels:
                terminalreporter.write_line(f"{level:<12} {cases:>6} {seconds:>8.0f} {seconds / total:>6.0%}")
            terminalreporter.write_line(f"{'all':<12} {sum(n for _, n, _ in levels):>6} {total:>8.0f}")
