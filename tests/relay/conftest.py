"""A relay in this process, and a client that holds a token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("litestar")

from litestar import Litestar
from litestar.testing import TestClient

from casework.backends.drive import run
from casework.backends.threaded import ThreadedBackend
from casework.relay.http import make_app
from casework.relay.serve import RelayServer, make_relay
from casework.relay.service import Relay
from casework.relay.settings import RelaySettings
from casework.streams.tokens import create_token, read_grant
from tests.executions.stepping import fresh_backend


class World:
    """A store, a relay on it, and tokens for it."""

    def __init__(self, blocking: Any, **settings: Any) -> None:
        self.blocking = blocking
        self.relay: Relay = make_relay(ThreadedBackend(blocking), RelaySettings(**{"token_cache_s": 0.0, **settings}))
        self.app: Litestar = make_app(self.relay)

    def token(self, *grants: str, **options: Any) -> str:
        text, _ = run(create_token([read_grant(grant) for grant in grants], **options), self.blocking)
        return text

    def headers(self, *grants: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(*grants)}"}


def client_of(world: World, headers: dict[str, str] | None = None, *, raises: bool = True) -> TestClient[Litestar]:
    """A client without a server, with these headers on every request."""
    client = TestClient(world.app, raise_server_exceptions=raises)
    client.headers.update(headers or {})
    return client


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture
def world() -> World:
    return World(fresh_backend())


@pytest.fixture
def client(world: World) -> Iterator[TestClient[Litestar]]:
    """All rights to the streams whose ids begin with ``s``."""
    with client_of(world, world.headers("s*=read,append,admin")) as client:
        yield client


class Serving:
    """A relay on a port of loopback, on a thread of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = RelayServer(world.relay, host="127.0.0.1", port=0)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        up = threading.Event()
        while not self.server.started:
            assert self.thread.is_alive(), "the server did not start"
            up.wait(0.01)
        return f"http://127.0.0.1:{self.server.port}"

    def __exit__(self, *_: object) -> None:
        self.server.leave()
        self.thread.join(30)
        assert not self.thread.is_alive(), "the server did not leave"


@pytest.fixture
def serving(world: World) -> Iterator[tuple[str, World]]:
    with Serving(world) as url:
        yield url, world
