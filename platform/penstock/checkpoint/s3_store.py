"""An object store on MinIO or S3; opened by `checkpoint.stores.open_store`.

Endpoint and credentials come from the environment of each process: PENSTOCK_S3_ENDPOINT (`http://host:port`),
PENSTOCK_S3_ACCESS_KEY, PENSTOCK_S3_SECRET_KEY, PENSTOCK_S3_REGION. Conditional writes use pre-signed URLs: the client's
own upload would store the condition as metadata and overwrite the object.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import mmap
import os
import urllib.parse
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.errors import Cause, StorageError, UsageError, extra_hint

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore

_T = TypeVar("_T")
_CONNECT_S = 3.0
#: A request without an answer for this long is repeated on new connections. Large objects take longer. The first limit
#: is short: after a fault of the network, several processes in turn each meet a connection that is dead.
_FIRST_READ_S, _READ_S, _LARGE_READ_S = 4.0, 10.0, 30.0
_LARGE_BYTES = 8 << 20
_RETRIES = 3
#: Limit of the one request that only asks whether the server answers.
_ANSWER_S = 3.0
_URL_LIFETIME = dt.timedelta(minutes=10)
_MISSING = frozenset({"NoSuchKey", "NoSuchObject"})
#: Our code for a name or an endpoint that the client refuses.
_INVALID = "Invalid"
#: Reasons that another attempt meets again.
_HINTS = {
    _INVALID: "write s3://bucket/prefix with the bucket's full name, and PENSTOCK_S3_ENDPOINT as http://host:port",
    "NoSuchBucket": "create the bucket first",
    "AccessDenied": "check PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY and the bucket's policy",
    "InvalidAccessKeyId": "check PENSTOCK_S3_ACCESS_KEY",
    "SignatureDoesNotMatch": "check PENSTOCK_S3_SECRET_KEY",
}


def s3_endpoint() -> str:
    """Return the address of the server, from the environment."""
    return os.environ.get("PENSTOCK_S3_ENDPOINT", "https://s3.amazonaws.com")


def _no_client() -> UsageError:
    return UsageError("s3:// needs the package minio, which is not installed", hint=extra_hint("s3"))


def _new_client(endpoint: str, access: str, secret: str, region: str, retries: int, read_s: float) -> tuple[Any, Any]:
    """Return a client and its connection pool, which has no connections yet.

    `read_s`: seconds to wait for each answer.
    """
    try:
        import urllib3
        from minio import Minio
    except ImportError as error:
        raise _no_client() from error
    parts = urllib.parse.urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    pool = urllib3.PoolManager(
        maxsize=16,
        timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
        retries=urllib3.Retry(total=retries, backoff_factor=0.1, status_forcelist=(500, 502, 503, 504)),
    )
    client = Minio(
        parts.netloc,
        access_key=access or None,
        secret_key=secret or None,
        secure=parts.scheme == "https",
        region=region,
        http_client=pool,
    )
    return client, pool


@lru_cache(maxsize=8)
def _client_of(process: int, *settings: Any) -> tuple[Any, Any]:  # noqa: ARG001 - of the cache's key
    """Return the client of this process and these settings; connections must not cross a fork."""
    return _new_client(*settings)


class S3Store:
    """An object store whose keys are objects below a prefix of one bucket."""

    def __init__(self, uri: str, retries: int = _RETRIES, first_read_s: float = _FIRST_READ_S) -> None:
        """Take `s3://bucket/prefix`; connect at the first call.

        A call without an answer for `first_read_s` is repeated, and retried `retries` times; never if that is 0.
        """
        parts = urllib.parse.urlsplit(uri)
        if not parts.netloc:
            msg = f"{uri!r} names no bucket"
            raise UsageError(msg, hint="write s3://bucket/prefix")
        #: The bucket, and what precedes each key in it.
        self.bucket, self._retries, self._first_read_s = parts.netloc, retries, first_read_s
        prefix = parts.path.strip("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self._uri = f"s3://{self.bucket}/{prefix}".rstrip("/")

    @property
    def uri(self) -> str:
        """Return the root URI."""
        return self._uri

    def require_answer(self, limit_s: float = _ANSWER_S) -> None:
        """Send one request without a retry, and take any answer.

        Raises:
            StorageError: there is none within `limit_s`.
        """
        with self._guard("reach", ""):
            import urllib3

            limit = urllib3.Timeout(connect=_CONNECT_S, read=limit_s)
            with _new_client(*self._settings(), 0, limit_s)[1] as pool:
                pool.request("HEAD", s3_endpoint(), retries=False, timeout=limit)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return (part of) an object; raises FileNotFoundError."""
        return b"" if length == 0 else self._get(key, offset, length)[0]

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; raises FileNotFoundError."""
        with self._guard("read", key):
            return self._sent(lambda client, _: int(client.stat_object(self.bucket, self.prefix + key).size))

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version tag; raises FileNotFoundError."""
        return self._get(key, 0, None)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace, atomically."""

        def send(client: Any, _: Any) -> None:
            source: Any = data
            if isinstance(source, mmap.mmap):  # a mapped file is not copied
                source.seek(0)
            else:
                source = io.BytesIO(data)
            client.put_object(self.bucket, self.prefix + key, source, len(data))

        with self._guard("write", key):
            self._sent(send, _LARGE_READ_S if len(data) > _LARGE_BYTES else None)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write only if the key does not exist; return False if it does."""
        return self._put_conditionally(key, data, {"If-None-Match": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace only the version `etag`; return False if the object has another version or does not exist."""
        return self._put_conditionally(key, data, {"If-Match": etag})

    def put_copy(self, key: str, source: ObjectStore, source_key: str) -> bool:
        """Let the server copy an object; False: the source is no S3 store. Raises FileNotFoundError."""
        if not isinstance(source, S3Store):
            return False

        def send(client: Any, _: Any) -> None:
            from minio.commonconfig import CopySource

            place = CopySource(source.bucket, source.prefix + source_key)
            client.copy_object(self.bucket, self.prefix + key, place)

        with self._guard("write", key):
            self._sent(send, _LARGE_READ_S)
        return True

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        with self._guard("delete", key), contextlib.suppress(FileNotFoundError):
            self._sent(lambda client, _: client.remove_object(self.bucket, self.prefix + key))

    def list(self, prefix: str) -> list[str]:
        """Return all keys that start with `prefix`, sorted."""

        def send(client: Any, _: Any) -> list[str]:
            found = client.list_objects(self.bucket, self.prefix + prefix, recursive=True)
            return sorted(entry.object_name.removeprefix(self.prefix) for entry in found)

        with self._guard("list", prefix):
            return self._sent(send)

    def _settings(self) -> tuple[str, str, str, str]:
        env = os.environ
        keys = env.get("PENSTOCK_S3_ACCESS_KEY", ""), env.get("PENSTOCK_S3_SECRET_KEY", "")
        return s3_endpoint(), *keys, env.get("PENSTOCK_S3_REGION", "us-east-1")

    def _sent(self, send: Callable[[Any, Any], _T], large_s: float | None = None) -> _T:
        """Return what `send` makes of a client and its pool; if no answer comes, once more with retries.

        `large_s` replaces both limits of the wait for an answer.

        The second try uses a new pool: idle connections of the first one may be dead too, and other threads may use
        them.
        """
        from urllib3.exceptions import HTTPError

        client, pool = _client_of(os.getpid(), *self._settings(), 0, large_s or self._first_read_s)
        try:
            return send(client, pool)
        except HTTPError:
            if not self._retries:
                raise
            pool.clear()
        client, pool = _new_client(*self._settings(), self._retries, large_s or _READ_S)
        with pool:
            return send(client, pool)

    def _get(self, key: str, offset: int, length: int | None) -> tuple[bytes, str]:
        def send(client: Any, _: Any) -> tuple[bytes, str]:
            response = client.get_object(self.bucket, self.prefix + key, offset=offset, length=length or 0)
            try:
                return response.read(), str(response.headers.get("ETag", ""))
            finally:
                response.close()
                response.release_conn()

        with self._guard("read", key):
            return self._sent(send)

    def _put_conditionally(self, key: str, data: bytes, headers: dict[str, str]) -> bool:
        def send(client: Any, pool: Any) -> Any:
            url = client.get_presigned_url("PUT", self.bucket, self.prefix + key, expires=_URL_LIFETIME)
            return pool.request("PUT", url, body=data, headers=headers)

        with self._guard("write", key):
            response = self._sent(send)
            if response.status == 200:
                return True
            text = response.data.decode(errors="replace")
            if response.status in (409, 412) or (response.status == 404 and "NoSuchKey" in text):
                return False
            code = text.partition("<Code>")[2].partition("</Code>")[0] or f"HTTP {response.status}"
            raise self._error("write", key, code, code)

    def _error(self, verb: str, key: str, code: str, reason: str) -> StorageError:
        hint = _HINTS.get(code, "check PENSTOCK_S3_ENDPOINT and that the server runs")
        msg = f"cannot {verb} {f'{self._uri}/{key}'.rstrip('/')} at {s3_endpoint()}: {reason}"
        return StorageError(msg, hint=hint, cause=Cause.of(permanent=code in _HINTS))

    @contextlib.contextmanager
    def _guard(self, verb: str, key: str) -> Iterator[None]:
        try:
            from minio.error import MinioException, S3Error
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise _no_client() from error
        try:
            yield
        except S3Error as error:
            code = str(error.code)
            if code in _MISSING:
                raise FileNotFoundError(f"{self._uri}/{key}") from error
            raise self._error(verb, key, code, f"{code}: {error.message}") from error
        except (MinioException, HTTPError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise self._error(verb, key, "", _reason(error)) from error
        except ValueError as error:  # the client's, about a name or the endpoint
            raise self._error(verb, key, _INVALID, str(error)) from error


def _reason(error: Exception) -> str:
    """Return why a server did not answer, without the client's list of its attempts."""
    from urllib3 import exceptions as of

    while isinstance(error, of.MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, of.NameResolutionError):
        return "unknown host"
    if isinstance(error, of.ConnectTimeoutError) and not isinstance(error, of.NewConnectionError):
        return f"no connection within {_CONNECT_S:.0f} s"
    if isinstance(error, of.ReadTimeoutError):
        return "no answer in time"
    said = str(error).splitlines()[0]
    return said.rpartition("] ")[2][:300] if isinstance(error, of.NewConnectionError) else said[:300]
