"""What is told of a failure: one line that names the operator, and no secret of the process that failed."""

import re
import time

import pyarrow as pa
import pytest

from penstock.core import secrets
from penstock.core.errors import ALL_FRAMES, BadRecordError, PenstockError, without_all_frames
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.rows.user_functions import UserFunctionError, user_error
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


@pytest.mark.parametrize("length", [350, 1_960, 3_900, 15_900])
def test_a_secret_at_the_end_of_what_is_told_is_not_cut_before_it_is_redacted(monkeypatch, length):
    monkeypatch.setenv("SHOP_PASSWORD", "opensesame77" * 20)
    secrets._of_this_process.cache_clear()
    error = ValueError("x" * length + "opensesame77" * 20)
    told = [*describe(error), *describe(user_error("map 'm'", error))]
    secrets._of_this_process.cache_clear()
    assert "opensesame" not in "".join(told)


def test_a_long_message_is_told_in_one_short_line():
    began = time.process_time()
    line, detail = describe(ValueError("0123456789abcdef" * 10_000))
    assert time.process_time() - began < 3, "the worker waits for it"
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


ROW = "row 2 of a batch of 3: user='b'"


def deep(left):
    if left == 0:
        raise UserFunctionError("map 'm': ValueError: no", values=ROW) from ValueError("no")
    (deep if left % 2 else also_deep)(left - 1)


def also_deep(left):
    deep(left)


def test_the_row_follows_the_users_frames_of_which_a_deep_recursion_has_the_first_and_last():
    with pytest.raises(UserFunctionError) as raised:
        deep(90)
    own, _, _ = describe(raised.value)[1].partition(ALL_FRAMES)
    assert own.startswith("In your code:\n")
    assert re.search(r"\n  \.\.\. \d+ further frames\n", own)
    assert own.count('  File "') == 20
    assert own.endswith("\nValueError: no\n" + ROW)
    assert "row 2" not in "".join(describe(raised.value, show_values=False))


def test_a_long_text_does_not_take_the_place_of_the_row():
    with pytest.raises(UserFunctionError) as raised:
        raise UserFunctionError("map 'm': ValueError", values=ROW) from ValueError("long " * 5_000)
    _, detail = describe(raised.value)
    assert len(without_all_frames(detail)) < 9_000
    assert without_all_frames(detail).endswith(f"...\n{ROW}")


def test_an_error_for_users_without_lines_of_theirs_has_its_values_before_all_frames():
    line, detail = describe(BadRecordError("offset 7: not JSON", values="value: b'x'"))
    assert line == "BadRecordError: offset 7: not JSON"
    assert detail.startswith(f"value: b'x'{ALL_FRAMES}")
    assert without_all_frames(describe(PenstockError("full"))[1]) == ""
    assert without_all_frames(describe(KeyError("a bug"))[1]) == ""


def test_frames_of_compiled_packages_are_not_the_users():
    with pytest.raises(pa.ArrowInvalid) as raised:
        pa.array(["x"], pa.int64())
    assert "array.pxi" in describe(raised.value)[1]
    assert "array.pxi" not in describe(raised.value)[1].partition(ALL_FRAMES)[0]


def test_a_package_that_users_code_lacks_is_told_with_where_to_install_it():
    with pytest.raises(ModuleNotFoundError) as raised:
        import no_such_package  # noqa: F401
    line, _ = describe(raised.value)
    assert line.startswith("ModuleNotFoundError: No module named 'no_such_package' (a package: install it in the Task")
