"""Real servers on loopback for the HTTP tests, each in a thread: uvicorn and waitress."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any


class Reply:
    """A response as the client saw it."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers}
        self.pairs = headers

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_replay(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


class Client:
    """Sends requests, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(
        self, path: str = "/pay", body: Any = None, *, key: str | None = "k", method: str = "POST", **headers: str
    ) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Idempotency-Key"] = key
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Reply(response.status, response.getheaders(), response.read())
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)


@contextlib.contextmanager
def on_uvicorn(app: Any) -> Iterator[Client]:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="auto"))
    started = threading.Event()
    original = server.startup

    async def startup(*args: Any, **kwargs: Any) -> None:
        await original(*args, **kwargs)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)


@contextlib.contextmanager
def on_waitress(app: Any) -> Iterator[Client]:
    import waitress.server

    server = waitress.server.create_server(app, host="127.0.0.1", port=0, threads=8)

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):  # its socket is closed under it, below
            server.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Client(server.effective_port)
    finally:
        server.close()
        thread.join(30)
