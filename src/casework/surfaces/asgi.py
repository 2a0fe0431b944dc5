"""ASGI: ``casework.IdempotencyMiddleware``, for an application or one route.

The response is held back until it is complete and stored; only then does the client get it, and what the application
still does afterwards, background tasks included, changes nothing any more. A response that grows over the limit, and an
event stream, is passed on as it comes, with a header that says that it was not stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from casework.app.current import running_under
from casework.errors import CaseworkError, LeaseLost, StoreError
from casework.idempotency.calling import begun_or_refused
from casework.idempotency.guarding import Claim, finish, give_up, not_kept
from casework.surfaces.guard import Target
from casework.surfaces.heart import LoopHeart
from casework.surfaces.http import (
    NOT_STORED,
    HttpGuard,
    HttpRequest,
    HttpResponse,
    make_guard,
    too_large,
    why_not_stored,
)

Message = MutableMapping[str, Any]
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

    def __init__(self, app: AsgiApp, store: Target, **arguments: Any) -> None:
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
        request = _request_of(scope)
        try:
            key = guard.key_of(request, values)
            if key is None:
                await self.app(scope, receive, send)
                return
            request.body, receive = await _read_body(scope, receive, guard.options.max_request_bytes)
            fingerprint = guard.fingerprint_of(request)
            store = guard.store
            known = guard.known(key, fingerprint)
            if known is not None:
                await _respond(send, guard.replay(known))
                return
            begun = await store.run_on_loop(begun_or_refused(guard, store.shared, key, fingerprint))
        except _ClientLeft:
            return
        except CaseworkError as error:
            await _respond(send, guard.refused(error))
            return
        if begun.record is not None:
            guard.notify("replayed", key)
            await _respond(send, guard.replay(begun.record))
        elif begun.claim is None:
            guard.notify("unprotected", key)
            await self.app(scope, receive, _with_header(send, NOT_STORED, "store-unavailable"))
        else:
            await self._perform(begun.claim, scope, receive, send)

    async def _perform(self, claim: Claim, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Run the application under its claim, and settle that whatever happens."""
        heart = LoopHeart(self.guard.store)
        response = _Held(self.guard, claim, send, heart)
        claim.answers_http = True
        heart.watch(claim)
        extensions = scope.get("extensions")
        if extensions:
            kept = {name: value for name, value in extensions.items() if name not in _UNBUFFERED}
            scope = {**scope, "extensions": kept}
        try:
            with running_under(claim):
                await self.app(scope, receive, response.send)
        except BaseException:
            await response.abandon()
            raise
        await response.abandon()  # it ended without a whole response


class _Held:
    """A response that is held back until it is whole."""

    def __init__(self, guard: HttpGuard, claim: Claim, send: Send, heart: LoopHeart) -> None:
        self._guard, self._claim, self._send, self._heart = guard, claim, send, heart
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._passes = ""
        """Why the rest is passed on as it comes."""
        self._is_settled = False

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
            await self._note_not_kept()
            await self._send({"type": "http.response.body", "body": rest, "more_body": False})
            return
        start: Message = dict(self._start or {})
        body = b"".join(self._parts)
        refusal = await self._store(start, body)
        if refusal is not None:
            await _respond(self._send, refusal)
            return
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _store(self, start: Message, body: bytes) -> HttpResponse | None:
        """Store the response; another one instead of it when the claim was lost."""
        guard, store, claim = self._guard, self._guard.store, self._claim
        status = start["status"]
        if claim.is_finished:  # by a transaction of the application's
            guard.notify("completed", claim.key, claim)
            return None
        if not guard.is_result(status):
            kept = await store.run_on_loop(give_up(store.shared, claim))
            guard.notify("released" if kept else "lost", claim.key, claim)
            return None
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ())]
        try:
            kept = await store.run_on_loop(finish(store.shared, claim, status, guard.stored_headers(pairs), body))
        except CaseworkError as error:
            guard.notify("unrecorded" if isinstance(error, StoreError) else "not_kept", claim.key, claim)
            start["headers"] = [
                *start.get("headers", ()),
                (NOT_STORED.lower().encode(), why_not_stored(error).encode()),
            ]
            return None
        guard.notify("completed" if kept else "lost", claim.key, claim)
        if kept or guard.policy.on_lease_lost == "return":
            return None
        return guard.refused(LeaseLost("another request took over"))

    async def _note_not_kept(self) -> None:
        guard, store, claim = self._guard, self._guard.store, self._claim
        status = (self._start or {}).get("status", 200)
        if claim.is_finished:
            return
        try:
            if not guard.is_result(status):
                await store.run_on_loop(give_up(store.shared, claim))
                guard.notify("released", claim.key, claim)
                return
            why = (
                "its response was too large to be stored"
                if self._passes == "too-large"
                else "its response was a stream"
            )
            await store.run_on_loop(not_kept(store.shared, claim, status, why))
            guard.notify("not_kept", claim.key, claim)
        except StoreError:
            guard.notify("unrecorded", claim.key, claim)

    async def abandon(self) -> None:
        """The application has ended: free the key, unless the response was whole."""
        if self._is_settled:
            return
        self._is_settled = True
        self._heart.unwatch(self._claim)
        store = self._guard.store
        if self._claim.is_finished:
            return
        kept = await store.run_on_loop(give_up(store.shared, self._claim))
        self._guard.notify("released" if kept else "lost", self._claim.key, self._claim)


class _ClientLeft(Exception):
    """The client went away before its request was whole."""


async def _read_body(scope: MutableMapping[str, Any], receive: Receive, limit: int) -> tuple[bytes, Receive]:
    """The whole body, and a ``receive`` that hands it out once more. Raises BadRequest, _ClientLeft."""
    length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            break
    body = b"".join(parts)
    was_given = False

    async def again() -> Message:
        nonlocal was_given
        if was_given:
            return await receive()
        was_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return body, again


def _request_of(scope: MutableMapping[str, Any]) -> HttpRequest:
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


async def _respond(send: Send, response: HttpResponse) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _with_header(send: Send, name: str, value: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            pair = (name.lower().encode(), value.encode())
            message = {**message, "headers": [*message.get("headers", ()), pair]}
        await send(message)

    return wrapped


def idempotent_route(route_class: type, store: Target, **arguments: Any) -> type:
    """A class of routes of Starlette or FastAPI that are guarded one by one.

    ``APIRouter(route_class=casework.idempotent_route(APIRoute, store, scope=...))``

    Args:
        route_class: ``starlette.routing.Route``, ``fastapi.routing.APIRoute``, or a class of yours below them.
        store: as for :class:`IdempotencyMiddleware`.
        arguments: as for :class:`IdempotencyMiddleware`.
    """
    guard = make_guard(store, arguments)

    async def handle(self: Any, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        guarded = IdempotencyMiddleware.__new__(IdempotencyMiddleware)
        guarded.app, guarded.guard = super(made, self).handle, guard
        await guarded(scope, receive, send)

    made: Any = type(f"Idempotent{route_class.__name__}", (route_class,), {"handle": handle, "guard": guard})
    return made  # type: ignore[no-any-return]
