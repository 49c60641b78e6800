"""Several processes share the suite: the order of groups, and the record of the seconds."""

import json
from types import SimpleNamespace

from tests.support.budget import PAGE, by_file, page_with
from tests.support.lanes import COMMITTED, ROOT, Durations, LanesPlugin, by_level, group_of

TIMES = [("one", 0.25), ("two", 0.5)]


def durations(tmp_path, tests, files):
    recorded, committed = tmp_path / "recorded.json", tmp_path / "committed.json"
    if tests:
        recorded.write_text(json.dumps(tests))
    committed.write_text(json.dumps(files))
    return Durations(recorded, committed)


def test_a_group_is_a_file_or_a_level_with_an_expensive_server():
    assert group_of("tests/unit/core/test_a.py::test_b[tests/c]") == "tests/unit/core/test_a.py"
    assert (
        group_of("tests/airflow/test_a.py::test_b") == group_of("tests/airflow/provider/test_c.py::test_d") == "airflow"
    )


def test_the_longest_group_comes_first_and_stays_together(tmp_path):
    known = durations(
        tmp_path, {"tests/a.py::1": 1.0, "tests/b.py::1": 1.5, "tests/a.py::2": 1.0}, {"tests/c.py": [2, 9.0]}
    )
    given = ["tests/d.py::1", "tests/b.py::1", "tests/a.py::1", "tests/c.py::1", "tests/a.py::2"]
    assert known.longest_first(given) == [
        *("tests/c.py::1", "tests/a.py::1", "tests/a.py::2", "tests/b.py::1", "tests/d.py::1"),
    ]


def test_seconds_are_kept_for_the_next_run(tmp_path):
    here, gone = "tests/unit/support/test_lanes.py::test_x", "tests/unit/no_such_file.py::test_y"
    other = "tests/unit/support/test_lanes.py::test_z"
    known = durations(tmp_path, {here: 1.0, gone: 2.0, other: 3.0}, {})
    plugin = LanesPlugin()
    plugin.durations = known
    for seconds in (0.25, 0.5, 0.25):  # set-up, call, tear-down
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=here, duration=seconds, failed=False))
    known.save()
    assert json.loads(known.path.read_text()) == {here: 1.0, other: 3.0}
    assert by_level((nodeid, 1, value) for nodeid, value in known.seen.items()) == [("unit", 1, 1.0)]


def test_committed_durations_name_files_that_exist():
    files = json.loads(COMMITTED.read_text())
    assert len(files) > 100
    assert not [name for name in files if not (ROOT / name).exists()]


def test_seconds_are_summed_by_file():
    cases = [f'<testcase classname="tests.unit.a" name="{name}" time="{seconds}" />' for name, seconds in TIMES]
    report = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    assert by_file(report) == {"tests/unit/a.py": [2, 0.75]}


def test_the_table_of_the_documentation_is_the_committed_one():
    text = PAGE.read_text()
    assert page_with(text, json.loads(COMMITTED.read_text())) == text, "run: python -m tests.support.budget"
