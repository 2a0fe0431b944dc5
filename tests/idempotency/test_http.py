"""The HTTP middlewares on real servers: what a client and an application can rely on, the same for ASGI and WSGI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from casework import (
    IdempotencyMiddleware,
    IdempotencyWsgiMiddleware,
    MemoryIdempotencyStore,
    Misuse,
    Unavailable,
)
from casework.surfaces.http import HttpRequest, canonical_body, parse_key
from tests.idempotency.serving import Client, on_uvicorn, on_waitress

Answer = tuple[int, list[tuple[str, str]], list[bytes]]


class Site:
    """One application in both forms: it answers as the test says, and counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.answer: Callable[[str, bytes], Answer] = lambda path, body: (
            201, [("content-type", "application/json"), ("set-cookie", "session=1"), ("x-n", str(len(self.calls)))],
            [b'{"n": ', str(len(self.calls)).encode(), b"}"],
        )  # fmt: skip

    def _take(self, path: str, body: bytes) -> Answer:
        self.calls.append((path, body))
        return self.answer(path, body)

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, headers, parts = await asyncio.to_thread(self._take, scope["path"], body)
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    def wsgi(self, environ: Any, start_response: Any) -> Iterator[bytes]:
        body = environ["wsgi.input"].read()
        status, headers, parts = self._take(environ["PATH_INFO"], body)
        start_response(f"{status} Status", headers)
        yield from parts


Serve = Callable[..., contextlib.AbstractContextManager[Client]]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture(params=["asgi", "wsgi"])
def serve(request: pytest.FixtureRequest, site: Site) -> Serve:
    def serve(store: Any = None, **options: Any) -> contextlib.AbstractContextManager[Client]:
        options = {"scope": None, "wait_s": 5} | options
        store = MemoryIdempotencyStore() if store is None else store
        if request.param == "asgi":
            return on_uvicorn(IdempotencyMiddleware(site.asgi, store, **options))
        return on_waitress(IdempotencyWsgiMiddleware(site.wsgi, store, **options))

    return serve


def test_a_repeated_request_gets_the_first_response_and_the_application_runs_once(serve: Serve, site: Site) -> None:
    with serve() as post:
        first, second = post(body={"a": 1}), post(body={"a": 1})
    assert len(site.calls) == 1
    assert (first.status, first.body) == (second.status, second.body) == (201, b'{"n": 1}')
    assert not first.is_replay and second.is_replay
    assert second.headers["x-n"] == "1" and second.headers["content-type"] == "application/json"
    assert "set-cookie" in first.headers and "set-cookie" not in second.headers


def test_the_application_reads_the_body_as_it_was_sent(serve: Serve, site: Site) -> None:
    body = bytes(range(256)) * 100
    with serve() as post:
        post(body=body)
    assert site.calls == [("/pay", body)]


def test_requests_without_a_key_and_other_methods_pass_through(serve: Serve, site: Site) -> None:
    with serve() as post:
        assert [post(key=None).json["n"], post(key=None).json["n"]] == [1, 2]
        assert [post(method="PUT").json["n"], post(method="PUT").json["n"]] == [3, 4]


def test_another_payload_path_or_query_under_one_key_is_422(serve: Serve, site: Site) -> None:
    with serve() as post:
        post("/pay?a=1", {"a": 1, "b": [1, 2]})
        for path, body in (
            ("/pay?a=1", {"a": 2}),
            ("/pay?a=2", {"a": 1, "b": [1, 2]}),
            ("/x?a=1", {"a": 1, "b": [1, 2]}),
        ):
            reply = post(path, body)
            assert (reply.status, reply.headers["content-type"]) == (422, "application/problem+json")
            assert reply.json["type"] == "urn:casework:idempotency:payload-mismatch"
        assert post("/pay?a=1", b'{"b": [1, 2],   "a": 1}').is_replay  # the same JSON
    assert len(site.calls) == 1


@pytest.mark.parametrize("body", [b'{"a": ', b"\xff\xfe", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 5000])
def test_a_body_that_is_not_the_json_it_claims_to_be_is_left_to_the_application(
    serve: Serve, site: Site, body: bytes
) -> None:
    with serve() as post:
        assert post(body=body).status == 201
        assert post(body=body).is_replay
        assert post(body=body + b" ").status == 422


def test_a_missing_or_malformed_key_is_400(serve: Serve, site: Site) -> None:
    with serve(required=True) as post:
        for key in (None, "", '"open', "x" * 256, "caf\xe9", '"a\\b"'):
            reply = post(key=key)
            assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json"), key
        assert post(key="abc").status == 201
        assert post(key='"abc"').is_replay  # a structured-field string, as the draft has it
    assert len(site.calls) == 1


def test_scopes_never_share_a_key_and_a_request_without_one_is_refused(serve: Serve, site: Site) -> None:
    with serve(scope=lambda request: request.headers.get("x-tenant")) as post:
        assert [post(X_Tenant="a").json["n"], post(X_Tenant="b").json["n"], post(X_Tenant="a").json["n"]] == [1, 2, 1]
        assert post().json["type"].endswith("no-scope")
        assert post(X_Tenant="a/k", key="x").json["n"] == 3
        assert post(X_Tenant="a", key="k/x").json["n"] == 4


def test_scope_has_no_default() -> None:
    for middleware in (IdempotencyMiddleware, IdempotencyWsgiMiddleware):
        with pytest.raises(Misuse, match="scope"):
            middleware(None, MemoryIdempotencyStore())  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="known"):
            middleware(None, MemoryIdempotencyStore(), scope=None, lease=5)  # type: ignore[arg-type]


def test_a_second_request_while_the_first_is_under_way_waits_for_it_or_is_told_409(serve: Serve, site: Site) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def slow(path: str, body: bytes) -> Answer:
        arrived.set()
        go_on.wait(30)
        return 200, [], [b"done"]

    site.answer = slow
    for wait_s, status in ((0, 409), (20, 200)):
        arrived.clear(), go_on.clear()
        found: list[Any] = []
        with serve(wait_s=wait_s) as post:
            first = threading.Thread(target=lambda post=post, found=found: found.append(post()))  # type: ignore[misc]
            first.start()
            assert arrived.wait(30)
            if status == 409:
                reply = post()
                assert (reply.status, int(reply.headers["retry-after"]) >= 1) == (409, True)
                go_on.set()
            else:
                second = threading.Thread(target=lambda post=post, found=found: found.append(post()))  # type: ignore[misc]
                second.start()
                go_on.set()
                second.join(30)
            first.join(30)
        assert [reply.body for reply in found] == [b"done"] * len(found)
    assert len(site.calls) == 2


def test_a_failed_request_frees_its_key(serve: Serve, site: Site) -> None:
    answers: list[Any] = [(500, [], [b"no"]), (429, [], [b"later"]), RuntimeError("broken"), (404, [], [b"none"])]

    def answer(path: str, body: bytes) -> Answer:
        found = answers[len(site.calls) - 1]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    site.answer = answer
    with serve() as post:
        assert [post().status for _ in range(5)] == [500, 429, 500, 404, 404]
    assert len(site.calls) == 4


def test_a_response_in_many_parts_is_stored(serve: Serve, site: Site) -> None:
    site.answer = lambda path, body: (200, [], [b"part"] * 1000)
    with serve() as post:
        assert post().body == b"part" * 1000
        assert post().is_replay


def test_a_response_that_is_too_large_is_passed_on_with_a_word_and_not_made_again(serve: Serve, site: Site) -> None:
    site.answer = lambda path, body: (200, [], [b"x" * 5000] * 10)
    with serve(max_response_bytes=20_000) as post:
        first = post()
        assert (first.status, len(first.body)) == (200, 50_000)
        assert first.headers["idempotency-not-stored"] == "too-large"
        second = post()
        assert (second.status, second.json["type"]) == (409, "urn:casework:idempotency:response-not-stored")
    assert len(site.calls) == 1


def test_an_event_stream_is_passed_on_with_a_word(serve: Serve, site: Site) -> None:
    site.answer = lambda path, body: (200, [("content-type", "text/event-stream")], [b"data: 1\n\n", b"data: 2\n\n"])
    with serve() as post:
        first = post()
        assert first.body == b"data: 1\n\ndata: 2\n\n" and first.headers["idempotency-not-stored"] == "streamed"
        assert post().status == 409
    assert len(site.calls) == 1


def test_a_request_that_is_too_large_is_413(serve: Serve, site: Site) -> None:
    with serve(max_request_bytes=1000) as post:
        assert post(body=b"x" * 1001).status == 413
        assert post(body=b"x" * 1001, key=None).status == 201
        assert post(body=b"x" * 1000).status == 201


def test_stripes_style(serve: Serve, site: Site) -> None:
    site.answer = lambda path, body: (500, [], [b"oops"])
    with serve(style="stripe") as post:
        post(body={"a": 1})
        replay = post(body={"a": 1})
        assert (replay.status, replay.headers["idempotent-replayed"]) == (500, "true")
        assert post(body={"a": 2}).status == 400
    assert len(site.calls) == 1


def test_headers_can_be_chosen(serve: Serve, site: Site) -> None:
    site.answer = lambda path, body: (200, [("x-a", "1"), ("x-b", "2"), ("x-secret", "3"), ("x-a", "4")], [b""])
    with serve(deny_headers=["X-Secret"]) as post:
        post()
        replay = post()
        assert "x-secret" not in replay.headers and replay.headers["x-b"] == "2"
        assert [value for name, value in replay.pairs if name.lower() == "x-a"] == ["1", "4"]
    with serve(allow_headers=["X-B"]) as post:
        post()
        assert set(post().headers) & {"x-a", "x-b", "x-secret"} == {"x-b"}


class DownStore(MemoryIdempotencyStore):
    def __init__(self) -> None:
        super().__init__()
        self.records.claim = self._down  # type: ignore[method-assign]

    def _down(self, *args: Any) -> Any:
        raise Unavailable("no connection")


def test_when_the_store_is_down_the_request_is_refused_or_runs_unprotected(serve: Serve, site: Site) -> None:
    with serve(DownStore()) as post:
        reply = post()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert site.calls == []
    with serve(DownStore(), on_unavailable="run") as post:
        assert [post().json["n"], post().json["n"]] == [1, 2]
        assert post().headers["idempotency-not-stored"] == "store-unavailable"


def test_a_holder_that_was_overtaken_does_not_hand_out_its_own_response(serve: Serve, site: Site) -> None:
    store = MemoryIdempotencyStore()

    def answer(path: str, body: bytes) -> Answer:
        (key,) = store.records.keys()
        record = store.get(key)
        assert record is not None
        store.release(key, record.token)
        taken = store.claim(key, record.fingerprint, record.fingerprint_version, 60)
        store.complete(key, str(taken.token), 202, None, b"theirs", 60)
        return 200, [], [b"mine"]

    site.answer = answer
    with serve(store) as post:
        assert post().status == 409
        assert (post().status, post().body) == (202, b"theirs")


def test_a_client_that_leaves_does_not_undo_its_request(serve: Serve, site: Site) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def slow(path: str, body: bytes) -> Answer:
        arrived.set()
        go_on.wait(30)
        return 200, [], [b"done"]

    site.answer = slow
    with serve() as post:
        connection = post.connect()
        connection.request("POST", "/pay", b"{}", {"Idempotency-Key": "k", "Content-Type": "application/json"})
        assert arrived.wait(30)
        connection.close()
        go_on.set()
        reply = post()
        assert (reply.status, reply.body) == (200, b"done")
    assert len(site.calls) == 1


def test_a_wsgi_body_is_not_read_past_its_length() -> None:
    class Socket:
        def read(self, count: int = -1) -> bytes:
            assert 0 <= count <= 2, "it would block here"
            return b"{}"[:count]

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    environ = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/", "CONTENT_LENGTH": "2", "wsgi.input": Socket(),
        "HTTP_IDEMPOTENCY_KEY": "k",
    }  # fmt: skip
    guarded = IdempotencyWsgiMiddleware(app, MemoryIdempotencyStore(), scope=None)
    assert list(guarded(environ, lambda *_: None)) == [b"{}"]


SCOPE = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"idempotency-key", b"k")]}


async def receive_once() -> Any:
    return {"type": "http.request", "body": b""}


async def refuse(message: Any) -> None:
    raise AssertionError(message)


def test_a_request_that_the_server_cancels_is_performed_to_its_end() -> None:
    async def main() -> None:
        store = MemoryIdempotencyStore()
        begun, goes_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await goes_on.wait()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

        async def told(message: Any) -> None:
            done.set()

        task = asyncio.create_task(IdempotencyMiddleware(app, store, scope=None)(SCOPE, receive_once, told))  # type: ignore[arg-type]
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = store.get(store.records.keys()[0])
        assert record is not None and record.state == "claimed"
        goes_on.set()
        await done.wait()
        record = store.get(record.key)
        assert record is not None and (record.state, record.status, record.body) == ("completed", 201, b"done")

    asyncio.run(main())


def test_a_request_that_ends_with_its_loop_frees_its_key() -> None:
    store = MemoryIdempotencyStore()

    async def main() -> None:
        begun = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(IdempotencyMiddleware(app, store, scope=None)(SCOPE, receive_once, refuse))  # type: ignore[arg-type]
        await begun.wait()
        task.cancel()

    asyncio.run(main())
    record = store.get(store.records.keys()[0])
    assert record is not None and record.state == "released"


def test_what_the_application_does_after_its_response_changes_nothing() -> None:
    ran = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        raise RuntimeError("in a background task")

    async def main() -> list[Any]:
        guarded = IdempotencyMiddleware(app, MemoryIdempotencyStore(), scope=None)
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(b"idempotency-key", b"k")],
        }
        with pytest.raises(RuntimeError, match="background"):
            await guarded(scope, receive, send)
        await guarded(scope, receive, send)
        return sent

    sent = asyncio.run(main())
    assert [message.get("body") for message in sent if "body" in message] == [b"done", b"done"]
    assert ran == [1]


@pytest.mark.parametrize(
    ("text", "key"),
    [("abc", "abc"), ('"abc"', "abc"), ('"a\\"b"', 'a"b'), ('"a\\\\b"', "a\\b"), (" x ", "x"), ('"', None),
     ('""', None), ('"a"b"', None), ('"a\\n"', None), ("a\tb", None), ("\u00e9", None)],
)  # fmt: skip
def test_keys_are_read_as_structured_field_strings_or_bare(text: str, key: str | None) -> None:
    assert parse_key(text) == key


def test_json_is_compared_by_what_it_says() -> None:
    def same(one: str, other: str) -> bool:
        return canonical_body("application/json", one.encode()) == canonical_body("application/json", other.encode())

    assert same('{"a":1,"b":2}', '{ "b" : 2, "a" : 1 }') and same('"\\u00e9"', '"\u00e9"')
    for one, other in (("1", "1.0"), ("1", '"1"'), ("[1,2]", "[2,1]"), ("null", "{}"), ("1", "true"), ('""', "null")):
        assert not same(one, other)
    assert canonical_body("text/plain", b"{}") != canonical_body("application/json", b"{}")
    assert canonical_body("application/vnd.api+json; charset=utf-8", b"[ ]") == canonical_body(
        "application/json", b"[]"
    )


def test_applies_sees_the_request(serve: Serve, site: Site) -> None:
    seen: list[HttpRequest] = []

    def applies(request: HttpRequest) -> bool:
        seen.append(request)
        return request.path.startswith("/pay")

    with serve(applies=applies) as post:
        assert [post("/other").json["n"], post("/other").json["n"], post("/pay").json["n"], post("/pay").json["n"]] == [
            1,
            2,
            3,
            3,
        ]
    assert (seen[0].method, seen[0].path, seen[0].headers["idempotency-key"]) == ("POST", "/other", "k")
    assert json.dumps(seen[0].query) == '""'
