"""The sizes of the engine in small: everything that happens with large state happens in a few rows too."""

import contextlib
from unittest import mock

from tests.property.harness.files import PlainStore
from tests.support.depth import depth
from tests.support.sizes import TINY

from penstock.state.memory.limits import PRODUCTION


def limits(keys=None):
    """Return sizes of a few rows; no more keys than given stay in memory, those of one batch aside."""
    return TINY.changed(hot_keys=PRODUCTION.hot_keys if keys is None else keys)


def few_bytes(local_bytes):
    """Keep so many bytes of what was fetched."""
    return mock.patch("penstock.state.state_backend.StateBackend._local_bytes", local_bytes)


def _opened(_places, _name):
    return PlainStore()


@contextlib.contextmanager
def plain_store(*, keys_leave):
    """Have a dict for each RocksDB; with `keys_leave` some keys do leave for it."""
    before = PlainStore.written
    with mock.patch("penstock.state.state_backend.StateBackend.open_store", _opened):
        yield
    assert PlainStore.written > before or not keys_leave or depth() == "fast", "no key has left memory"
