"""A thread dump: the stack of each thread of this process as text.

Used by the JobManager's REST API, by TaskManagers and by workers (`rpc.messages.FetchThreads`, `DumpThreads`).
"""

from __future__ import annotations

import sys
import threading
import traceback

from penstock.core.secrets import redact


def thread_dump() -> tuple[tuple[str, str], ...]:
    """Return each thread's name with its stack, the innermost call last, in the order of their ids."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, frame in sorted(sys._current_frames().items()):  # noqa: SLF001 - the one way to see another's stack
        thread = known.get(ident)
        name = f"thread-{ident}" if thread is None else thread.name
        kind = " daemon" if thread is not None and thread.daemon else ""
        native = "" if thread is None or thread.native_id is None else f" tid={thread.native_id}"
        found.append((name, f'"{name}"{kind}{native}\n{redact("".join(traceback.format_stack(frame)))}'))
    return tuple(found)
