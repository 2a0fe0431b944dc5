"""``casework.idempotent_aiohttp_app``, for ``aiohttp.web``.

aiohttp has no ASGI or WSGI below it. The guard is a middleware, which sees the response of a handler before it is sent,
and a signal, which tells of a response that the handler sends by itself: that one cannot be held back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

import msgspec

from casework.app.current import running_under
from casework.errors import CaseworkError, Misuse
from casework.idempotency.guarding import Claim
from casework.kernel.effects import Outcome
from casework.surfaces.asgi import to_its_end
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
from casework.surfaces.views import Framework, serve

Handler = Callable[[Any], Awaitable[Any]]


def idempotent_aiohttp_app(app: Any, store: Target, **arguments: Unpack[HttpArguments]) -> None:
    """Guards an application of aiohttp's, or one that is added to another with ``add_subapp``.

    The guard stands below the middlewares that the application has by now: call it when those that find out who the
    caller is are there. ``scope`` sees what they have put into ``request.native``. Misuse where the application runs
    already.

    Args:
        app: the ``aiohttp.web.Application``.
        store: a casework application, an idempotency store, or a function that returns one.
        arguments: as for :class:`~casework.surfaces.asgi.IdempotencyMiddleware`; ``request.native`` is aiohttp's
            request.
    """
    if not hasattr(app, "middlewares") or not hasattr(app, "on_response_prepare"):
        raise Misuse(f"app is {app!r:.80}; it must be an application of aiohttp's: aiohttp.web.Application()")
    if app.frozen:
        raise Misuse("the application of aiohttp's runs already; guard it before")
    from aiohttp import web

    guard = make_guard(store, arguments)
    handled: dict[int, Aiohttp] = {}

    @web.middleware
    async def idempotency(native: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse = await _respond(guard, handled, native, handler)
        return response

    async def on_prepare(native: Any, response: Any) -> None:
        framework = handled.get(id(native))
        if framework is not None:
            framework.note(guard, response)

    app.middlewares.append(idempotency)
    app.on_response_prepare.append(on_prepare)


async def _respond(guard: HttpGuard, handled: dict[int, Aiohttp], native: Any, handler: Handler) -> Any:
    """Serve one request; ``handled`` has, by the ids of requests, those whose handlers run."""
    from aiohttp import web

    framework = Aiohttp(guard.header)
    request, values = framework.request_of((native,))
    applies = guard.options.applies
    if (
        request.method not in guard.methods
        or not (values or guard.options.required)
        or (applies is not None and not applies(request))
    ):
        return await handler(native)
    try:
        request.body = await _read(native, guard.options.max_request_bytes)
    except CaseworkError as error:
        return framework.made(guard.refused(error))

    async def work(claim: Claim | None) -> Outcome[Any]:
        framework.why = "store-unavailable" if claim is None else "streamed"
        handled[id(native)] = framework
        with running_under(claim):
            try:
                return Outcome(await handler(native))
            except BaseException as error:  # noqa: BLE001 - handed on as it is, or as the answer that it is
                return Outcome(error=error)
            finally:
                del handled[id(native)]

    store = guard.store
    served = serve(guard, store.shared, framework, request, values, work, LoopHeart(store))
    response = (await to_its_end(store.run_on_loop(served))).result()
    if isinstance(response, web.HTTPException):
        raise response  # aiohttp wants them raised
    return response


async def _read(native: Any, limit: int) -> bytes:
    """The whole body, put back for the handler. Raises BadRequest."""
    if (native.content_length or 0) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in native.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(limit)
    body = b"".join(parts)
    if body:
        from aiohttp import StreamReader

        # A request has no other way to be read again, and `post` and `multipart` read nothing but its stream. The limit
        # keeps a body that no handler reads from pausing the connection.
        stream = StreamReader(native.protocol, max(len(body), 65_536))
        stream.feed_data(body)
        stream.feed_eof()
        native._payload = stream
        native._cache.pop("content", None)  # `content` remembers the stream that it was asked for first
    return body


class Begun(msgspec.Struct, frozen=True):
    """A response of which the client has a part."""

    status: int
    headers: Sequence[tuple[str, str]]


class Aiohttp(Framework):
    """One request to aiohttp, for :func:`casework.idempotent_aiohttp_app`."""

    def __init__(self, header: str) -> None:
        self._header = header
        self.why = ""
        """Why what the handler sends by itself is not stored."""
        self._begun: Begun | None = None

    def note(self, guard: HttpGuard, response: Any) -> None:
        """The handler is about to send a response by itself."""
        if guard.is_result(response.status):
            response.headers[NOT_STORED] = self.why
        pairs = [(str(name), str(value)) for name, value in response.headers.items()]
        self._begun = Begun(response.status, pairs)

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        """The request of a call of a handler, its body apart, and the values of the header."""
        native = args[0]
        headers = {name.lower(): value for name, value in native.headers.items()}
        request = HttpRequest(native.method, native.path, native.query_string, headers, native=native)
        return request, native.headers.getall(self._header, [])

    def body_of(self, request: HttpRequest) -> bytes:
        """The body, which was read before."""
        return request.body

    def has_end(self, request: HttpRequest) -> bool:
        """Aiohttp reads bodies in chunks itself."""
        return True

    def begun(self, request: HttpRequest) -> Begun | None:
        """The response that the handler sent by itself."""
        return self._begun

    def made(self, response: HttpResponse) -> Any:
        """A response of aiohttp's, which says by itself how long it is."""
        from aiohttp import web

        headers = [(name, value) for name, value in response.headers if name.lower() != "content-length"]
        return web.Response(body=response.body, status=response.status, headers=_multi(headers))

    def native(self, request: HttpRequest, returned: Any) -> Any:
        """The response as it is."""
        from aiohttp import web

        return returned if isinstance(returned, web.StreamResponse) else None

    def answer_of(self, request: HttpRequest, error: Exception) -> Any:
        """A raised ``web.HTTPNotFound`` and the like: they are responses."""
        from aiohttp import web

        return error if isinstance(error, web.HTTPException) else None

    def is_streamed(self, response: Any) -> bool:
        """Whether the response has no whole body: a file, a payload that is read while it is sent."""
        from aiohttp import web

        return not isinstance(response, web.Response) or not isinstance(response.body, bytes | bytearray | None)

    def status_of(self, response: Any) -> int:
        """Its status."""
        return int(response.status)

    def data(self, response: Any) -> bytes:
        """Its body."""
        return bytes(response.body or b"")


def _multi(pairs: Sequence[tuple[str, str]]) -> Any:
    from multidict import CIMultiDict

    return CIMultiDict(pairs)
