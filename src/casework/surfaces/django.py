"""``casework.idempotent_django_view``, for Django and for views of Django REST framework."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Unpack

from casework.errors import Misuse
from casework.surfaces.guard import Target
from casework.surfaces.http import HttpArguments, HttpRequest, HttpResponse, make_guard
from casework.surfaces.views import Framework, View, guarded


def idempotent_django_view(store: Target, **arguments: Unpack[HttpArguments]) -> Callable[[View], View]:
    """Guards one Django view: a function, plain or async, or a method such as ``post`` of a class-based view.

    With the REST framework it stands below ``@api_view``, or on the method of an ``APIView``: there the request is
    authenticated and its permissions are checked.

    Args:
        store: a casework application, an idempotency store, or a function that returns one; one that blocks for a plain
            view.
        arguments: as for ``IdempotencyMiddleware``; ``request.native`` is the framework's request,
            its ``user`` included.
    """
    guard = make_guard(store, arguments)
    return lambda view: guarded(view, guard, Django(guard.header))


class Django(Framework):
    """Django, for :func:`casework.idempotent_django_view`."""

    def __init__(self, header: str) -> None:
        self._header = header

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        """The request of a call of a view, its body apart, and the values of the header.

        A method's first argument is the view. Misuse where there is no request.
        """
        native = next((arg for arg in args[:2] if hasattr(arg, "META")), None)
        if native is None:
            raise Misuse(f"a guarded view was called without a request of Django's: {args!r:.120}")
        headers = {name.lower(): value for name, value in native.headers.items()}
        request = HttpRequest(native.method, native.path, native.META.get("QUERY_STRING", ""), headers, native=native)
        return request, [headers[self._header]] if self._header in headers else []

    def body_of(self, request: HttpRequest) -> bytes:
        """The body; the view can still read it. Misuse where it was read as a stream before."""
        native = getattr(request.native, "_request", request.native)  # the REST framework's request wraps Django's
        try:
            return bytes(native.body)
        except Exception as error:
            if type(error).__name__ != "RawPostDataException":
                raise
            raise Misuse(
                "the request's body was read before the guard came to it; guard the whole application with a "
                "middleware, or look at request.body before request.POST or request.data"
            ) from error

    def has_end(self, request: HttpRequest) -> bool:
        """As a WSGI application Django reads nothing of a body without a length."""
        meta = request.native.META
        return bool(meta.get("CONTENT_LENGTH") or "wsgi.input" not in meta or not meta.get("HTTP_TRANSFER_ENCODING"))

    def is_async(self, view: Callable[..., Any]) -> bool:
        """Whether calling the view makes a coroutine; ``as_view()`` marks a plain function as one."""
        return inspect.iscoroutinefunction(view) or asyncio.iscoroutinefunction(view)

    def made(self, response: HttpResponse) -> Any:
        """A response of Django's."""
        from django.http import HttpResponse as Native

        return Native(response.body, status=response.status, headers=dict(response.headers))

    def native(self, request: HttpRequest, returned: Any) -> Any:
        """The response as it is; one of the REST framework is finished, so that it can be rendered."""
        from django.http.response import HttpResponseBase

        if not isinstance(returned, HttpResponseBase):
            return None
        if hasattr(returned, "accepted_renderer") or not hasattr(type(returned), "rendered_content"):
            return returned
        view = _rest_view(request.native)
        return returned if view is None else view.finalize_response(request.native, returned)

    def answer_of(self, request: HttpRequest, error: Exception) -> Any:
        """What Django, or the REST framework's view, answers to an exception; None for one that is an error."""
        view = _rest_view(request.native)
        if view is not None:
            try:
                return view.handle_exception(error)
            except Exception as raised:
                if raised is error:
                    return None
                raise
        from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
        from django.core.handlers.exception import response_for_exception
        from django.http import Http404

        if isinstance(error, Http404 | PermissionDenied | BadRequest | SuspiciousOperation):
            return response_for_exception(request.native, error)
        return None

    def is_streamed(self, response: Any) -> bool:
        """Whether the response has no whole body."""
        return bool(response.streaming)

    def data(self, response: Any) -> bytes:
        """Its body."""
        if hasattr(response, "render") and not response.is_rendered:
            response.render()
        return bytes(response.content)


def _rest_view(native: Any) -> Any:
    """The view of Django REST framework that a request of its kind is for; None for any other request."""
    context = getattr(native, "parser_context", None)
    return context.get("view") if isinstance(context, dict) else None
