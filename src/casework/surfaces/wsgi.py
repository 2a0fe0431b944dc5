"""WSGI: ``casework.IdempotencyWsgiMiddleware``, for Flask, Django and any other WSGI application.

The application runs in the server's own thread. Its response is held back until it is whole and stored. The request's
body is read up to its Content-Length and never past it, and handed on as it was.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from casework.app.current import running_under
from casework.errors import CaseworkError
from casework.idempotency.calling import begun_or_refused
from casework.idempotency.guarding import Claim
from casework.surfaces.guard import Target
from casework.surfaces.heart import ThreadHeart
from casework.surfaces.http import (
    NOT_STORED,
    BadRequest,
    HttpArguments,
    HttpGuard,
    HttpRequest,
    HttpResponse,
    check_whole,
    make_guard,
    no_length,
    too_large,
)
from casework.surfaces.settling import Settled, free, settle

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

_REASONS = {
    200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 400: "Bad Request", 404: "Not Found",
    409: "Conflict", 413: "Content Too Large", 422: "Unprocessable Content", 423: "Locked",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class IdempotencyWsgiMiddleware:
    """Performs each request with an ``Idempotency-Key`` once, and replays its response to those that repeat it.

    Args:
        app: the WSGI application.
        store: a casework application, an idempotency store that blocks, or a function that returns one.
        arguments: as for :class:`~casework.surfaces.asgi.IdempotencyMiddleware`; ``scope`` has no default.
    """

    def __init__(self, app: WsgiApp, store: Target, **arguments: Unpack[HttpArguments]) -> None:
        self.app = app
        self.guard: HttpGuard = make_guard(store, arguments)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        guard = self.guard
        if environ["REQUEST_METHOD"] not in guard.methods:
            return self.app(environ, start_response)
        found = environ.get("HTTP_" + guard.header.upper().replace("-", "_"))
        if found is None and not guard.options.required:
            return self.app(environ, start_response)
        request = _request_of(environ)
        try:
            key = guard.key_of(request, [] if found is None else [found])
            if key is None:
                return self.app(environ, start_response)
            request.body = _read_body(environ, guard.options.max_request_bytes)
            store = guard.blocking_store()
            fingerprint = guard.fingerprint_of(request)
            begun = store.run(begun_or_refused(guard, store.shared, key, fingerprint))
        except CaseworkError as error:
            return _respond(start_response, guard.refused(error))
        if begun.record is not None:
            guard.notify("replayed", key)
            return _respond(start_response, guard.replay(begun.record))
        if begun.claim is None:
            guard.notify("unprotected", key)
            return self.app(environ, _with_header(start_response, "store-unavailable"))
        return self._perform(begun.claim, environ, start_response)

    def _perform(self, claim: Claim, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Run the application under its claim, and settle that whatever happens."""
        heart = ThreadHeart(self.guard.store)
        claim.answers_http = True
        heart.watch(claim)
        held = _Held(self.guard, claim, heart)
        try:
            with running_under(claim):
                rest = held.collect(self.app(environ, held.start_response))
            if rest is None:
                return held.settle(start_response)
        except BaseException:
            held.abandon()
            raise
        return held.pass_on(start_response, rest)


class _Held:
    """A response that is held back until it is whole."""

    def __init__(self, guard: HttpGuard, claim: Claim, heart: ThreadHeart) -> None:
        self._guard, self._claim, self._heart = guard, claim, heart
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._exc_info: Any = None
        self._parts: list[bytes] = []
        self._size = 0
        self._why = ""
        self._app_parts: Any = None

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], Any]:
        """What the application is given for ``start_response``."""
        self._status, self._headers, self._exc_info = status, list(headers), exc_info
        return self._write

    def _write(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    @property
    def _code(self) -> int:
        return int(self._status.split(" ", 1)[0] or 0)

    def collect(self, parts: Iterable[bytes]) -> Iterator[bytes] | None:
        """Take the parts of the response; None when it is whole, else what is left of one that is not stored."""
        self._app_parts = parts
        iterator = iter(parts)
        for part in iterator:
            self._write(part)
            if any(n.lower() == "content-type" and v.lower().startswith("text/event-stream") for n, v in self._headers):
                self._why = "streamed"
                return iterator
            if self._size > self._guard.options.max_response_bytes:
                self._why = "too-large"
                return iterator
        self._close_app()
        return None

    def _close_app(self) -> None:
        close = getattr(self._app_parts, "close", None)
        self._app_parts = None
        if close is not None:
            close()

    def settle(self, start_response: StartResponse) -> Iterable[bytes]:
        """Store the response or free the key, and hand it on."""
        self._heart.unwatch(self._claim)
        body = b"".join(self._parts)
        settled = self._settled(body)
        if settled.instead is not None:
            return _respond(start_response, settled.instead)
        if settled.not_stored:
            self._headers.append((NOT_STORED, settled.not_stored))
        self._start(start_response)
        return [body]

    def _settled(self, body: bytes = b"") -> Settled:
        guard, store = self._guard, self._guard.blocking_store()
        program = settle(guard, store.shared, self._claim, self._code, self._headers, body, why=self._why)
        settled: Settled = store.run(program)
        return settled

    def _start(self, start_response: StartResponse) -> None:
        if self._exc_info is not None:
            start_response(self._status, self._headers, self._exc_info)
        else:
            start_response(self._status, self._headers)

    def pass_on(self, start_response: StartResponse, rest: Iterator[bytes]) -> Iterable[bytes]:
        """A response that is not stored, part by part as it comes; a header says so."""
        if self._guard.is_result(self._code):
            self._headers.append((NOT_STORED, self._why))
        self._start(start_response)
        return _Passing(self, rest)

    def passing(self, rest: Iterator[bytes]) -> Iterator[bytes]:
        """The parts of a response that is not stored; that it was performed is noted at their end, however they end."""
        try:
            yield from self._parts
            with running_under(self._claim):
                yield from rest
        finally:
            self.end_passing()

    def end_passing(self) -> None:
        """Note that the request was performed and its response was not stored."""
        if self._claim.is_ended:
            return
        self._heart.unwatch(self._claim)
        try:
            if self._app_parts is not None:
                self._close_app()
        finally:
            self._settled()

    def abandon(self) -> None:
        """The application raised before a part of its response was the client's: free the key."""
        store = self._guard.blocking_store()
        self._heart.unwatch(self._claim)
        try:
            if self._app_parts is not None:
                self._close_app()
        finally:
            store.run(free(self._guard, store.shared, self._claim))


class _Passing:
    """The iterable of a response that is not stored. A client that leaves does not undo what was performed."""

    def __init__(self, held: _Held, rest: Iterator[bytes]) -> None:
        self._held = held
        self._parts = held.passing(rest)

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        """Called by the server at the end, or when the client has left."""
        self._held.end_passing()


def _read_body(environ: Environ, limit: int) -> bytes:
    """The whole body, put back for the application. Raises BadRequest.

    Never past Content-Length: many servers hand out the bare socket, and block there. A body in chunks has no length;
    it is read to its end only where the server says that there is one, and is handed on with its length.
    """
    text = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if text:
        if not text.isdigit():
            raise BadRequest("bad-length", 400, f"Content-Length {text!r:.40} is not a number.")
        if int(text) > limit:
            raise too_large(limit)
        body = _exactly(stream, int(text))
        check_whole(text, body)
    elif environ.get("wsgi.input_terminated"):
        body = _exactly(stream, limit + 1)
        if len(body) > limit:
            raise too_large(limit)
        # The whole of it is there now, and Django for one reads only what has a length.
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
    elif environ.get("HTTP_TRANSFER_ENCODING"):
        raise no_length()
    else:
        body = b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _exactly(stream: Any, count: int) -> bytes:
    parts: list[bytes] = []
    left = count
    while left > 0:
        part = stream.read(min(left, 65_536))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _request_of(environ: Environ) -> HttpRequest:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return HttpRequest(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers, native=environ)


def _respond(start_response: StartResponse, response: HttpResponse) -> Iterable[bytes]:
    reason = _REASONS.get(response.status, "Status")
    start_response(f"{response.status} {reason}", response.headers)
    return [response.body]


def _with_header(start_response: StartResponse, why: str) -> StartResponse:
    def wrapped(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start_response(status, [*headers, (NOT_STORED, why)], *rest)

    return wrapped
