"""Where the state of a job lies: in memory, on disk when its keys leave, in the object store."""

import contextlib
import zlib
from dataclasses import dataclass, replace
from functools import wraps

import pytest
from hypothesis import given, seed
from tests.property.harness import sizes
from tests.support.depth import depth, examples

from penstock.config.settings import JobSettings

#: As many keys as this stay in memory, with hardly an exception.
MANY = 100


@dataclass(frozen=True)
class Backend:
    """A state backend with the sizes that matter to it."""

    name: str
    state: str = "hashmap"
    #: How many keys stay in memory; None: as many as its budget has room for.
    keys: int | None = None
    #: Bytes of what was fetched; None: the whole of it.
    local_bytes: int | None = None
    #: A dict stands in for RocksDB.
    plain: bool = False
    #: Large tables are loaded in parts, while rows of other parts are processed.
    in_parts: bool = False
    #: Memory of a subtask.
    budget: int = 1 << 30
    #: Examples of a property.
    count: int = 0

    def __str__(self):
        return self.name

    @property
    def settings(self):
        """The settings of a job."""
        return JobSettings(state_backend=self.state)

    @property
    def limits(self):
        """The sizes of its state."""
        return sizes.limits(self.keys)

    @contextlib.contextmanager
    def in_force(self):
        """Have what stands in for RocksDB, and the size of what was fetched."""
        with contextlib.ExitStack() as stack:
            if self.plain:
                stack.enter_context(sizes.plain_store(keys_leave=self.keys is None or self.keys < MANY))
            if self.local_bytes is not None:
                stack.enter_context(sizes.few_bytes(self.local_bytes))
            yield

    def check(self, run, **drawn):
        """Check `run(backend, ...)` with what is drawn, for as many examples as this backend has."""

        @wraps(run)
        def history(**arguments):
            run(self, **arguments)

        del history.__wrapped__  # its parameters are those that are drawn
        test = examples(self.count)(given(**drawn)(history))
        if depth() != "nightly":  # the same histories in each run, others on each backend
            test = seed(zlib.crc32(f"{run.__module__} {self}".encode()))(test)
        test()


MEMORY = Backend("memory")
DISK = Backend("rocksdb", "rocksdb")


#: Where restored state is loaded in parts.
MEMORY_IN_PARTS = replace(MEMORY, name="memory_in_parts", in_parts=True)


def leaving(keys):
    """Hardly any key stays in memory; a dict stands in for RocksDB."""
    return Backend("keys_leave", "rocksdb", keys, plain=True)


def leaving_for_rocksdb(keys):
    """Hardly any key stays in memory."""
    return Backend("keys_leave_for_rocksdb", "rocksdb", keys)


def remote(keys, *local_bytes):
    """State in the object store: for each size, what is kept of what was fetched; few keys stay, or all.

    The depth `fast` has the least and the most that is kept.
    """
    all_stay = () if depth() == "fast" else local_bytes[:-1]
    return tuple(
        Backend(f"remote-{most}-{size}", "remote", most, size, plain=True)
        for most, size in [(keys, local_bytes[0]), *((MANY, size) for size in all_stay), (keys, local_bytes[-1])]
    )


def spilled_to_files(backend, budget=200_000):
    """Cells of one pane go to files, not to RocksDB; few rows are written to them at a time."""
    return replace(backend, plain=False, budget=budget)


#: Fetched bytes beyond which some are dropped: at once, after some records, never.
REMOTE = remote(3, 1, 500, 1 << 50)
#: Where running aggregates are whose keys leave, or are fetched.
FILES = spilled_to_files(Backend("keys_leave", "rocksdb", 3))
FILES_IN_PARTS = replace(FILES, name="keys_leave_in_parts", in_parts=True)
REMOTE_FILES = tuple(map(spilled_to_files, REMOTE))


def on(*backends):
    """Run a test on each backend; one may be given with the number of its examples, and several as a tuple."""
    every = []
    for one in backends:
        found, count = one if isinstance(one, tuple) and isinstance(one[-1], int) else (one, 0)
        every += [replace(b, count=count) for b in (found if isinstance(found, tuple) else (found,))]
    return pytest.mark.parametrize("backend", every, ids=str, indirect=True)
