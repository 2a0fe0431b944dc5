"""``casework.idempotent_flask_view``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from casework.surfaces.guard import Target
from casework.surfaces.http import HttpArguments, HttpRequest, HttpResponse, make_guard
from casework.surfaces.views import Framework, View, guarded


def idempotent_flask_view(store: Target, **arguments: Unpack[HttpArguments]) -> Callable[[View], View]:
    """Guards one Flask view, plain or async; stands below ``@app.post(...)`` and below what checks the user.

    Args:
        store: a casework application, an idempotency store that blocks, or a function that returns one.
        arguments: as for ``IdempotencyMiddleware``; ``request.native`` is Flask's request.
    """
    guard = make_guard(store, arguments)
    return lambda view: guarded(view, guard, Flask(guard.header))


class Flask(Framework):
    """Flask, for :func:`casework.idempotent_flask_view`."""

    def __init__(self, header: str) -> None:
        self._header = header

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        """The request of a call of a view, its body apart, and the values of the header."""
        import flask

        native = flask.request
        headers = {name.lower(): value for name, value in native.headers.items()}
        query = native.query_string.decode("latin-1")
        # The object itself, not what stands for "the request of this thread": it is also looked at elsewhere.
        request = HttpRequest(native.method, native.path, query, headers, native=native._get_current_object())  # type: ignore[attr-defined]
        return request, native.headers.getlist(self._header)

    def body_of(self, request: HttpRequest) -> bytes:
        """The body; the view can still read it."""
        return bytes(request.native.get_data(cache=True))

    def has_end(self, request: HttpRequest) -> bool:
        """A length, or a server that ends its input where the body ends."""
        environ = request.native.environ
        return bool(
            environ.get("CONTENT_LENGTH")
            or environ.get("wsgi.input_terminated")
            or not environ.get("HTTP_TRANSFER_ENCODING")
        )

    def made(self, response: HttpResponse) -> Any:
        """A response of Flask's."""
        import flask

        return flask.Response(response.body, response.status, headers=response.headers)

    def native(self, request: HttpRequest, returned: Any) -> Any:
        """A response of Flask's for text, JSON, tuples and whatever else a view may return."""
        import flask

        return flask.make_response(returned)

    def answer_of(self, request: HttpRequest, error: Exception) -> Any:
        """What the application answers: ``abort(404)``, and what it has an error handler for."""
        import flask

        try:
            answer = flask.current_app.handle_user_exception(error)
        except Exception as raised:
            if raised is error:
                return None
            raise
        as_response = getattr(answer, "get_response", None)  # of an exception of werkzeug's
        return flask.make_response(answer if as_response is None else as_response())

    def is_streamed(self, response: Any) -> bool:
        """Whether the response has no whole body."""
        return bool(response.is_streamed or response.direct_passthrough)

    def data(self, response: Any) -> bytes:
        """Its body."""
        return bytes(response.get_data())
