"""What every object store must do, and what only one of them can get wrong."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from penstock.checkpoint.local_store import LocalStore
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.stores import (
    checksum_of,
    copy_file,
    join_uri,
    open_job_store,
    open_store,
    read_file,
    same_store,
)
from penstock.core.errors import Cause, SnapshotDamagedError, StorageError, UsageError
from penstock.core.snapshot import FileRef


def test_a_folder_is_the_same_however_it_is_spelled(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    here = open_store(str(tmp_path / "a" / "job"))
    for text in ("link/job", "a/../a/job"):
        assert same_store(here, open_store(str(tmp_path / text)))
    assert not same_store(here, open_store(str(tmp_path / "b" / "job")))
    assert not same_store(here, open_store("memory://a/job"))


def test_whole_objects_and_parts(store):
    store.put("a/b/c.bin", b"0123456789")
    assert store.read("a/b/c.bin") == b"0123456789"
    assert store.read("a/b/c.bin", 3) == b"3456789"
    assert store.read("a/b/c.bin", 3, 4) == b"3456"
    assert store.size("a/b/c.bin") == 10
    store.put("a/b/c.bin", b"x")
    assert store.read("a/b/c.bin") == b"x"


def test_an_object_is_copied_by_the_store(store):
    store.put("a/one", b"0123456789")
    store.put("b/two", b"earlier")
    for key in ("b/two", "c/three"):
        assert store.put_copy(key, store, "a/one")
        assert store.read(key) == b"0123456789"
    assert store.put_copy("b/two", store, "c/three"), "again, and the same bytes"
    store.put("a/one", b"new")
    store.delete("c/three")
    assert store.read("b/two") == b"0123456789"
    assert store.list("") == ["a/one", "b/two"]
    with pytest.raises(FileNotFoundError):
        store.put_copy("d", store, "absent")
    assert store.list("d") == []


def test_a_store_of_another_kind_is_not_copied_from(store, tmp_path):
    other = LocalStore(str(tmp_path / "other")) if store.uri.startswith("memory:") else MemoryStore("other")
    other.put("a", b"x")
    assert not store.put_copy("b", other, "a")
    assert store.list("") == []


def test_a_file_that_cannot_be_linked_is_not_copied(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    store.put("a", b"x")

    def refused(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refused)
    assert not store.put_copy("b", store, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("offset", "length", "copied"), [(0, 4, True), (0, 3, False), (1, 3, False), (0, 0, False)])
def test_only_whole_objects_are_copied(store, offset, length, copied):
    store.put("job/a", b"abcd")
    ref = FileRef(path="job/a", offset=offset, length=length)
    assert copy_file(store, ref, store, "b") == copied
    assert store.list("b") == ["b"] * copied


def test_a_copy_of_what_is_missing_or_short_is_refused(store):
    store.put("a", b"abc")
    with pytest.raises(SnapshotDamagedError, match="none is missing"):
        copy_file(store, FileRef(path="none", length=3), store, "b")
    with pytest.raises(SnapshotDamagedError, match="3 of 4 bytes"):
        copy_file(store, FileRef(path="a", length=4), store, "b")


def test_what_is_absent(store):
    with pytest.raises(FileNotFoundError):
        store.read("nothing/here")
    with pytest.raises(FileNotFoundError):
        store.read_with_etag("nothing/here")
    with pytest.raises(FileNotFoundError):
        store.size("nothing/here")
    store.delete("nothing/here")
    assert store.list("nothing/") == []
    assert not store.put_if_match("nothing/here", b"x", "etag")
    assert store.list("") == []


def test_listing_is_sorted_and_by_prefix(store):
    for key in ("m/2", "m/10", "n/1", "m/sub/3", "mm"):
        store.put(key, b"")
    assert store.list("m/") == ["m/10", "m/2", "m/sub/3"]
    assert store.list("m") == ["m/10", "m/2", "m/sub/3", "mm"]
    assert store.list("m/1") == ["m/10"]
    store.delete("m/2")
    assert store.list("m/") == ["m/10", "m/sub/3"]


def test_a_folder_has_no_size(store):
    store.put("folder/file", b"x")
    with pytest.raises(FileNotFoundError):
        store.size("folder")


def test_put_if_absent_has_one_winner(store):
    won = []

    def race(number):
        if store.put_if_absent("key", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("key") == str(won[0]).encode()


def test_compare_and_set_loses_no_update(store):
    store.put_if_absent("counter", b"0")
    wins = []

    def add():
        for _ in range(20):
            data, etag = store.read_with_etag("counter")
            if store.put_if_match("counter", str(int(data) + 1).encode(), etag):
                wins.append(1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(store.read("counter")) == len(wins) >= 20


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for folder in ("file", "file/below"):
        with pytest.raises(StorageError, match=r"cannot write .*file/.*x: .* \(a file is where a folder") as refused:
            LocalStore(str(tmp_path / folder)).put("x", b"")
        assert refused.value.cause is Cause.PERMANENT
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"a folder is where a file should be") as refused:
        LocalStore(str(tmp_path)).put("folder", b"")
    assert refused.value.cause is Cause.PERMANENT


@pytest.mark.parametrize(
    ("code", "way", "cause"),
    [
        (errno.EACCES, "give this user access", Cause.PERMANENT),
        (errno.ENOENT, "in which this user can make", Cause.PERMANENT),
        (errno.EPERM, "give this user access", Cause.PERMANENT),
        (errno.EROFS, "mounted writable", Cause.PERMANENT),
        (errno.ENOSPC, "has space", Cause.TRANSIENT),
        (errno.EIO, "has space", Cause.TRANSIENT),
    ],
)
def test_a_refusal_is_permanent_and_a_full_disk_is_not(tmp_path, monkeypatch, code, way, cause):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(StorageError, match=f"{os.strerror(code)} .*{way}") as caught:
        LocalStore(str(tmp_path / "new")).put("x", b"")
    assert caught.value.cause is cause


def test_keys_cannot_leave_the_folder(tmp_path):
    with pytest.raises(UsageError, match="bad object key"):
        LocalStore(str(tmp_path)).put("../x", b"")


def test_nothing_temporary_is_left_or_listed(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put("a", b"1")
    assert not store.put_if_absent("a", b"2")
    (tmp_path / ".tmp-1-1").write_bytes(b"of a killed process")
    assert store.list("") == ["a"]
    assert [p.name for p in tmp_path.iterdir() if p.name != ".tmp-1-1"] == ["a"]


def test_opening_by_uri(tmp_path, monkeypatch):
    assert open_store(str(tmp_path)).uri == f"file://{tmp_path}"
    assert open_store(f"file://{tmp_path}").uri == f"file://{tmp_path}"
    assert open_store("s3://bucket/some/prefix/").uri == "s3://bucket/some/prefix"
    assert open_job_store("memory://here", "job").uri == "memory://here/job"
    assert join_uri("s3://b/", "/x/", "y") == "s3://b/x/y"
    for bad in ("", "ftp://x", "s3://", "memory://"):
        with pytest.raises((UsageError, StorageError)):
            open_store(bad)


def test_reading_parts_of_files_verified(store, tmp_path):
    store.put("data/f", b"headPARTtail")
    good = FileRef(path="data/f", offset=4, length=4, checksum=checksum_of(b"PART"))
    assert read_file(store, good) == b"PART"
    assert read_file(store, FileRef(inline=b"x", checksum=checksum_of(b"x"))) == b"x"
    other = LocalStore(str(tmp_path / "other"))
    other.put("sp/f", b"abs")
    assert read_file(store, FileRef(path=f"{other.uri}/sp/f", length=3)) == b"abs"
    for damaged, what in (
        (FileRef(path="data/none", length=1), "is missing"),
        (FileRef(path="data/f", offset=10, length=9), "is shorter"),
        (FileRef(path="data/f", offset=4, length=4, checksum="crc32:00000000"), "is damaged"),
        (FileRef(inline=b"x", checksum="crc32:00000000"), "is damaged"),
    ):
        with pytest.raises(SnapshotDamagedError, match=what):
            read_file(store, damaged)
