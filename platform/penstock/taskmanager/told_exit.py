"""Exits of a worker process by the job's code: `os._exit` writes the line that called it to the log first.

Called by `taskmanager.worker`. `worker_logs.crash_place` reads the line for the JobManager's error.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from penstock.task.drive.stack_sampler import BASE_FRAMES, user_frame


def tell_exits() -> None:
    """Replace `os._exit` in this process; a process that the job's code forks, and the engine, exit without a word."""
    exit_now, own = os._exit, os.getpid()

    def told(status: int) -> NoReturn:
        frame = user_frame(sys._getframe(1), BASE_FRAMES) if os.getpid() == own else None  # noqa: SLF001 - of this thread
        if frame is not None:
            code = frame.f_code
            sys.stderr.write(f"Fatal Python error: os._exit({status}) ended the worker\n")
            sys.stderr.write(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
            sys.stderr.flush()
        exit_now(status)

    os._exit = told
