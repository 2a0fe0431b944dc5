"""What a site does to the outside: a line to a server of the test, which counts it and may hold it up.

An effect is one connection. The test sees it when it happens, so it can leave, or send a second request, while the
application is at work; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Iterator

PORT = "CASEWORK_TEST_EFFECTS"
"""The variable of the environment that tells a site where its effects go."""


def perform(key: str) -> int:
    """Have the effect of a request; how many there were for its key, this one included."""
    with socket.create_connection(("127.0.0.1", int(os.environ[PORT])), 60) as connection:
        connection.sendall(key.encode() + b"\n")
        return int(connection.makefile().readline())


async def perform_async(key: str) -> int:
    """As :func:`perform`, on a loop."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]))
    try:
        writer.write(key.encode() + b"\n")
        return int(await reader.readline())
    finally:
        writer.close()


class Effects:
    """Counts effects by key, and holds up the first of a key that is to be held."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self.port = 0

    def hold(self, key: str) -> None:
        """The first effect of a key waits for :meth:`release`."""
        self._held.add(key)

    def release(self, key: str) -> None:
        """Let it go on."""
        with self._changed:
            self._held.discard(key)
            self._changed.notify_all()

    def has_begun(self, key: str, timeout_s: float = 30) -> bool:
        """Wait for an effect of a key; False where there was none."""
        with self._changed:
            return self._changed.wait_for(lambda: self.counts[key] > 0, timeout_s)

    def take(self, key: str) -> int:
        """Count an effect, and wait while its key is held."""
        with self._changed:
            self.counts[key] += 1
            count = self.counts[key]
            self._changed.notify_all()
            self._changed.wait_for(lambda: count > 1 or key not in self._held, 60)
            return count


@contextlib.contextmanager
def counting() -> Iterator[Effects]:
    """Effects, with their server."""
    effects = Effects()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            key = self.rfile.readline().decode().strip()
            with contextlib.suppress(OSError):
                self.wfile.write(b"%d\n" % effects.take(key))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        effects.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield effects
        finally:
            server.shutdown()
            thread.join(10)
