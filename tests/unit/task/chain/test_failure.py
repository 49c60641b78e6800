"""What is told of a failure: one line that names the operator, and no secret of the process that failed."""

import time

import pytest

from penstock.core import secrets
from penstock.core.errors import BadRecordError, PenstockError
from penstock.graph.job_graph import OperatorSpec
from penstock.task.chain.failure import describe


def log_in():
    raise ConnectionError("login with opensesame77 failed, tried db://me:other@host")


def test_a_function_that_fails_with_a_secret_in_its_words(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", "opensesame77")
    secrets._of_this_process.cache_clear()
    with pytest.raises(ConnectionError) as raised:
        log_in()
    line, detail = describe(raised.value)
    secrets._of_this_process.cache_clear()
    assert "opensesame77" not in line + detail
    assert "other" not in line
    assert "login with ****** failed" in line
    assert "Traceback" in detail


def test_a_long_message_is_told_in_one_short_line():
    began = time.process_time()
    line, detail = describe(ValueError("0123456789abcdef" * 10_000))
    assert time.process_time() - began < 0.5, "the worker waits for it"
    assert line.startswith("ValueError: 0123")
    assert len(line) <= 2_000
    assert len(detail) <= 16_000


@pytest.mark.parametrize(
    ("error", "where", "line"),
    [
        (KeyError("k"), "job.py:3", "KeyError: 'k'; operator 'totals' at job.py:3"),
        (
            BadRecordError("offset 7: not JSON", hint="skip it"),
            "job.py:3",
            "BadRecordError: offset 7: not JSON; operator 'totals' at job.py:3 (skip it)",
        ),
        (PenstockError("map 'totals': at job.py:9 in f"), "job.py:3", "PenstockError: map 'totals': at job.py:9 in f"),
        (PenstockError("sink 'totals': full"), "", "PenstockError: sink 'totals': full"),
        (ValueError("x" * 9_000), "job.py:3", f"ValueError: {'x' * 1954}; operator 'totals' at job.py:3"),
    ],
)
def test_an_error_names_the_operator_and_its_line_in_the_job_file(error, where, line):
    operator = OperatorSpec(uid="totals", name="Totals", kind="sink", where=where)
    assert describe(error, operator)[0] == line


def test_a_package_that_users_code_lacks_is_told_with_where_to_install_it():
    with pytest.raises(ModuleNotFoundError) as raised:
        import no_such_package  # noqa: F401
    line, _ = describe(raised.value)
    assert line.startswith("ModuleNotFoundError: No module named 'no_such_package' (a package: install it in the Task")
