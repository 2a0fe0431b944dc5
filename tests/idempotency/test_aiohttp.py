"""The guard of aiohttp's applications: where it stands, and responses that a handler sends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientError, FormData, web
from aiohttp.test_utils import TestClient, TestServer

import casework
from casework import MemoryIdempotencyStore, Misuse, Unavailable
from tests.idempotency.test_frameworks import A, B, example

KEY = {"Idempotency-Key": "k"}


def with_client(handler: Any, talk: Callable[[Any], Awaitable[Any]], store: Any = None, **options: Any) -> Any:
    """What comes of a talk with an application that has one handler."""

    async def main() -> Any:
        app = web.Application()
        app.router.add_post("/", handler)
        casework.idempotent_aiohttp_app(app, store or MemoryIdempotencyStore(), **{"scope": None, **options})
        async with TestClient(TestServer(app)) as client:
            return await talk(client)

    return asyncio.run(main())


@pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
def test_the_example_authenticates_before_it_replays() -> None:
    module = example("aiohttp_app")

    async def main() -> list[Any]:
        async with TestClient(TestServer(module.application())) as client:
            answers: list[Any] = []
            for order, caller in (("o-1", A), ("o-1", A), ("o-2", A), ("o-1", B), ("o-1", {})):
                answer = await client.post("/payments", json={"order": order}, headers={**KEY, **caller})
                answers.append((answer.status, "Idempotency-Replayed" in answer.headers))
            return answers

    expected = [(201, False), (201, True), (422, False), (201, False), (401, False)]
    assert asyncio.run(main()) == expected and module.performed == ["o-1", "o-1"]


def test_a_response_that_a_handler_sent_a_part_of_and_then_failed_is_not_performed_again() -> None:
    calls: list[int] = []

    async def handler(request: web.Request) -> Any:
        calls.append(1)
        response = web.StreamResponse(status=201)
        await response.prepare(request)
        await response.write(b"half")
        raise RuntimeError("in the middle")

    async def talk(client: Any) -> list[Any]:
        first = await client.post("/", headers=KEY)
        with pytest.raises(ClientError):
            await first.read()
        again = await client.post("/", headers=KEY)
        return [first.status, first.headers["Idempotency-Not-Stored"], again.status, (await again.json())["detail"]]

    status, why, again, detail = with_client(handler, talk)
    assert (status, why, again) == (201, "streamed", 409) and "performed" in detail and calls == [1]


@pytest.mark.parametrize("kind", ["post", "multipart", "json", "content"])
def test_a_handler_reads_the_body_as_it_likes(kind: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        if kind == "post":
            return web.json_response((await request.post())["a"])
        if kind == "multipart":
            part: Any = await (await request.multipart()).next()
            return web.json_response(await part.text())
        return web.json_response(await request.json() if kind == "json" else (await request.content.read()).decode())

    async def talk(client: Any) -> list[Any]:
        form = FormData({"a": "5"})
        if kind == "multipart":
            form = FormData()
            form.add_field("a", "5", content_type="text/plain")
        sent: dict[str, Any] = {"json": "5"} if kind == "json" else {"data": "5" if kind == "content" else form}
        first = await client.post("/", headers=KEY, **sent)
        other = await client.post("/", **sent)
        return [await first.json(), await other.json(), first.status]

    first, other, status = with_client(handler, talk)
    assert status == 200 and str(first) == str(other) == "5"


def test_what_is_raised_as_an_answer_is_one_and_is_replayed() -> None:
    calls: list[int] = []

    async def handler(request: web.Request) -> Any:
        calls.append(1)
        raise web.HTTPConflict if request.query else web.HTTPSeeOther("/there")

    async def talk(client: Any) -> list[Any]:
        answers = [await client.post("/", headers=KEY, allow_redirects=False) for _ in range(2)]
        answers += [await client.post("/?not=now", headers={"Idempotency-Key": "other"}) for _ in range(2)]
        return [(a.status, a.headers.get("Location"), "Idempotency-Replayed" in a.headers) for a in answers]

    expected = [(303, "/there", False), (303, "/there", True), (409, None, False), (409, None, False)]
    assert with_client(handler, talk) == expected and len(calls) == 3


def test_a_stream_of_an_unprotected_request_says_so() -> None:
    store = MemoryIdempotencyStore()

    def claim(*arguments: Any) -> Any:
        raise Unavailable("down")

    store.records.claim = claim  # type: ignore[method-assign]

    async def handler(request: web.Request) -> Any:
        response = web.StreamResponse(status=201)
        await response.prepare(request)
        await response.write(b"whole")
        return response

    async def talk(client: Any) -> Any:
        answer = await client.post("/", headers=KEY)
        return answer.headers["Idempotency-Not-Stored"], await answer.read()

    assert with_client(handler, talk, store, on_unavailable="run") == ("store-unavailable", b"whole")


def test_a_request_that_is_not_guarded_is_not_bounded_and_one_that_is_too_large_is_refused_before_it_is_read() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=201)

    async def talk(client: Any) -> list[int]:
        async def pieces() -> Any:
            yield b"12"
            yield b"345"

        return [
            (await client.post("/", data=b"12345", headers=KEY)).status,
            (await client.post("/", data=pieces(), headers=KEY)).status,
            (await client.post("/", data=b"12345")).status,
            (await client.post("/?free=1", data=b"12345", headers=KEY)).status,
        ]

    applies = lambda request: "free" not in request.query  # noqa: E731
    assert with_client(handler, talk, max_request_bytes=4, applies=applies) == [413, 413, 201, 201]


def test_an_application_that_runs_or_is_none_is_refused() -> None:
    app = web.Application()
    app.freeze()
    with pytest.raises(Misuse, match="runs already"):
        casework.idempotent_aiohttp_app(app, MemoryIdempotencyStore(), scope=None)
    with pytest.raises(Misuse, match="must be an application of aiohttp's"):
        casework.idempotent_aiohttp_app(object(), MemoryIdempotencyStore(), scope=None)
