"""One view at a time, where a framework is WSGI: ``idempotent_django_view`` and ``idempotent_flask_view``.

The view sees the framework's own request, after its middleware, so that ``scope=`` can be the user who logged in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from casework.app.current import running_under
from casework.errors import CaseworkError, LeaseLost, StoreError
from casework.idempotency.calling import begun_or_refused
from casework.idempotency.guarding import Claim, finish, give_up, not_kept
from casework.surfaces.guard import Target
from casework.surfaces.heart import ThreadHeart
from casework.surfaces.http import (
    NOT_STORED,
    HttpGuard,
    HttpRequest,
    HttpResponse,
    make_guard,
    too_large,
    why_not_stored,
)

View = Callable[..., Any]


class _Framework:
    """What differs between frameworks."""

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        """The request of a call of a view, its body apart, and the values of the header."""
        raise NotImplementedError

    def body_of(self, request: HttpRequest) -> bytes:
        """The body; the view can still read it."""
        raise NotImplementedError

    def made(self, response: HttpResponse) -> Any:
        """The framework's own response."""
        raise NotImplementedError

    def native(self, returned: Any) -> Any:
        """The framework's own response for what a view returned."""
        return returned

    def is_streamed(self, response: Any) -> bool:
        """Whether the response has no whole body."""
        raise NotImplementedError

    def pairs(self, response: Any) -> list[tuple[str, str]]:
        """Its headers."""
        return [(str(name), str(value)) for name, value in response.headers.items()]

    def data(self, response: Any) -> bytes:
        """Its body."""
        raise NotImplementedError


class _Django(_Framework):
    def __init__(self, header: str) -> None:
        self._header = header

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        native = next(arg for arg in args if hasattr(arg, "META"))  # a method's first argument is the view
        headers = {name.lower(): value for name, value in native.headers.items()}
        request = HttpRequest(native.method, native.path, native.META.get("QUERY_STRING", ""), headers, native=native)
        return request, [headers[self._header]] if self._header in headers else []

    def body_of(self, request: HttpRequest) -> bytes:
        return bytes(request.native.body)

    def made(self, response: HttpResponse) -> Any:
        from django.http import HttpResponse as Native

        return Native(response.body, status=response.status, headers=dict(response.headers))

    def is_streamed(self, response: Any) -> bool:
        return bool(response.streaming)

    def data(self, response: Any) -> bytes:
        if hasattr(response, "render") and not response.is_rendered:
            response.render()
        return bytes(response.content)


class _Flask(_Framework):
    def __init__(self, header: str) -> None:
        self._header = header

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        import flask

        native = flask.request
        headers = {name.lower(): value for name, value in native.headers.items()}
        query = native.query_string.decode("latin-1")
        request = HttpRequest(native.method, native.path, query, headers, native=native)
        return request, native.headers.getlist(self._header)

    def body_of(self, request: HttpRequest) -> bytes:
        return bytes(request.native.get_data(cache=True))

    def made(self, response: HttpResponse) -> Any:
        import flask

        return flask.Response(response.body, response.status, headers=response.headers)

    def native(self, returned: Any) -> Any:
        import flask

        return flask.make_response(returned)

    def is_streamed(self, response: Any) -> bool:
        return bool(response.is_streamed or response.direct_passthrough)

    def data(self, response: Any) -> bytes:
        return bytes(response.get_data())


def idempotent_django_view(store: Target, **arguments: Any) -> Callable[[View], View]:
    """Guards one Django view: a function, or a method such as ``post`` of a class-based view.

    Args:
        store: a casework application, an idempotency store that blocks, or a function that returns one.
        arguments: as for ``IdempotencyMiddleware``; ``request.native`` is Django's request, its ``user`` included.
    """
    guard = make_guard(store, arguments)
    return lambda view: _guarded(view, guard, _Django(guard.header))


def idempotent_flask_view(store: Target, **arguments: Any) -> Callable[[View], View]:
    """Guards one Flask view; stands below ``@app.post(...)``.

    Args:
        store: a casework application, an idempotency store that blocks, or a function that returns one.
        arguments: as for ``IdempotencyMiddleware``; ``request.native`` is Flask's request.
    """
    guard = make_guard(store, arguments)
    return lambda view: _guarded(view, guard, _Flask(guard.header))


def _guarded(view: View, guard: HttpGuard, framework: _Framework) -> View:
    @functools.wraps(view)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        request, values = framework.request_of(args)
        if request.method not in guard.methods:
            return view(*args, **kwargs)
        try:
            key = guard.key_of(request, values)
            if key is None:
                return view(*args, **kwargs)
            limit = guard.options.max_request_bytes
            length = request.headers.get("content-length", "")
            if length.isdigit() and int(length) > limit:
                raise too_large(limit)
            request.body = framework.body_of(request)
            fingerprint = guard.fingerprint_of(request)
            store = guard.blocking_store()
            begun = store.run(begun_or_refused(guard, store.shared, key, fingerprint))
        except CaseworkError as error:
            return framework.made(guard.refused(error))
        if begun.record is not None:
            guard.notify("replayed", key)
            return framework.made(guard.replay(begun.record))
        if begun.claim is None:
            guard.notify("unprotected", key)
            response = framework.native(view(*args, **kwargs))
            response.headers[NOT_STORED] = "store-unavailable"
            return response
        return _perform(begun.claim, guard, framework, lambda: view(*args, **kwargs))

    return wrapped


def _perform(claim: Claim, guard: HttpGuard, framework: _Framework, view: Callable[[], Any]) -> Any:
    """Run the view under its claim, and settle that whatever happens."""
    store = guard.blocking_store()
    heart = ThreadHeart(store)
    claim.answers_http = True
    heart.watch(claim)
    try:
        with running_under(claim):
            response = framework.native(view())
            is_streamed = framework.is_streamed(response)
            data = b"" if is_streamed else framework.data(response)
    except BaseException:
        heart.unwatch(claim)
        if not claim.is_finished:
            kept = store.run(give_up(store.shared, claim))
            guard.notify("released" if kept else "lost", claim.key, claim)
        raise
    heart.unwatch(claim)
    status = int(response.status_code)
    if claim.is_finished:
        guard.notify("completed", claim.key, claim)
    elif not guard.is_result(status):
        kept = store.run(give_up(store.shared, claim))
        guard.notify("released" if kept else "lost", claim.key, claim)
    else:
        why = "streamed" if is_streamed else "too-large" if len(data) > guard.options.max_response_bytes else ""
        try:
            if why:
                text = "its response was a stream" if is_streamed else "its response was too large to be stored"
                store.run(not_kept(store.shared, claim, status, text))
                guard.notify("not_kept", claim.key, claim)
                response.headers[NOT_STORED] = why
                return response
            headers = guard.stored_headers(framework.pairs(response))
            kept = store.run(finish(store.shared, claim, status, headers, data))
            guard.notify("completed" if kept else "lost", claim.key, claim)
            if not kept and guard.policy.on_lease_lost != "return":
                return framework.made(guard.refused(LeaseLost("another request took over")))
        except CaseworkError as error:
            guard.notify("unrecorded" if isinstance(error, StoreError) else "not_kept", claim.key, claim)
            response.headers[NOT_STORED] = why_not_stored(error)
    return response
