"""A body that is not there as a whole is not performed, and takes no key."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework import MemoryIdempotencyStore
from tests.idempotency.test_frameworks import django_example

Guarded = Callable[[Any], Any]


def middleware(seen: list[bytes]) -> Any:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        seen.append(environ["wsgi.input"].read(length))
        start_response("201 Created", [])
        return [b""]

    return casework.IdempotencyWsgiMiddleware(app, MemoryIdempotencyStore(), scope=None)


def flask(seen: list[bytes]) -> Any:
    from flask import Flask, request

    app = Flask("bodies")

    @app.post("/")
    @casework.idempotent_flask_view(MemoryIdempotencyStore(), scope=None)
    def view() -> Any:
        seen.append(request.get_data())
        return "", 201

    return app


def django(seen: list[bytes]) -> Any:
    django_example()
    from django.core.handlers.wsgi import WSGIRequest
    from django.http import HttpResponse

    @casework.idempotent_django_view(MemoryIdempotencyStore(), scope=None)
    def view(request: Any) -> Any:
        seen.append(request.body)
        return HttpResponse(status=201)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        response = view(WSGIRequest(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        return [response.content]

    return app


SURFACES = [middleware, flask, django]


def call(app: Any, body: bytes, **environ: Any) -> str:
    """The status of a request."""
    began: list[str] = []
    whole = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/", "SERVER_NAME": "test", "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": io.BytesIO(body), "wsgi.errors": io.StringIO(), **environ,
    }  # fmt: skip
    parts = app(whole, lambda status, headers, *rest: began.append(status[:3]))
    b"".join(parts)
    getattr(parts, "close", lambda: None)()
    return began[-1]


@pytest.mark.parametrize("make", SURFACES)
def test_what_a_client_left_in_the_middle_of_its_body_is_not_performed(make: Any) -> None:
    seen: list[bytes] = []
    app = make(seen)
    assert call(app, b"12", CONTENT_LENGTH="5") == "400" and seen == []
    assert call(app, b"12345", CONTENT_LENGTH="5") == "201" and seen == [b"12345"]


@pytest.mark.parametrize("make", SURFACES)
def test_a_body_in_chunks_whose_end_nothing_tells_is_refused_instead_of_taken_for_an_empty_one(make: Any) -> None:
    seen: list[bytes] = []
    app = make(seen)
    assert call(app, b"12345", HTTP_TRANSFER_ENCODING="chunked") == "411" and seen == []
    assert call(app, b"12345", CONTENT_LENGTH="5") == "201" and seen == [b"12345"]


@pytest.mark.parametrize("make", [middleware, flask])
def test_a_body_in_chunks_from_a_server_that_ends_it_reaches_the_application(make: Any) -> None:
    seen: list[bytes] = []
    ended = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    assert call(make(seen), b"12345", **ended) == "201" and seen == [b"12345"]


def test_an_async_view_that_its_framework_cancels_is_performed_to_its_end() -> None:
    django_example()
    from django.http import HttpResponse
    from django.test import RequestFactory

    calls: list[str] = []

    async def main() -> list[int]:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @casework.idempotent_django_view(MemoryIdempotencyStore(), scope=None, wait_s=20)
        async def view(request: Any) -> Any:
            calls.append("began")
            begun.set()
            await goes_on.wait()
            return HttpResponse(status=201)

        def send() -> Any:
            return view(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))

        first = asyncio.ensure_future(send())
        await begun.wait()
        first.cancel()  # as Django does where the client has left
        with pytest.raises(asyncio.CancelledError):
            await first
        retry = asyncio.ensure_future(send())
        goes_on.set()
        return [(await retry).status_code]

    assert asyncio.run(main()) == [201] and calls == ["began"]
