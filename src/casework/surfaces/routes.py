"""Routes of Starlette and FastAPI that are guarded one by one: ``casework.idempotent_route``.

On a FastAPI route the guard stands between the dependencies and the endpoint: whoever is refused by a dependency
(authentication, permissions, validation) never gets to see a stored response. The route's own response is still held
back at its outer edge, where it is whole.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Unpack

from casework.app.current import enter_claim, leave_claim
from casework.errors import CaseworkError, Misuse
from casework.idempotency.calling import begun_or_refused
from casework.idempotency.guarding import Claim
from casework.surfaces.asgi import (
    ClientLeft,
    Given,
    Held,
    IdempotencyMiddleware,
    Message,
    Receive,
    Send,
    read_body,
    request_of,
    respond,
    to_its_end,
    with_header,
)
from casework.surfaces.guard import Target
from casework.surfaces.heart import LoopHeart
from casework.surfaces.http import NOT_STORED, HttpArguments, HttpGuard, HttpRequest, HttpResponse, make_guard


def idempotent_route(route_class: type, store: Target, **arguments: Unpack[HttpArguments]) -> type:
    """A class of routes of Starlette or FastAPI that are guarded one by one.

    ``APIRouter(route_class=casework.idempotent_route(APIRoute, store, scope=...))``

    A route of FastAPI looks its key up when all its dependencies have answered, and only then: authentication, which is
    one of them, comes before a replay. ``scope`` finds what they returned in ``request.arguments``. What they refuse,
    an invalid body among it, is not stored, and the key stays free. A route of Starlette is guarded as a whole; take
    ``scope`` from the user that ``AuthenticationMiddleware`` has put into ``request.native["user"]``.

    Args:
        route_class: ``starlette.routing.Route``, ``fastapi.routing.APIRoute``, or a class of yours below them.
        store: as for :class:`~casework.surfaces.asgi.IdempotencyMiddleware`.
        arguments: as for :class:`~casework.surfaces.asgi.IdempotencyMiddleware`.
    """
    guard = make_guard(store, arguments)
    made: Any
    if hasattr(route_class, "get_route_handler"):  # FastAPI: there are dependencies

        def begin(self: Any, path: str, endpoint: Callable[..., Any], *rest: Any, **options: Any) -> None:
            super(made, self).__init__(path, _guarded(endpoint, guard), *rest, **options)

        async def handle_inside(self: Any, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            await _handle(guard, super(made, self).handle, scope, receive, send)

        body = {"__init__": begin, "handle": handle_inside, "guard": guard}
    else:

        async def handle(self: Any, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            guarded = IdempotencyMiddleware.__new__(IdempotencyMiddleware)
            guarded.app, guarded.guard = super(made, self).handle, guard
            await guarded(scope, receive, send)

        body = {"handle": handle, "guard": guard}
    made = type(f"Idempotent{route_class.__name__}", (route_class,), body)
    return made  # type: ignore[no-any-return]


class _Under:
    """One request to a guarded route of FastAPI: unguarded until its endpoint is about to be called."""

    def __init__(self, request: HttpRequest, values: list[str], given: Given, send: Send) -> None:
        self.request, self.values, self.given = request, values, given
        self._send = send
        self._held: Held | None = None

    async def send(self, message: Message) -> None:
        """Hand a message on, or hold it back."""
        await (self._send if self._held is None else self._held.send)(message)

    def run_unprotected(self) -> None:
        """Say in the response that it is not stored."""
        self._send = with_header(self._send, NOT_STORED, "store-unavailable")

    def hold(self, guard: HttpGuard, claim: Claim) -> None:
        """From now on the response is held back."""
        heart = LoopHeart(guard.store)
        self._held = Held(guard, claim, self._send, heart)
        self.given.held_by(self._held)
        claim.answers_http = True
        heart.watch(claim)

    async def end(self) -> None:
        """The route has ended: settle what is not settled yet."""
        if self._held is not None:
            await self._held.abandon()


_UNDER: contextvars.ContextVar[_Under | None] = contextvars.ContextVar("casework_route", default=None)


async def _handle(guard: HttpGuard, handle: Any, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    name = guard.header.encode("latin-1")
    values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
    if scope["method"] not in guard.methods or not (values or guard.options.required):
        await handle(scope, receive, send)
        return
    request = request_of(scope)
    try:
        request.body = await read_body(scope, receive, guard.options.max_request_bytes)
    except ClientLeft:
        return
    except CaseworkError as error:
        await respond(send, guard.refused(error))
        return
    under = _Under(request, values, Given(request.body, receive), send)

    async def run() -> None:
        token = _UNDER.set(under)
        try:
            await handle(scope, under.given.receive, under.send)
        finally:
            await under.end()
            _UNDER.reset(token)

    await to_its_end(run())


_GUARD = "__casework_guard__"


def _guarded(endpoint: Callable[..., Any], guard: HttpGuard) -> Callable[..., Any]:
    """The endpoint behind its guard. FastAPI makes a route anew where a router is included: it is guarded once."""
    if getattr(endpoint, _GUARD, None) is guard:
        return endpoint
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise Misuse(
            f"{endpoint.__qualname__} is a generator, whose response cannot be held back; return a StreamingResponse, "
            "or put it on a router of its own"
        )

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        under = _UNDER.get()
        if under is None:
            return await _call(endpoint, args, kwargs)
        begun = await _begin(under, guard, kwargs)
        if isinstance(begun, HttpResponse):
            return _native(begun)
        if begun is None:
            return await _call(endpoint, args, kwargs)
        token = enter_claim(begun)
        try:
            return await _call(endpoint, args, kwargs)
        finally:
            leave_claim(token)

    functools.update_wrapper(wrapper, endpoint)
    wrapper.__signature__ = _signature(endpoint)  # type: ignore[attr-defined]
    setattr(wrapper, _GUARD, guard)
    return wrapper


async def _begin(under: _Under, guard: HttpGuard, arguments: Mapping[str, Any]) -> Claim | HttpResponse | None:
    """Claim the key, or say what to answer; None: the endpoint runs without a claim."""
    request = under.request
    request.arguments = arguments
    try:
        key = guard.key_of(request, under.values)
        if key is None:
            return None
        fingerprint = guard.fingerprint_of(request)
        known = guard.known(key, fingerprint)
        if known is not None:
            return guard.replay(known)
        begun = await guard.store.run_on_loop(begun_or_refused(guard, guard.store.shared, key, fingerprint))
    except CaseworkError as error:
        return guard.refused(error)
    if begun.record is not None:
        guard.notify("replayed", key)
        return guard.replay(begun.record)
    if begun.claim is None:
        guard.notify("unprotected", key)
        under.run_unprotected()
        return None
    under.hold(guard, begun.claim)
    return begun.claim


async def _call(endpoint: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The endpoint's result; a plain function runs in a thread, as FastAPI has it."""
    if inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(getattr(endpoint, "__call__", None)):  # noqa: B004
        return await endpoint(*args, **kwargs)
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(endpoint, *args, **kwargs)


def _signature(endpoint: Callable[..., Any]) -> inspect.Signature:
    """With annotations that are text resolved where the endpoint stands, since the wrapper stands elsewhere."""
    try:
        return inspect.signature(endpoint, eval_str=True)
    except Exception:  # noqa: BLE001 - a name that is there for type checkers only: FastAPI is to judge
        return inspect.signature(endpoint)


def _native(response: HttpResponse) -> Any:
    from starlette.responses import Response

    native = Response(response.body, response.status)
    native.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    return native
