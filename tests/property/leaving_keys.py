"""Keys that leave memory, for the rows of joins, sessions, windows and timers."""

from contextlib import contextmanager

from tests.property.harness.sizes import plain_store
from tests.support.sizes import given, small_pieces

from penstock.config.settings import JobSettings

SETTINGS = JobSettings()


@contextmanager
def keys_leave(monkeypatch, keys):
    """Have no more than so many keys in memory, those of one batch aside; some do leave."""
    with plain_store():
        keys_leave_for_rocksdb(monkeypatch, keys)
        yield


@contextmanager
def keys_are_remote(monkeypatch, keys, local_bytes):
    """Have no more than so many keys in memory, and fetch the others from segments of a few rows a row group."""
    with keys_leave(monkeypatch, keys), small_pieces():
        settings_are_remote(monkeypatch, local_bytes)
        yield


def settings_are_remote(monkeypatch, local_bytes):
    """Keep so many bytes of what was fetched."""
    monkeypatch.setattr("tests.property.leaving_keys.SETTINGS", JobSettings(state_backend="remote"))
    monkeypatch.setattr("penstock.state.cold_places.ColdPlaces._local_bytes", local_bytes)


def keys_leave_for_rocksdb(monkeypatch, keys):
    """Have no more than so many keys in memory."""
    monkeypatch.setattr("tests.property.leaving_keys.SETTINGS", JobSettings(state_backend="rocksdb"))
    given(monkeypatch, hot_keys=keys, evicted_keys=2)
