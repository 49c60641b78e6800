"""Holds a task of Spark in its middle, from outside: it waits at a file, and is found by what it has open.

Used by the tests that kill executors: nothing of the product knows that its input is a pipe for a while.
"""

import contextlib
import os
from pathlib import Path

from tests.cluster import proc_tree
from tests.support.waiting import wait_until

#: What a pipe takes without a reader.
PIPE_BYTES = 65_536


class Gate:
    """A pipe in the place of a file: whoever reads the file waits until it is let through, or dies."""

    def __init__(self, path):
        self.path = Path(path)
        self._content = self.path.read_bytes() if self.path.exists() else b""
        assert len(self._content) <= PIPE_BYTES, "it would have to be fed"
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path)
        self._pipe = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close()

    def wait(self, running):
        """Return the pid of the process below `running` that waits here; that has to live until then."""

        def come():
            assert running.poll() is None, f"ended with {running.returncode} before anything was read"
            try:  # refused as long as nobody has it open for reading
                self._pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
            return True

        wait_until(come, f"a reader of {self.path}", seconds=300)
        return wait_until(lambda: self._readers(running.pid), "the reader's pid")[0]

    def let_through(self, reader):
        """Give the one that waits the file; the next one waits again."""
        os.write(self._pipe, self._content)
        self._close()
        wait_until(lambda: not self._is_open_in(reader), "the end of the reading")

    def lift(self):
        """Put the file in its place: who waits goes on waiting, who comes does not. It waits until `__exit__`."""
        whole = self.path.with_name(f".{self.path.name}-whole")
        whole.write_bytes(self._content)
        whole.replace(self.path)

    def killed(self):
        """The one that waited is dead: the next one is another."""
        self._close()

    def _readers(self, ancestor):
        return [pid for pid in proc_tree.descendants(ancestor) if self._is_open_in(pid)]

    def _is_open_in(self, pid):
        with contextlib.suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            return str(self.path) in links
        return False

    def _close(self):
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
