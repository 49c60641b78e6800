"""The contract of a lease store, by which a leader is elected: in a folder, on S3, in Kubernetes."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

KEY = "leader.json"
WRITERS, ROUNDS = 4, 5


def content(**fields):
    return msgspec.json.encode(fields)


def test_a_lease_that_nobody_wrote_is_absent(store):
    with pytest.raises(FileNotFoundError):
        store.read_with_etag(KEY)
    assert not store.put_if_match(KEY, content(renewals=1), "1")
    with pytest.raises(FileNotFoundError):
        store.read_with_etag(KEY)


def test_a_lease_is_created_once(store):
    assert store.put_if_absent(KEY, content(renewals=0))
    assert not store.put_if_absent(KEY, content(renewals=1))
    assert store.read_with_etag(KEY)[0] == content(renewals=0)


def test_only_the_version_that_was_read_is_replaced(store):
    store.put_if_absent(KEY, content(jobmanager_id="a"))
    _, etag = store.read_with_etag(KEY)
    assert store.put_if_match(KEY, content(jobmanager_id="b"), etag)
    assert not store.put_if_match(KEY, content(jobmanager_id="c"), etag)
    data, newer = store.read_with_etag(KEY)
    assert (data, newer != etag) == (content(jobmanager_id="b"), True)


def test_of_writers_that_race_one_wins(store):
    store.put_if_absent(KEY, content(round=0))
    with ThreadPoolExecutor(WRITERS) as threads:
        for number in range(1, ROUNDS + 1):
            _, etag = store.read_with_etag(KEY)
            write = lambda writer: store.put_if_match(KEY, content(round=number, writer=writer), etag)  # noqa: B023
            won = list(threads.map(write, range(WRITERS)))
            assert won.count(True) == 1
            assert store.read_with_etag(KEY)[0] == content(round=number, writer=won.index(True))


CONTRACT = (
    test_a_lease_that_nobody_wrote_is_absent,
    test_a_lease_is_created_once,
    test_only_the_version_that_was_read_is_replaced,
    test_of_writers_that_race_one_wins,
)
