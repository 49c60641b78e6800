"""Ctrl-C as a user's shell passes it on: processes of pytest-xdist, and shells in the background, ignore it."""

import contextlib
import signal


@contextlib.contextmanager
def interruptible():
    """Have SIGINT raise KeyboardInterrupt here and in processes that are started meanwhile."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
