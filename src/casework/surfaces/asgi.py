"""ASGI: ``casework.IdempotencyMiddleware``, for an application or one route.

The response is held back until it is complete and stored; only then does the client get it, and what the application
still does afterwards, background tasks included, changes nothing any more. A response that grows over the limit, and an
event stream, is passed on as it comes, with a header that says that it was not stored.

A client that leaves changes nothing, either. While its response is held, the application never hears of it, and runs in
a task of its own, which goes on where a server cancels what the client has left: what was performed is known when the
application has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar, Unpack

from casework.app.current import running_under
from casework.errors import CaseworkError
from casework.idempotency.calling import begun_or_refused
from casework.idempotency.guarding import Claim
from casework.surfaces.guard import Target
from casework.surfaces.heart import LoopHeart
from casework.surfaces.http import (
    NOT_STORED,
    HttpArguments,
    HttpGuard,
    HttpRequest,
    HttpResponse,
    make_guard,
    too_large,
)
from casework.surfaces.settling import Settled, free, settle

log = logging.getLogger("casework.idempotency")

Message = MutableMapping[str, Any]
T = TypeVar("T")
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_UNBUFFERED = ("http.response.pathsend", "http.response.zerocopysend", "http.response.push", "http.response.trailers")
"""Extensions by which an application could send what cannot be stored; it is not offered them."""


class IdempotencyMiddleware:
    """Performs each request with an ``Idempotency-Key`` once, and replays its response to those that repeat it.

    Args:
        app: the ASGI application, or the endpoint of one route.
        store: a casework application, an idempotency store, or a function that returns one.
        scope: who the caller is, as a function of the request: the tenant, the user. Two scopes never share a key.
            None where all callers are one; there is no default.
        arguments: those of :class:`~casework.surfaces.http.HttpOptions` and of ``Policy`` (``lease_s``, ``keep_s``,
            ``wait_s``, ``on_unavailable`` and so on), ``name`` and ``hooks``.
    """

    def __init__(self, app: AsgiApp, store: Target, **arguments: Unpack[HttpArguments]) -> None:
        self.app = app
        self.guard: HttpGuard = make_guard(store, arguments)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["method"] not in self.guard.methods:
            await self.app(scope, receive, send)
            return
        guard = self.guard
        name = guard.header.encode("latin-1")
        values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
        if not values and not guard.options.required:
            await self.app(scope, receive, send)
            return
        request = request_of(scope)
        try:
            key = guard.key_of(request, values)
            if key is None:
                await self.app(scope, receive, send)
                return
            request.body = await read_body(scope, receive, guard.options.max_request_bytes)
            fingerprint = guard.fingerprint_of(request)
            store = guard.store
            known = guard.known(key, fingerprint)
            if known is not None:
                await respond(send, guard.replay(known))
                return
            begun = await store.run_on_loop(begun_or_refused(guard, store.shared, key, fingerprint))
        except ClientLeft:
            return
        except CaseworkError as error:
            await respond(send, guard.refused(error))
            return
        if begun.record is not None:
            guard.notify("replayed", key)
            await respond(send, guard.replay(begun.record))
        elif begun.claim is None:
            guard.notify("unprotected", key)
            given = Given(request.body, receive)
            await self.app(scope, given.receive, with_header(send, NOT_STORED, "store-unavailable"))
        else:
            await perform(guard, begun.claim, self.app, scope, Given(request.body, receive), send)


async def perform(
    guard: HttpGuard, claim: Claim, app: AsgiApp, scope: MutableMapping[str, Any], given: Given, send: Send
) -> None:
    """Run the application under its claim, and settle that whatever happens, to the client or to this task."""
    heart = LoopHeart(guard.store)
    response = Held(guard, claim, send, heart)
    given.held_by(response)
    claim.answers_http = True
    heart.watch(claim)
    extensions = scope.get("extensions")
    if extensions:
        kept = {name: value for name, value in extensions.items() if name not in _UNBUFFERED}
        scope = {**scope, "extensions": kept}

    async def run() -> None:
        try:
            with running_under(claim):
                await app(scope, given.receive, response.send)
        except BaseException:
            await response.abandon()
            raise
        await response.abandon()  # it ended without a whole response

    await to_its_end(run())


_UNDER_WAY: set[asyncio.Task[Any]] = set()
"""Applications that run on although their client, or their server's task, has gone: a loop keeps no task alive."""


async def to_its_end(running: Coroutine[Any, Any, T]) -> T:
    """Await ``running`` in a task of its own, which a cancellation of this one leaves alone."""
    task = asyncio.get_running_loop().create_task(running, name="casework-guarded-request")
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_note_error)
        raise


def _note_error(task: asyncio.Task[Any]) -> None:
    """What an application raised for a client that has left: nobody else hears of it."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a request whose client had left failed: %r", task.exception(), exc_info=task.exception())


class Given:
    """What an application receives: the request's body once more, and then nothing while its response is held."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self._response: Held | None = None

    def held_by(self, response: Held) -> None:
        """Say whose application this is for."""
        self._response = response

    async def receive(self) -> Message:
        """The next message. That the client has left is not told before the response is the client's."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._response is not None:
            await self._response.is_free()
        return await self._receive()


class Held:
    """A response that is held back until it is whole."""

    def __init__(self, guard: HttpGuard, claim: Claim, send: Send, heart: LoopHeart) -> None:
        self._guard, self._claim, self._send, self._heart = guard, claim, send, heart
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._passes = ""
        """Why the rest is passed on as it comes."""
        self._is_settled = False
        self._free: asyncio.Event | None = None

    async def is_free(self) -> None:
        """Wait until the response is held no more: it is passed on as it comes, or was settled."""
        if self._passes or self._is_settled:
            return
        if self._free is None:
            self._free = asyncio.Event()
        await self._free.wait()

    def _let_go(self) -> None:
        if self._free is not None:
            self._free.set()

    async def send(self, message: Message) -> None:
        """Take one message of the application's."""
        kind = message["type"]
        if self._is_settled or kind not in ("http.response.start", "http.response.body"):
            await self._send(message)
            return
        if kind == "http.response.start":
            self._start = message
            if _is_event_stream(message):
                await self._pass_on("streamed")
            return
        body = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if not self._passes:
            self._parts.append(body)
            self._size += len(body)
            if self._size > self._guard.options.max_response_bytes:
                await self._pass_on("too-large")
                body = b""
        if self._passes and not is_last:
            if body:
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        elif is_last:
            await self._settle(body)

    async def _pass_on(self, why: str) -> None:
        """Begin to send what there is, with a header that says that it is not stored."""
        self._passes = why
        self._let_go()
        if self._start is not None and self._guard.is_result(self._start["status"]):
            name = (NOT_STORED.lower().encode(), why.encode())
            self._start = {**self._start, "headers": [*self._start.get("headers", ()), name]}
        await self._send(self._start or {})
        if self._parts:
            await self._send({"type": "http.response.body", "body": b"".join(self._parts), "more_body": True})
            self._parts = []

    async def _settle(self, rest: bytes) -> None:
        """The response is whole: store it, or free the key; then let the client have it."""
        self._is_settled = True
        self._heart.unwatch(self._claim)
        if self._passes:
            await self._settled()
            await self._send({"type": "http.response.body", "body": rest, "more_body": False})
            return
        body = b"".join(self._parts)
        settled = await self._settled(body)
        if settled.instead is not None:
            await respond(self._send, settled.instead)
            return
        start: Message = dict(self._start or {})
        if settled.not_stored:
            pair = (NOT_STORED.lower().encode(), settled.not_stored.encode())
            start["headers"] = [*start.get("headers", ()), pair]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _settled(self, body: bytes = b"") -> Settled:
        start: Message = self._start or {}
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ())]
        guard, store = self._guard, self._guard.store
        status = start.get("status", 200)
        settled: Settled = await store.run_on_loop(
            settle(guard, store.shared, self._claim, status, pairs, body, why=self._passes)
        )
        self._let_go()
        return settled

    async def abandon(self) -> None:
        """The application has ended: free the key, unless the response was whole or the client has a part of it."""
        self._let_go()
        if self._is_settled:
            return
        self._is_settled = True
        self._heart.unwatch(self._claim)
        if self._passes:
            await self._settled()
        else:
            await self._guard.store.run_on_loop(free(self._guard, self._guard.store.shared, self._claim))


class ClientLeft(Exception):
    """The client went away before its request was whole."""


async def read_body(scope: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BadRequest, ClientLeft."""
    length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def request_of(scope: MutableMapping[str, Any]) -> HttpRequest:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    root, path = scope.get("root_path", ""), scope["path"]
    if root and not path.startswith(root):
        path = root + path  # servers before ASGI 2.4 left it out
    return HttpRequest(scope["method"], path, scope.get("query_string", b"").decode("latin-1"), headers, native=scope)


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


async def respond(send: Send, response: HttpResponse) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def with_header(send: Send, name: str, value: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            pair = (name.lower().encode(), value.encode())
            message = {**message, "headers": [*message.get("headers", ()), pair]}
        await send(message)

    return wrapped
