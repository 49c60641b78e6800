"""Holds the tests of this level to its rules; see `tests/support/in_process.py`."""

import tempfile
import time

import pytest
from tests.support import in_process

WATCH = pytest.StashKey()


@pytest.fixture(autouse=True)
def unit_rules(request, tmp_path_factory):
    """Watch the test, its fixtures and what they end with."""
    watch = in_process.begin([tmp_path_factory.getbasetemp(), tempfile.gettempdir(), in_process.ROOT / ".hypothesis"])
    request.node.stash[WATCH] = watch
    try:
        yield
    finally:
        in_process.end()
    in_process.judge(watch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Judge the test by what it and its fixtures did, and by the CPU time of its call."""
    begun = time.process_time()
    result = yield
    used = time.process_time() - begun
    item.user_properties.append(("cpu_seconds", round(used, 3)))
    watch = item.stash[WATCH]
    if used > in_process.CPU_SECONDS * in_process.SHARED:
        watch.found.append(f"{in_process.QUICK}: it needed {used:.1f} s")
    in_process.judge(watch)
    return result
