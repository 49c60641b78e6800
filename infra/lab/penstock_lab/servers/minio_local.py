"""A MinIO server as a local process, from the cached program, and the S3 calls that users of a server need.

Chosen by `choose.start_minio` if no Docker engine answers.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError
from penstock_lab.servers import provision
from penstock_lab.servers.process import LOOPBACK, Command, LocalProcess, free_port
from penstock_lab.servers.spec import MinioServer, Progress, silent


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


ACCESS_KEY = "lab-access-key"
SECRET_KEY = "lab-secret-key"  # noqa: S105  a server on the loopback interface that lives as long as its starter
START_LIMIT_MS = 60_000
STOP_GRACE_MS = 10_000
HEALTH_TIMEOUT_S = 2.0


class LocalMinio:
    """A `MinioServer` with log and data in `data_dir`."""

    name = "MinIO"
    access_key = ACCESS_KEY

    def __init__(
        self, data_dir: Path, *, port: int | None = None, secret_key: str = SECRET_KEY, progress: Progress = silent
    ) -> None:
        """Prepare the server; `start` starts it."""
        self.secret_key = secret_key
        self._data = data_dir.absolute()
        self._port = port or free_port()
        self._console_port = free_port()
        self._progress = progress
        self._process: LocalProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def url(self) -> str:
        return f"http://{self.endpoint}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._data / "minio.log"

    def start(self) -> None:
        if self.pid is not None:
            return
        program = provision.ensure_minio(self._progress)
        storage = self._data / "storage"
        storage.mkdir(parents=True, exist_ok=True)
        # without an address the console listens on all interfaces
        console = ["--console-address", f"{LOOPBACK}:{self._console_port}"]
        argv = [str(program), "server", "--quiet", "--address", self.endpoint, *console, str(storage)]
        env = {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_API_ODIRECT": "off",
        }
        self._process = LocalProcess(Command(name=self.name, argv=argv, log=self.log, env=env))
        self._process.start(lambda: is_healthy(self._port), START_LIMIT_MS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_GRACE_MS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()

    def make_bucket(self, bucket: str) -> None:
        ensure_bucket(self, bucket)


def is_healthy(port: int) -> bool:
    """Return whether the server on the port serves requests and its drive is online."""
    return all(_answers(port, path) for path in ("/minio/health/live", "/minio/health/cluster"))


def _answers(port: int, path: str) -> bool:
    # http.client uses no proxy, unlike higher-level clients
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
