"""One small site under each HTTP surface, called without a server."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from wsgiref.util import setup_testing_defaults

import casework
from casework import MemoryIdempotencyStore


class Reply(NamedTuple):
    """What a caller gets."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_replay(self) -> bool:
        """Whether it is the stored response."""
        return bool({"idempotency-replayed", "idempotent-replayed"} & set(self.headers))


Send = Callable[[str, bytes, dict[str, str]], Reply]


class Site:
    """A page ``/pay`` that counts its calls; ``inside`` is called during each, and may send another request."""

    def __init__(self, surface: str, store: Any = None, **options: Any) -> None:
        self.calls = 0
        self.inside: Callable[[], Any] = lambda: None
        self.headers = {"X-A": "1", "X-B": "2"}
        self.store = MemoryIdempotencyStore() if store is None else store
        self._send: Send = SURFACES[surface](self, self.store, {"scope": None, **options})

    def page(self) -> tuple[int, dict[str, str], bytes]:
        """The page itself."""
        self.calls += 1
        self.inside()
        return 201, self.headers, b"12345"

    def send(self, body: bytes = b"{}", *, key: str | None = "k", method: str = "POST", **headers: str) -> Reply:
        """Send a request."""
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            own["Idempotency-Key"] = key
        return self._send(method, body, own)

    def twice(self, **request: Any) -> int:
        """Send the same request twice; how often the page was called."""
        self.send(**request)
        self.send(**request)
        return self.calls


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin a call on a thread of its own, since a loop may be running here; what it returns waits for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result() -> Any:
        thread.join(20)
        return found[0]

    return result


def through_asgi(app: Any) -> Send:
    """How an ASGI application is called."""

    def send(method: str, body: bytes, headers: dict[str, str]) -> Reply:
        scope = {
            "type": "http", "method": method, "path": "/pay", "raw_path": b"/pay", "query_string": b"",
            "scheme": "http", "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "root_path": "", "http_version": "1.1", "server": ("test", 80), "client": ("test", 1), "state": {},
        }  # fmt: skip
        sent: list[Any] = []

        async def call() -> None:
            asked = [{"type": "http.request", "body": body, "more_body": False}]
            gone = asyncio.Event()

            async def receive() -> Any:
                if not asked:
                    await gone.wait()
                return asked.pop()

            async def take(message: Any) -> None:
                sent.append(message)

            await app(scope, receive, take)

        asyncio.run(call())
        pairs = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], pairs, b"".join(message.get("body", b"") for message in sent[1:]))

    return send


def through_wsgi(app: Any) -> Send:
    """How a WSGI application is called."""

    def send(method: str, body: bytes, headers: dict[str, str]) -> Reply:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": "/pay", "CONTENT_LENGTH": str(len(body))}
        environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        setup_testing_defaults(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        began: list[Any] = []
        parts = app(environ, lambda status, pairs, *more: began.append((status, pairs)))
        whole = b"".join(parts)
        getattr(parts, "close", lambda: None)()
        status, pairs = began[-1]
        return Reply(int(status[:3]), {name.lower(): value for name, value in pairs}, whole)

    return send


def asgi(site: Site, store: Any, options: Any) -> Send:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        status, headers, body = site.page()
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    return through_asgi(casework.IdempotencyMiddleware(app, store, **options))


def wsgi(site: Site, store: Any, options: Any) -> Send:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        status, headers, body = site.page()
        start_response(f"{status} Created", list(headers.items()))
        return [body]

    return through_wsgi(casework.IdempotencyWsgiMiddleware(app, store, **options))


def route(site: Site, store: Any, options: Any) -> Send:
    import fastapi
    from fastapi.routing import APIRoute

    app = fastapi.FastAPI()
    router = fastapi.APIRouter(route_class=casework.idempotent_route(APIRoute, store, **options))

    async def pay() -> Any:
        status, headers, body = site.page()
        return fastapi.Response(body, status, headers)

    router.add_api_route("/pay", pay, methods=["POST", "PUT"])
    app.include_router(router)
    return through_asgi(app)


def flask(site: Site, store: Any, options: Any) -> Send:
    from flask import Flask

    app = Flask("site")

    def pay() -> Any:
        status, headers, body = site.page()
        return body, status, headers

    app.route("/pay", methods=["POST", "PUT"])(casework.idempotent_flask_view(store, **options)(pay))
    return through_wsgi(app)


def django(site: Site, store: Any, options: Any) -> Send:
    from tests.idempotency.test_frameworks import django_example

    django_example()
    from django.http import HttpResponse
    from django.test import RequestFactory

    def pay(request: Any) -> Any:
        status, headers, body = site.page()
        return HttpResponse(body, status=status, headers=headers)

    guarded = casework.idempotent_django_view(store, **options)(pay)

    def send(method: str, body: bytes, headers: dict[str, str]) -> Reply:
        answer = guarded(RequestFactory().generic(method, "/pay", body, headers=headers))
        return Reply(answer.status_code, {name.lower(): value for name, value in answer.items()}, answer.content)

    return send


def aiohttp(site: Site, store: Any, options: Any) -> Send:
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    async def pay(request: Any) -> Any:
        status, headers, body = site.page()
        return web.Response(body=body, status=status, headers=headers)

    def application() -> web.Application:
        app = web.Application()
        for method in ("POST", "PUT"):
            app.router.add_route(method, "/pay", pay)
        casework.idempotent_aiohttp_app(app, store, **options)
        return app

    application()  # arguments are judged now; a loop of its own has an application of its own

    def send(method: str, body: bytes, headers: dict[str, str]) -> Reply:
        async def call() -> Reply:
            async with TestClient(TestServer(application())) as client:
                answer = await client.request(method, "/pay", data=body, headers=headers)
                pairs = {name.lower(): value for name, value in answer.headers.items()}
                return Reply(answer.status, pairs, await answer.read())

        return asyncio.run(call())

    return send


SURFACES: dict[str, Callable[[Site, Any, Any], Send]] = {
    "IdempotencyMiddleware": asgi,
    "IdempotencyWsgiMiddleware": wsgi,
    "idempotent_route": route,
    "idempotent_aiohttp_app": aiohttp,
    "idempotent_flask_view": flask,
    "idempotent_django_view": django,
}
