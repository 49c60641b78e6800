"""A TCP proxy on the loopback interface that can do to its connections what networks do."""

import asyncio
import contextlib
import socket
import struct
import threading

#: Bytes that are passed on at a time.
PIECE = 64 << 10
#: A connection that is closed with this is reset: the other end hears of it at once.
RESET = struct.pack("ii", 1, 0)
#: Seconds by which a slow network delays each piece.
DELAY_S = 0.5
FAULTS = ("black-hole", "reset", "refuse", "delay", "freeze", "half-open")


class _Connection:
    """One client, and the connection to the server behind the proxy."""

    def __init__(self, client):
        self.client, self.server = client, None
        #: Nothing of it arrives any more, and neither end hears of that.
        self.dead = False


class Proxy:
    """Passes `port` on to `target`; a context manager.

    Faults, while they last: `black-hole` swallows what is sent on all connections, those that are made meanwhile too;
    `reset` resets all, and lets new ones come; `refuse` resets those that come, too; `delay` holds each piece up;
    `freeze` passes nothing on until it ends, and loses nothing; `half-open` closes the server's end alone, once. A
    connection that has swallowed something never comes back.
    """

    def __init__(self, target):
        self.target = target
        self.fault = ""
        #: Connections that have been made so far.
        self.accepted = 0
        self._connections = set()
        #: Not set during a freeze.
        self._passes = asyncio.Event()
        self._passes.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._server = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def __enter__(self):
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, sock=self._listener))
        return self

    def __exit__(self, *_):
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, fault):
        """Break the network in this way until `end`."""
        assert fault in FAULTS
        self._run(self._begin(fault))

    def end(self):
        """Mend it; dead connections stay dead."""
        self.fault = ""
        self._loop.call_soon_threadsafe(self._passes.set)

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _begin(self, fault):
        self.fault = fault
        if fault == "freeze":
            self._passes.clear()
        for connection in list(self._connections):
            if fault in ("black-hole", "half-open"):
                connection.dead = True
            if fault == "half-open" and connection.server is not None:
                connection.server.close()
            if fault in ("reset", "refuse"):
                self._reset(connection)

    async def _accept(self, reader, writer):
        self.accepted += 1
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            if self.fault == "refuse":
                self._reset(connection)
                return
            connection.dead = self.fault == "black-hole"
            host, _, port = self.target.rpartition(":")
            back, connection.server = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                self._pass(connection, reader, connection.server), self._pass(connection, back, writer)
            )
        except (OSError, asyncio.CancelledError):  # cancelled when the proxy ends
            self._reset(connection)
        finally:
            self._connections.discard(connection)
            for end in (connection.client, connection.server):
                if end is not None:
                    end.close()

    async def _pass(self, connection, reader, writer):
        """Pass on until an end is reached, which is passed on, too; of a dead connection nothing."""
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if self.fault == "delay":
                    await asyncio.sleep(DELAY_S)
                await self._passes.wait()
                if not connection.dead:
                    writer.write(data)
                    await writer.drain()
        if not connection.dead:
            writer.close()

    def _reset(self, connection):
        for end in (connection.client, connection.server):
            if end is not None:
                raw = end.get_extra_info("socket")
                with contextlib.suppress(OSError, AttributeError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.transport.abort()

    async def _close(self):
        self._server.close()
        for connection in list(self._connections):
            self._reset(connection)
        await asyncio.sleep(0)
        pending = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
