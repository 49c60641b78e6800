"""What is told of a failure holds no secret of the process that failed."""

import time

import pytest

from penstock.core import secrets
from penstock.task.failure import describe


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
