"""The line at which native code crashed, from the trace in a worker's log."""

import os
import threading

from penstock.taskmanager.told_exit import tell_exits
from penstock.taskmanager.worker_logs import crash_place

#: As `faulthandler` writes it.
CRASH = f"""a line of the job
Fatal Python error: Segmentation fault

Current thread 0x00007f0000000000 (most recent call first):
  File "{threading.__file__}", line 519 in string_at
  File "/home/user/crash.py", line 15 in lookup
  File "/home/user/crash.py", line 30 in outer

Extension modules: numpy.core (total: 1)
"""


def test_an_exit_by_the_users_code_names_its_line(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    tell_exits()
    os._exit(3)
    assert ended == [3]
    assert crash_place(capsys.readouterr().err).endswith("in test_an_exit_by_the_users_code_names_its_line")


def test_it_is_the_innermost_line_of_the_users_code():
    assert crash_place(CRASH) == "crash.py:15 in lookup"


def test_without_the_users_code_it_is_the_innermost_line():
    trace = CRASH.replace("/home/user/crash.py", threading.__file__)
    assert crash_place(trace) == "threading.py:519 in string_at"


def test_of_two_crashes_it_is_that_of_the_last():
    assert crash_place(CRASH + CRASH.replace("line 15", "line 16")) == "crash.py:16 in lookup"


def test_a_log_without_a_crash_has_none():
    assert not crash_place('  File "/home/user/crash.py", line 15 in lookup\n')
