"""The S3 calls that users of the servers need: creating a bucket before a job writes to it."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import PenstockError
from penstock_lab.servers.spec import MinioServer


def client(server: MinioServer) -> Any:
    """Return a minio-py client for the server."""
    try:
        from minio import Minio
    except ImportError as error:
        raise PenstockError("the S3 client is not installed", hint="pip install 'penstock[s3]'") from error
    return Minio(server.endpoint, access_key=server.access_key, secret_key=server.secret_key, secure=False)


def ensure_bucket(server: MinioServer, bucket: str) -> None:
    """Create the bucket unless it exists."""
    s3 = client(server)
    if not s3.bucket_exists(bucket):
        s3.make_bucket(bucket)
