"""A server around the relay: uvicorn, with a stop that lets pushes finish and ends long polls at once."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from casework.app.streams_aio import AsyncStreamStore
from casework.backends.port import AsyncBackend
from casework.relay.http import make_app
from casework.relay.service import Relay
from casework.relay.settings import RelaySettings
from casework.streams.log import StreamOptions


class _Patient(H11Protocol):
    """Closes a connection whose client does not get as far as a request: uvicorn itself would wait for ever."""

    header_s = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.requests_n = 0
        super().connection_made(transport)
        self._patience = self.loop.call_later(self.header_s, self._look)

    def handle_events(self) -> None:
        super().handle_events()
        self.requests_n += getattr(self, "cycle", None) is not None

    def _look(self) -> None:
        transport = self.transport
        if self.requests_n == 0 and not transport.is_closing():
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)


class RelayServer(uvicorn.Server):
    """Sets ``relay.stopping`` when it is told to leave, so that nothing that only waits holds it up."""

    def __init__(self, relay: Relay, *, host: str, port: int, log_level: str = "warning") -> None:
        self.relay = relay
        self.when_started: Callable[[], None] | None = None
        settings = relay.settings
        protocol = type("Protocol", (_Patient,), {"header_s": settings.header_s})
        super().__init__(
            uvicorn.Config(
                make_app(relay),
                host=host,
                port=port,
                http=protocol,
                limit_concurrency=settings.max_connections + 1,  # uvicorn refuses at its limit, not above it
                log_level=log_level,
                lifespan="on",
                access_log=False,
                timeout_graceful_shutdown=int(settings.push_deadline_s) + 5,
                server_header=False,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        if self.started and self.when_started is not None:
            self.when_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: no new connection, no waiting reader; pushes under way are answered."""
        self.relay.stopping.set()
        # Not the inherited way, which raises the signal again at the end: a stop that was asked for is no failure.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def leave(self) -> None:
        """The same, from the program."""
        self.relay.stopping.set()
        self.should_exit = True

    @property
    def port(self) -> int:
        """The port that it listens on, once it has started."""
        sockets: Any = self.servers[0].sockets
        return int(sockets[0].getsockname()[1])


def make_relay(
    backend: AsyncBackend, settings: RelaySettings | None = None, options: StreamOptions | None = None
) -> Relay:
    """A relay on a backend."""
    return Relay(AsyncStreamStore(backend, options=options), settings)
