"""Lines of logs: what stands in them, who says them, and that no secret does."""

import io
import json
import logging
import sys

import pytest

from penstock.core import logs
from penstock.core.logs import FixedScope, JsonFormatter, PrintedLines, TextFormatter, readable

SCOPE = {"job": "j", "job_name": "orders", "operator": "price", "subtask": 1, "attempt": 2}


@pytest.fixture
def scope():
    token = logs.enter(FixedScope(SCOPE))
    yield
    logs._scope.reset(token)


def record(message="priced %d", *arguments, error=None, **extra):
    made = logging.LogRecord("shop", logging.INFO, "f.py", 1, message, arguments, error)
    made.created = 1_700_000_000.25
    made.__dict__.update(extra)
    return made


def failure():
    try:
        int("password=hush99")
    except ValueError:
        return sys.exc_info()


def test_a_json_line_says_who_what_and_when(scope):
    line = json.loads(JsonFormatter({"process": "worker"}).format(record("priced %d", 7)))
    head = {"time": "2023-11-14T22:13:20.250Z", "level": "INFO", "logger": "shop", "message": "priced 7"}
    assert line == {**head, "process": "worker", **SCOPE}


def test_an_exception_is_one_field_of_one_line():
    text = JsonFormatter({}).format(record("no", error=failure()))
    assert "\n" not in text
    assert json.loads(text)["exception"].startswith("Traceback")


@pytest.mark.parametrize("formatter", [JsonFormatter({}), TextFormatter({})])
def test_no_format_shows_a_secret(formatter):
    text = formatter.format(record("token is Bearer abcdefghijk", error=failure()))
    assert "hush99" not in text
    assert "abcdefghijk" not in text
    assert "******" in text


def test_a_text_line_says_the_same(scope):
    assert TextFormatter({}).format(record("x")) == "2023-11-14T22:13:20.250Z INFO shop [price (1)#2] x"


def test_json_lines_are_read_as_text_where_people_look(scope):
    made = record("x", error=failure())
    text = f"Fatal: libfoo\n{JsonFormatter({'process': 'worker'}).format(made)}\n" + '{"time": 1}\n{"time": "cut'
    assert readable(text) == f"Fatal: libfoo\n{TextFormatter({}).format(made)}\n" + '{"time": 1}\n{"time": "cut'
    assert readable("plain\n") == "plain\n"


def test_a_record_of_a_job_that_no_scope_tells_of():
    line = json.loads(JsonFormatter({}).format(record("x", **logs.job_extra("j", "orders"))))
    assert (line["job"], line["job_name"]) == ("j", "orders")


def test_what_is_done_later_is_said_by_who_asked_for_it(scope):
    class Moving:
        operator = "first"

        def fields(self):
            return {"operator": self.operator}

    moving = Moving()
    token = logs.enter(moving)
    context = logs.fixed_log_context()
    moving.operator = "second"
    assert context.run(lambda: logs._scope.get().fields()) == {"operator": "first"}
    logs._scope.reset(token)


def test_what_is_printed_is_records_a_line_each(caplog):
    raw = io.StringIO()
    stream = PrintedLines("stdout", logging.INFO, raw)
    with caplog.at_level(logging.INFO):
        print("one", 2, file=stream)
        stream.write("thr")
        stream.write("ee\n\n  \nfour")
        assert [r.getMessage() for r in caplog.records] == ["one 2", "three"]
        stream.flush()
    assert caplog.records[-1].getMessage() == "four"
    assert raw.getvalue() == ""


def test_what_functions_do_with_the_real_stream_they_may_do_here(caplog):
    stream = PrintedLines("stdout", logging.INFO, io.StringIO())
    stream.reconfigure(line_buffering=True)
    assert "é".encode(stream.encoding) == b"\xc3\xa9"
    with caplog.at_level(logging.INFO):
        assert stream.buffer.write(b"caf\xc3\xa9 \xff\nbegun") == 13
        stream.buffer.flush()
    assert [r.getMessage() for r in caplog.records] == ["café \\xff", "begun"]


def test_a_line_that_never_ends_is_logged_in_pieces(caplog):
    stream = PrintedLines("stdout", logging.INFO, io.StringIO())
    with caplog.at_level(logging.INFO):
        for _ in range(200):
            stream.write("." * 1000)
    lengths = [len(r.getMessage()) for r in caplog.records]
    assert lengths == [66_000] * 3


def test_what_a_handler_prints_that_cannot_write_does_not_come_round_again():
    raw = io.StringIO()
    stream = PrintedLines("lines.failing", logging.INFO, raw)

    class Failing(logging.Handler):
        def emit(self, record):
            stream.write("no room\n")

    logger, handler = logging.getLogger("lines.failing"), Failing()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    stream.write("x\n")
    logger.removeHandler(handler)
    assert raw.getvalue() == "no room\n"
