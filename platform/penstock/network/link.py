"""One socket between two workers: received bytes go to a decoder, frames leave from a queue, plain or by TLS.

Never blocks. Used by `connection`, in its thread. Between hosts of a cluster with certificates, both ends present the
cluster's certificate.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING

from penstock.config.security import INTERNAL_NAME, Tls
from penstock.core.errors import UsageError
from penstock.network.frame import FrameDecoder, FrameError
from penstock.network.handshake import MESSAGE_BYTES, Handshake

if TYPE_CHECKING:
    from penstock.network.session import Session

_SEND_BUFFERS = 64


class Certificates:
    """The cluster's certificate, for either end of a connection."""

    def __init__(self, tls: Tls) -> None:
        """Read the files.

        Raises:
            UsageError: one cannot be read, or is no certificate.
        """
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, tls)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, tls)

    def wrap(self, sock: socket.socket, *, dialled: bool) -> ssl.SSLSocket:
        """Return a TLS socket on top of the connected one, which must not be used any longer."""
        if dialled:
            return self._server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        # the certificate belongs to the cluster, not to a host: it has to contain this name at every address
        return self._client.wrap_socket(sock, server_hostname=INTERNAL_NAME, do_handshake_on_connect=False)


class Link:
    """One non-blocking socket."""

    def __init__(
        self,
        sock: socket.socket,
        handshake: Handshake,
        session: Session | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """Take `session` of the dialled worker; None until the peer of an accepted socket has proved its identity.

        With `certificates`, traffic that leaves the host uses TLS.
        """
        self.sock = sock
        self.handshake = handshake
        self.session = session
        self.decoder = FrameDecoder(MESSAGE_BYTES)
        self.unsent: deque[memoryview] = deque()
        self.connecting = False
        self.wants_write = False
        #: A handshake waits for bytes of the peer: nothing can be sent before.
        self.waits_for_peer = False
        self._certificates = None if sock.family == socket.AF_UNIX else certificates
        self._dialled = session is None
        self._tls: ssl.SSLSocket | None = None
        self._handshake_done = False

    @property
    def pending(self) -> bool:
        """Return whether decrypted bytes wait to be read, which no selector reports."""
        return self._tls is not None and self._tls.pending() > 0

    def receive(self) -> int | None:
        """Read bytes into the decoder's buffers; return how many, 0 at the end, None if there are none now.

        Raises:
            OSError: the connection is broken, or the other end's certificate is not the cluster's.
        """
        try:
            if self._certificates is None:
                return self.sock.recvmsg_into(self.decoder.buffers())[0]
            return self._tls_socket(self._certificates).recv_into(self.decoder.buffers()[0])
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return None

    def send(self) -> bool:
        """Send as much of `unsent` as possible; return False if the socket is full.

        Raises:
            OSError: as for `receive`.
        """
        try:
            if self._certificates is None:
                buffers = [self.unsent[index] for index in range(min(len(self.unsent), _SEND_BUFFERS))]
                sent = self.sock.sendmsg(buffers)
            else:
                sent = self._tls_socket(self._certificates).send(self.unsent[0])
        except ssl.SSLWantReadError:
            self.waits_for_peer = True
            return False
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
            return False
        self._remove_sent(sent)
        return True

    def _remove_sent(self, sent: int) -> None:
        while sent:
            first = self.unsent[0]
            if sent < len(first):
                self.unsent[0] = first[sent:]
                return
            sent -= len(first)
            self.unsent.popleft()

    def _tls_socket(self, certificates: Certificates) -> ssl.SSLSocket:
        """Continue the handshake; after it accept only the cluster's certificate, not others of its CA."""
        if self._tls is None:
            self.sock = self._tls = certificates.wrap(self.sock, dialled=self._dialled)
        if not self._handshake_done:
            self._tls.do_handshake()
            names = (self._tls.getpeercert() or {}).get("subjectAltName", ())
            if ("DNS", INTERNAL_NAME) not in names:
                raise FrameError(
                    "the peer's certificate is not the cluster's", hint="give it the cluster's cluster.pem"
                )
            self._handshake_done = True
        return self._tls


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: the connection ended, but was not refused."""
    return isinstance(error, OSError) and (not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError))


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        context.load_verify_locations(tls.ca)
    except OSError as error:
        msg = f"the cluster's certificate {tls.certificate} cannot be used: {error}"
        raise UsageError(msg, hint="`penstock cluster certs DIR` makes the cluster's certificates") from error
    return context
