"""Clients that leave before they have their answer, on real servers: what was performed is known when the application
has ended, whoever still waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from casework import IdempotencyMiddleware, MemoryIdempotencyStore
from tests.idempotency.serving import Client, on_uvicorn

REQUEST = (
    "POST {path} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n"
    "Content-Length: 2\r\n\r\n{{}}"
)


class Work:
    """What an application does: it begins, is held up until the test lets it go on, and ends."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begun, self.goes_on, self.is_over = threading.Event(), threading.Event(), threading.Event()

    async def do(self, what: str) -> int:
        self.calls.append(what)
        self.begun.set()
        await asyncio.to_thread(self.goes_on.wait, 30)
        return len(self.calls)


def leave(client: Client, path: str, key: str, work: Work) -> None:
    """Send a request, wait until the application is at work, and hang up."""
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(REQUEST.format(path=path, key=key).encode())
        assert work.begun.wait(30)


def starlette_app(work: Work) -> Any:
    async def small(request: Request) -> Response:
        return JSONResponse({"n": await work.do("small")}, 201)

    async def stream(request: Request) -> Response:
        async def parts() -> Any:
            yield b"begin "
            yield str(await work.do("stream")).encode()
            yield b" end"

        return StreamingResponse(parts(), 201, media_type="text/plain")

    async def large(request: Request) -> Response:
        async def parts() -> Any:
            n = await work.do("large")
            try:
                for _ in range(200):
                    yield str(n).encode() * 10_000
            finally:
                work.is_over.set()

        return StreamingResponse(parts(), 201)

    async def events(request: Request) -> Response:
        async def parts() -> Any:
            work.calls.append("events")
            try:
                yield b"data: 1\n\n"
                work.begun.set()
                while True:  # until the client has gone
                    yield b"data: 2\n\n"
                    await asyncio.sleep(0)
            finally:
                work.is_over.set()

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def passed(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response

    routes = [Route(f"/{handler.__name__}", handler, methods=["POST"]) for handler in (small, stream, large, events)]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=passed)])


def fastapi_app(work: Work) -> Any:
    from fastapi import FastAPI

    app = FastAPI()

    @app.middleware("http")
    async def passed(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    app.mount("/", starlette_app(work))
    return app


@contextlib.contextmanager
def serving(make: Any, work: Work, hook: Any = None) -> Iterator[tuple[Client, MemoryIdempotencyStore]]:
    store = MemoryIdempotencyStore()
    hooks = () if hook is None else (hook,)
    with on_uvicorn(IdempotencyMiddleware(make(work), store, scope=None, wait_s=20, hooks=hooks)) as client:
        yield client, store


@pytest.mark.parametrize("path", ["/small", "/stream"])
@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_a_client_that_leaves_and_retries_gets_the_first_answer_whole(make: Any, path: str) -> None:
    work = Work()
    with serving(make, work) as (client, _):
        leave(client, path, "k", work)
        retry: list[Any] = []
        waiting = threading.Thread(target=lambda: retry.append(client(path, {}, key="k")))
        waiting.start()
        work.goes_on.set()
        waiting.join(30)
        again = client(path, {}, key="k")
    assert len(work.calls) == 1
    expected = b'{"n":1}' if path == "/small" else b"begin 1 end"
    assert [(reply.status, reply.body) for reply in (*retry, again)] == [(201, expected)] * 2
    assert retry[0].is_replay and again.is_replay


@pytest.mark.parametrize("path", ["/large", "/events"])
@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_what_is_passed_on_and_then_left_was_performed(make: Any, path: str) -> None:
    work, settled = Work(), threading.Event()
    with serving(make, work, lambda event: settled.set() if event.kind == "not_kept" else None) as (client, _):
        leave(client, path, "k", work)
        work.goes_on.set()
        assert settled.wait(30)
        again = client(path, {}, key="k")
    assert work.is_over.is_set() and len(work.calls) == 1
    assert again.status == 409 and "performed" in again.json["detail"]


def test_a_response_that_is_shorter_than_it_says_is_not_stored_as_whole() -> None:
    calls: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"half"})

    async def main() -> list[Any]:
        guarded = IdempotencyMiddleware(app, MemoryIdempotencyStore(), scope=None)  # type: ignore[arg-type]
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        await guarded(scope, receive, send)
        await guarded(scope, receive, send)
        return [message["status"] for message in sent if message["type"] == "http.response.start"]

    assert asyncio.run(main()) == [201, 409] and calls == [1]
