"""The address of a cluster: one URL of a JobManager, several, or the HA root that names the leader.

Used by `client.rest_client`. Any JobManager of a cluster will do: a standby forwards to the leader.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from penstock.config.security import is_loopback
from penstock.core.errors import UsageError

_EXAMPLE = "use a URL like http://127.0.0.1:8081, as printed by `penstock cluster start`, several, or the --ha-root"


class ClusterAddress:
    """`text` is a URL, URLs with commas between them, or an HA root: `s3://bucket/prefix` or a folder."""

    def __init__(self, text: str, *, has_token: bool) -> None:
        """Parse `text`; `has_token`: a token is sent along, which must not go unencrypted to another machine.

        Raises:
            UsageError: it is no address, or would send the token unencrypted.
        """
        if not isinstance(text, str):
            raise UsageError(f"{text!r} is not the address of a JobManager", hint=_EXAMPLE)
        self.text = text.rstrip("/")
        self._has_token = has_token
        #: Whether the server of the HA root has answered.
        self._answered = False
        folder = "://" not in text and Path(text, "leader.json").exists()
        self._root = text if folder or text.startswith(("s3://", "file://")) else ""
        self._urls = [] if self._root else [url.strip().rstrip("/") for url in text.split(",")]
        for url in self._urls:
            self._check(url)

    @property
    def fails_over(self) -> bool:
        """Whether another JobManager may answer when one does not."""
        return bool(self._root) or len(self._urls) > 1

    def urls(self) -> list[str]:
        """Return the URLs to try, in this order.

        Raises:
            NoJobManagerError: the HA root names no leader. StorageError: it cannot be read.
        """
        if not self._root:
            return list(self._urls)
        from penstock.checkpoint.leader_lease import leader_of  # most clients need no store
        from penstock.checkpoint.stores import require_answer

        if not self._answered:
            require_answer(self._root)
            self._answered = True
        url = leader_of(self._root).rest
        self._check(url)
        return [url]

    def redirected(self, location: str, path: str) -> str:
        """Return the URL of the leader to which a standby redirects a request for `path`.

        Raises:
            UsageError: it is no JobManager's, or the token would be sent unencrypted.
        """
        url = location.removesuffix(path)
        if url == location:
            raise UsageError(f"{self.text} redirects to {location!r}, which is no JobManager", hint=_EXAMPLE)
        self._check(url)
        return url

    def answered(self, url: str) -> None:
        """Try this URL first from now on."""
        if url in self._urls and self._urls[0] != url:
            self._urls.remove(url)
            self._urls.insert(0, url)

    def _check(self, url: str) -> None:
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname or not _has_valid_port(place):
            raise UsageError(f"{url!r} is not the address of a JobManager", hint=_EXAMPLE)
        if self._has_token and place.scheme != "https" and not is_loopback(place.hostname):
            msg = f"{url} is unencrypted: others could read the token"
            raise UsageError(msg, hint="use its https:// address, or unset PENSTOCK_TOKEN and PENSTOCK_TOKEN_FILE")


def _has_valid_port(place: SplitResult) -> bool:
    """Return whether the port of a URL is absent or a number that a port can have."""
    try:
        return place.port != 0
    except ValueError:
        return False
