"""One deadline over all of a request, and an end for clients that read too slowly.

Whatever hangs (the store, a body that is never sent to its end, a token that cannot be looked up), a client has an
answer within the deadline: 503, or 408 where the client itself is waited for. What was sent to the store by then goes
on; a push that is repeated is answered from the claims. A client that does not take what it is sent loses its
connection, so that the pages of those who stand still do not add up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from casework.relay.settings import RelaySettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

log = logging.getLogger("casework.relay")

GRACE_S = 1.0
"""A push answers by itself, and says what is stored, before this much after its deadline."""

BEGUN = "casework_begun_s"
"""In the scope: when the request began, on the loop's clock."""

_LEFT: set[asyncio.Task[None]] = set()
"""Requests that were answered without them: a loop keeps no task alive."""


class TooSlow(Exception):
    """The client does not take what it is sent."""


def bounded(
    settings: RelaySettings, waits_s: Callable[[Any], float], when_cut: Callable[[], None]
) -> Callable[[AsgiApp], AsgiApp]:
    """A middleware that keeps a relay's bounds.

    Args:
        settings: has the deadline, and how long a client may take for a part of an answer.
        waits_s: how long a request, by its scope, may wait for operations on top of the deadline.
        when_cut: called for each answer that is cut off, since its client does not take it.
    """

    def wrap(app: AsgiApp) -> AsgiApp:
        async def middleware(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            scope[BEGUN] = asyncio.get_running_loop().time()
            await _Bounded(settings, receive, send, when_cut).run(app, scope, settings.push_deadline_s + waits_s(scope))

        return middleware

    return wrap


class _Bounded:
    def __init__(self, settings: RelaySettings, receive: Receive, send: Send, when_cut: Callable[[], None]) -> None:
        self._settings, self._when_cut = settings, when_cut
        self._receive, self._send = receive, send
        self._answered = asyncio.Event()
        self._is_closed = False
        self._reads = False
        """The application waits for more of the body."""

    async def run(self, app: AsgiApp, scope: Any, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(app(scope, self.receive, self.send), name="casework-relay-request")
        answered = loop.create_task(self._answered.wait())
        try:
            await asyncio.wait({task, answered}, timeout=deadline_s + GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not self._answered.is_set():
                self._is_closed = True
                await self._give_up(deadline_s)
                return
            await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            answered.cancel()
            if not task.done():
                task.cancel()
                _LEFT.add(task)
                task.add_done_callback(_forget)

    async def receive(self) -> Message:
        self._reads = True
        message = await self._receive()
        self._reads = False
        return message

    async def send(self, message: Message) -> None:
        if self._is_closed:
            return
        self._answered.set()
        try:
            await asyncio.wait_for(self._send(message), self._settings.slow_client_s)
        except TimeoutError:
            self._is_closed = True
            self._when_cut()
            raise TooSlow(f"a client took nothing for {self._settings.slow_client_s:g} s") from None

    async def _give_up(self, deadline_s: float) -> None:
        """Answer in the application's place."""
        if self._reads:
            status, title = 408, "too slow"
            detail = f"the request's body did not come within {deadline_s:g} s"
        else:
            status, title = 503, "not all is stored"
            detail = f"the store did not answer within {deadline_s:g} s; send the same again"
        log.warning("%s: %s", status, detail)
        body = msgspec.json.encode({"title": title, "status": status, "detail": detail})
        headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
        headers += [(b"retry-after", b"2")] if status == 503 else [(b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _forget(task: asyncio.Task[None]) -> None:
    _LEFT.discard(task)
    if not task.cancelled():
        task.exception()  # it was answered already
