"""What a started server looks like to those who use it: the demo, the tests and a person's shell.

A server is a local process (`kafka_local`, `minio_local`) or a container (`containers`); users see these protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Progress = Callable[[str], None]
"""Receives one plain line at the start of a long step and every few seconds while it runs."""


def silent(_line: str) -> None:
    """Drop progress lines; the default where nobody watches."""


class Server(Protocol):
    """One server on the loopback interface; its port and data outlive `stop`, `kill` and `restart`."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def endpoint(self) -> str:
        """Where clients connect: `host:port`, the same over restarts."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""

    def start(self) -> None:
        """Return once it answers; raises an error with the end of its log if it does not."""

    def stop(self) -> None:
        """End it in an orderly way; a second call does nothing."""

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""

    def restart(self) -> None:
        """Stop it if it runs, then start it on the same data and port."""

    def remove(self) -> None:
        """Stop it for good and free what it holds outside its data folder (a container)."""


class KafkaServer(Server, Protocol):
    """One Kafka broker that is its own controller."""

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers`."""


class MinioServer(Server, Protocol):
    """One S3 server."""

    @property
    def url(self) -> str:
        """The endpoint with its scheme."""

    @property
    def access_key(self) -> str:
        """Name of the account."""

    @property
    def secret_key(self) -> str:
        """Password of the account."""

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket; nothing happens if it is there."""
