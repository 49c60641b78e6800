"""A cluster with a running job for Flink's own tools, which are installed before the first test."""

import sys
from pathlib import Path

import pytest

from penstock.core.errors import PenstockError

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.flink_tools import installation  # noqa: E402
from tests.flink_tools.cluster import Place  # noqa: E402

HERE = Path(__file__).parent


def pytest_collection_finish(session):
    """Install before the first test: no test's time limit should pay for the download."""
    if session.config.option.collectonly or not any(HERE in item.path.parents for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    tell = reporter.write_line if reporter else lambda _text: None  # a worker of pytest-xdist has none
    try:
        installation.ensure(tell)
    except PenstockError as error:
        tell(f"Flink's tools: {error}")  # the tests will fail with the same words


@pytest.fixture(scope="session")
def flink_home():
    """The installed distribution."""
    installation.ensure()
    return installation.home()


@pytest.fixture(scope="package")
def place(flink_home, tmp_path_factory):
    """One cluster for all tests without a token; each ends the jobs that it starts."""
    found = Place(tmp_path_factory.mktemp("place"))
    with found.cluster:
        yield found
