"""What each query parameter and each setting of a relay changes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("litestar")

from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.relay.bounds import TooSlow, bounded
from casework.relay.serve import RelayServer
from casework.relay.settings import RelaySettings
from casework.streams.append import append
from casework.streams.log import Log, Op
from casework.streams.tokens import list_tokens, revoke_token
from tests.executions.stepping import fresh_backend
from tests.options.guarded import counted_looks
from tests.options.table import Rows, row
from tests.relay.conftest import Serving, World, client_of

# --- query parameters -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def relay(clock: VirtualClock | None = None, **settings: Any) -> Iterator[tuple[World, Any]]:
    """A relay with three operations in ``s`` and one in ``t``, and a client that may read both and append to ``s``."""
    backend = fresh_backend(clock=clock)
    for stream, ids in (("s", "abc"), ("t", "d")):
        run(append(Log(), stream, [Op(id, b"x") for id in ids]), backend)
    world = World(backend, **{"max_stream_s": 0.001, **settings})
    with client_of(world, world.headers("s=read,append", "t=read")) as client:
        yield world, client


def asked(path: str, *, settings: Any = None, **query: Any) -> Any:
    """The answer of a relay."""
    with relay(**settings or {}) as (_, client):
        answer = client.get(path, params={name: value for name, value in query.items() if value is not None})
        return answer.json() if "json" in answer.headers["content-type"] else answer.text


def pulled(**query: Any) -> list[int]:
    return [op["seq"] for op in asked("/v1/streams/s/ops", **query)["ops"]]


OTHER = "o" + "0" * 32
"""A mark that no operation has."""


def followed(mark: str | None) -> int:
    """How many operations come behind the second one, or the status of a refusal."""
    answer = asked("/v1/streams/s/events", after=2, mark=mark)
    return int(answer["status"]) if isinstance(answer, dict) else answer.count("event: op")


def listed_after(cursor: str | None) -> list[str]:
    with relay() as (_, client):
        first = client.get("/v1/streams", params={"limit": 1}).json()
        found = client.get("/v1/streams", params={"cursor": first["cursor"]} if cursor else {}).json()
        return list(found["streams"])


def waits(world: World, ask: Callable[[], Any]) -> bool:
    """Whether a request waits for what comes; it is answered at once."""
    asked_s: list[float] = []
    wait = world.relay.wait

    def noted(*arguments: Any, **options: Any) -> Any:
        watcher, after, limit, wait_s = arguments
        asked_s.append(wait_s)
        return wait(watcher, after, limit, 0.0, **options)

    world.relay.wait = noted  # type: ignore[method-assign]
    ask()
    return max(asked_s, default=0.0) > 0.0


def has_waited(wait_s: float, **settings: Any) -> bool:
    """Whether a pull at the end of a stream waits there."""
    with relay(**settings) as (world, client):
        return waits(world, lambda: client.get("/v1/streams/s/ops", params={"after": 3, "wait_s": wait_s}))


PARAMETERS: Rows = {
    "/v1/streams/{stream}/ops": {
        "after": row(lambda after: pulled(after=after), (0, [1, 2, 3]), (2, [3])),
        "limit": row(lambda limit: pulled(limit=limit), (1, [1]), (2, [1, 2])),
        "mark": row(
            lambda mark: asked("/v1/streams/s/ops", after=2, mark=mark).get("status"), (None, None), (OTHER, 409)
        ),
        "wait_s": row(has_waited, (0, False), (0.1, True)),
    },
    "/v1/streams/{stream}/events": {
        "after": row(lambda after: asked("/v1/streams/s/events", after=after).count("event: op"), (0, 3), (2, 1)),
        "mark": row(followed, (None, 1), (OTHER, 409)),
    },
    "/v1/streams": {
        "limit": row(lambda limit: asked("/v1/streams", limit=limit)["streams"], (1, ["s"]), (2, ["s", "t"])),
        "cursor": row(listed_after, (None, ["s", "t"]), ("next", ["t"])),
    },
}


# --- settings ---------------------------------------------------------------------------------------------------------


def pushed(ids: str = "x", *, data: str = "eA==", **settings: Any) -> int:
    """The status of a push."""
    with relay(**settings) as (_, client):
        return int(client.post("/v1/streams/s/ops", json={"ops": [{"id": id, "data": data} for id in ids]}).status_code)


def in_time(push_deadline_s: float) -> int:
    """The status of a push where each look at the clock takes a second."""
    clock = VirtualClock()
    with relay(clock, push_deadline_s=push_deadline_s) as (_, client), counted_looks(clock, 1.0):
        return int(client.post("/v1/streams/s/ops", json={"ops": [{"id": "x", "data": "eA=="}]}).status_code)


def paged(**settings: Any) -> list[int]:
    return pulled(settings=settings)


def at_a_time(max_event_bytes: int) -> int:
    """How many operations an event stream begins with."""
    with relay(max_event_bytes=max_event_bytes) as (world, client):
        world.relay.stopping.set()  # it ends behind its first page
        return int(client.get("/v1/streams/s/events").text.count("event: op"))


def is_cut_off(slow_client_s: float) -> bool:
    """Whether a client is cut off that takes nothing for a moment."""
    cut: list[bool] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    async def main() -> None:
        takes = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, takes.set)

        async def send(message: Any) -> None:
            await takes.wait()

        settings = RelaySettings(slow_client_s=slow_client_s)
        with contextlib.suppress(TooSlow):
            await bounded(settings, lambda scope: 0.0, lambda: cut.append(True))(page)({"type": "http"}, None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    return bool(cut)


def second_of_two(max_connections: int) -> list[int]:
    """What two connections at once get."""
    found = []
    with Serving(World(fresh_backend(), max_connections=max_connections)) as url, contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            stack.callback(connection.close)
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
    return found


def patience(header_s: float) -> Any:
    """How long the server waits for a head; tests/relay has a client that sends half of one."""
    server = RelayServer(World(fresh_backend(), header_s=header_s).relay, host="127.0.0.1", port=0)
    return server.config.http.header_s  # type: ignore[union-attr]


def goes_on(max_stream_s: float) -> bool:
    """Whether an event stream waits for what comes, where each look at the clock takes a second."""
    clock = VirtualClock()
    with relay(clock, max_stream_s=max_stream_s) as (world, client), counted_looks(clock, 1.0):
        return waits(world, lambda: client.get("/v1/streams/s/events", params={"after": 3}))


def after_its_end(token_cache_s: float) -> int:
    """What a token gets that was revoked after it was used."""
    clock = VirtualClock()
    with relay(clock, token_cache_s=token_cache_s) as (world, client):
        assert client.get("/v1/streams/s").status_code == 200
        for info in run(list_tokens(), world.blocking):
            run(revoke_token(info.id), world.blocking)
        clock.advance(10)
        return int(client.get("/v1/streams/s").status_code)


SETTINGS: Rows = {
    "RelaySettings": {
        "push_deadline_s": row(in_time, (0.5, 503), (600.0, 200)),
        "max_body_bytes": row(lambda most: pushed(max_body_bytes=most), (10, 413), (1000, 200)),
        "max_push_ops": row(lambda most: pushed("xyz", max_push_ops=most), (2, 413), (3, 200)),
        "max_page_ops": row(lambda most: paged(max_page_ops=most), (1, [1]), (2, [1, 2])),
        "max_page_bytes": row(lambda most: paged(max_page_bytes=most), (1, [1]), (2, [1, 2])),
        "max_wait_s": row(lambda most: has_waited(20, max_wait_s=most), (0.0, False), (20.0, True)),
        "max_event_bytes": row(at_a_time, (1, 1), (2, 2)),
        "slow_client_s": row(is_cut_off, (0.001, True), (30.0, False)),
        "max_connections": row(second_of_two, (1, [200, 503]), (2, [200, 200])),
        "header_s": row(patience, (1.0, 1.0), (2.0, 2.0)),
        "max_stream_s": row(goes_on, (0.5, False), (10.0, True)),
        "token_cache_s": row(after_its_end, (0.0, 401), (60.0, 200)),
    },
}


def parameters() -> set[tuple[str, str]]:
    """The query parameters in the relay's own description."""
    with client_of(World(fresh_backend())) as client:
        paths = client.get("/openapi.json").json()["paths"]
    return {
        (path, one["name"])
        for path, methods in paths.items()
        for operation in methods.values()
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    }
