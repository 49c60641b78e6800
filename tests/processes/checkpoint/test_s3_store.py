"""The object store of S3: what every store must do, on a real MinIO, and one that cannot be reached."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.proxy import Proxy
from tests.unit.checkpoint import test_stores

from penstock.checkpoint.s3_store import S3Store
from penstock.core.errors import Cause, StorageError


def test_an_unreachable_s3_is_one_clear_error_with_the_way_out(monkeypatch):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match=r"s3://bucket/x at http://127\.0\.0\.1:1.*PENSTOCK_S3_ENDPOINT"):
        S3Store("s3://bucket", retries=0).read("x")


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:1", r": Connection refused \(check PENSTOCK_S3_ENDPOINT"),
        ("https://no-such-host.invalid", r": unknown host \(check PENSTOCK_S3_ENDPOINT"),
    ],
)
def test_the_reason_is_told_in_few_words(monkeypatch, endpoint, reason):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", endpoint)
    with pytest.raises(StorageError, match=reason) as raised:
        S3Store("s3://bucket", retries=1).put_if_absent("x", b"")
    assert len(str(raised.value)) < 160
    assert raised.value.cause is Cause.TRANSIENT


def test_a_server_that_accepts_connections_but_does_not_answer_is_told_soon(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", url)
        with pytest.raises(StorageError, match=rf"cannot reach s3://bucket/x at {url}: no answer in time \(check PEN"):
            S3Store("s3://bucket/x").require_answer(0.1)


@pytest.mark.servers
def test_connections_that_are_dead_cost_one_wait_and_no_error(minio_server, bucket, monkeypatch):
    """All idle connections of the pool are half-open; the repetition opens its own."""
    with Proxy(minio_server.url.partition("//")[2]) as proxy, ThreadPoolExecutor(4) as threads:
        monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", f"http://{proxy.address}")
        monkeypatch.setenv("PENSTOCK_S3_ACCESS_KEY", minio_server.access_key)
        monkeypatch.setenv("PENSTOCK_S3_SECRET_KEY", minio_server.secret_key)
        store = S3Store(f"s3://{bucket}/dead", first_read_s=0.2)
        list(threads.map(lambda n: store.put(f"{n}", b"x"), range(8)))
        before = proxy.accepted
        proxy.begin("half-open")
        proxy.end()
        store.put("after", b"y")
        assert store.read("after") == b"y"
        assert proxy.accepted <= before + 2, "one for the repetition, one for the next request"


@pytest.mark.parametrize(
    ("uri", "endpoint", "reason"),
    [
        ("s3://b/x", "http://h:1", r"cannot list s3://b/x at http://h:1: invalid bucket name b \(write s3://bucket/"),
        ("s3://bucket/x", "http://h:x", r"at http://h:x: invalid port .*PENSTOCK_S3_ENDPOINT as http://h"),
    ],
)
def test_a_name_that_s3_refuses_is_one_line(monkeypatch, uri, endpoint, reason):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", endpoint)
    with pytest.raises(StorageError, match=reason):
        S3Store(uri, retries=0).list("")


@pytest.mark.servers
def test_the_same_on_a_real_minio(minio_server, bucket, monkeypatch):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", minio_server.url)
    monkeypatch.setenv("PENSTOCK_S3_ACCESS_KEY", minio_server.access_key)
    monkeypatch.setenv("PENSTOCK_S3_SECRET_KEY", minio_server.secret_key)
    store = S3Store(f"s3://{bucket}/some/prefix")
    store.require_answer()
    for check in (
        test_stores.test_whole_objects_and_parts,
        test_stores.test_listing_is_sorted_and_by_prefix,
        test_stores.test_put_if_absent_has_one_winner,
        test_stores.test_compare_and_set_loses_no_update,
    ):
        check(store)
    test_stores.test_an_object_is_copied_by_the_store(S3Store(f"s3://{bucket}/copied"))
    with pytest.raises(FileNotFoundError):
        store.read("nothing/here")
    assert not store.put_if_match("nothing/here", b"x", "etag")
    with pytest.raises(StorageError, match="create the bucket first") as refused:
        S3Store("s3://no-such-bucket-here").put_if_absent("x", b"")
    assert refused.value.cause is Cause.PERMANENT
    monkeypatch.setenv("PENSTOCK_S3_SECRET_KEY", "wrong-secret")
    with pytest.raises(StorageError, match="PENSTOCK_S3_SECRET_KEY"):
        store.list("")
