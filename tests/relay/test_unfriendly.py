"""A relay under clients and stores that do not behave: every answer within its bound, nothing kept for strangers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from casework.backends.drive import run
from casework.errors import Misuse
from casework.relay.sealing import seal, unseal
from casework.relay.service import TOKENS_KEPT
from casework.streams.tokens import list_tokens, revoke_token
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import Serving, World, client_of
from tests.relay.test_relay import body, push
from tests.streams.stores import Counted

NESTED = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("content", ["{", NESTED, json.dumps(body("a")), "x" * 1_000_000])
def test_a_stranger_is_told_nothing_of_a_body(world: World, content: str) -> None:
    headers = {"Content-Type": "application/json"}
    with client_of(world) as client:
        for method, path in (("POST", "ops"), ("POST", "truncate"), ("PUT", "snapshot")):
            answer = client.request(method, f"/v1/streams/s/{path}", content=content, headers=headers)
            assert answer.status_code == 401, (method, path)


def test_whoever_has_no_right_is_told_nothing_of_a_body(world: World) -> None:
    with client_of(world, world.headers("other=append")) as client:
        assert client.post("/v1/streams/s/ops", content="{").status_code == 404


def test_json_that_is_nested_too_deeply_is_bad_input(client: Any) -> None:
    answer = client.post("/v1/streams/s/ops", content=NESTED, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and "problem+json" in answer.headers["content-type"]


def test_unknown_tokens_are_not_kept(world: World) -> None:
    with client_of(world) as client:
        for n in range(20):
            headers = {"Authorization": "Bearer " + "x" * 40_000 + str(n)}
            assert client.get("/v1/streams", headers=headers).status_code == 401
        assert len(world.relay._known) == 0
        for n in range(20):
            headers = {"Authorization": f"Bearer cw_{n:08}_" + "x" * 44}
            assert client.get("/v1/streams", headers=headers).status_code == 401
        assert 0 < len(world.relay._known) <= TOKENS_KEPT
        assert all(len(key) == 32 for key in world.relay._known)


def test_a_known_token_is_looked_up_once_in_its_time(make_world: Callable[..., World]) -> None:
    store = Counted(fresh_backend())
    world = make_world(store, token_cache_s=60.0)
    with client_of(world, world.headers("s*=read")) as client:
        for _ in range(3):
            assert client.get("/v1/streams").status_code == 200
    assert len(world.relay._known) == 1 and next(iter(world.relay._known.values()))[1] is not None


def test_a_cursor_names_no_stream_that_the_token_may_not_know(world: World) -> None:
    with client_of(world, world.headers("*=append")) as writer:
        for stream in ("a-secret", "b-secret", "mine", "z-secret"):
            push(writer, "a", stream=stream)
    with client_of(world, world.headers("mine=read")) as client:
        found: list[str] = []
        cursor, cursors = None, set()
        while True:
            query = {"limit": 1} | ({} if cursor is None else {"cursor": cursor})
            page = client.get("/v1/streams", params=query).json()
            found += page["streams"]
            cursor = page["cursor"]
            if cursor is None:
                break
            cursors.add(cursor)
            plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            assert b"secret" not in plain and "secret" not in cursor
        assert found == ["mine"] and len(cursors) >= 3
        for made_up in ("x", "", "a" * 60, cursors.pop()[:-2] + "AA"):
            answer = client.get("/v1/streams", params={"cursor": made_up})
            assert answer.status_code == 422 or made_up == ""


@pytest.mark.parametrize("text", ["", "a", "\u00e9" * 300, '{"a": 1}'])
def test_what_was_sealed_is_unsealed_with_the_same_key_alone(text: str) -> None:
    sealed = seal(b"k" * 32, text, b"n" * 16)
    assert unseal(b"k" * 32, sealed) == text and seal(b"k" * 32, text, b"m" * 16) != sealed
    with pytest.raises(Misuse):
        unseal(b"l" * 32, sealed)


# --- tokens that end while they hold something --------------------------------------------------------------


def test_an_event_stream_and_a_long_poll_end_with_their_token(make_world: Callable[..., World]) -> None:
    world = make_world(fresh_backend(), token_cache_s=0.1)
    token = world.token("s=read,append")
    headers = {"Authorization": f"Bearer {token}"}
    with Serving(world) as url, client_of(world, headers) as client:
        push(client, "a")
        poll: list[Any] = []
        asked = threading.Thread(target=lambda: poll.append(got(url, "/v1/streams/s/ops?after=1&wait_s=20", headers)))
        with contextlib.closing(connected(url)) as connection:
            connection.request("GET", "/v1/streams/s/events", headers=headers)
            events = connection.getresponse()
            begin = events.read1(10_000)
            while b"id: 1" not in begin:
                begin += events.read1(10_000)
            asked.start()
            (info,) = run(list_tokens(), world.blocking)
            run(revoke_token(info.id), world.blocking)
            rest = events.read()  # until the relay ends it
        asked.join(15)
    assert b"id: 2" not in rest
    assert [(status, json.loads(text)) for status, _, text in poll] == [(200, {"ops": [], "next_after": 1, "mark": ""})]


def connected(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)


def got(url: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(connected(url)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


# --- stores that hang, clients that stand still -------------------------------------------------------------


class Hanging(Counted):
    """A store that stops to answer."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.hangs, self.goes_on = False, threading.Event()

    def execute(self, effect: Any) -> Any:
        if self.hangs:
            self.goes_on.wait(60)
        return super().execute(effect)


@pytest.fixture
def hanging(make_world: Callable[..., World]) -> Iterator[tuple[World, Hanging]]:
    store = Hanging(fresh_backend())
    yield make_world(store, push_deadline_s=0.2), store
    store.goes_on.set()


def test_whatever_hangs_is_answered_within_the_deadline_and_health_is_not_asked_of_the_store(
    hanging: tuple[World, Hanging],
) -> None:
    world, store = hanging
    headers = world.headers("s=read,append")
    with Serving(world) as url, client_of(world, headers) as client:
        push(client, "a")
        assert got(url, "/ready", {})[0] == 200
        store.hangs = True
        for path in ("/v1/streams/s", "/v1/streams/s/ops", "/v1/streams", "/v1/streams/s/snapshot"):
            status, found, _ = got(url, path, headers)  # the token's own look hangs, too
            assert status == 503 and found["retry-after"], path
        assert got(url, "/health", {})[0] == 200
        assert got(url, "/ready", {})[0] == 503
        store.hangs = False
        store.goes_on.set()


def test_half_a_request_is_not_waited_for(make_world: Callable[..., World]) -> None:
    world = make_world(fresh_backend(), push_deadline_s=0.2, header_s=0.2)
    token = world.token("s=read,append")
    with Serving(world) as url, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(urlsplit(url).port or 0))
        heads, bodies = [], []
        for n in range(20):
            half = stack.enter_context(socket.create_connection(address, timeout=30))
            if n % 2:
                half.sendall(b"POST /v1/streams/s/ops HTTP/1.1\r\nHost: x\r\nAuthor")
                heads.append(half)
            else:
                head = f"POST /v1/streams/s/ops HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                half.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
                bodies.append(half)
        for half in heads:
            assert half.recv(1000) == b""
        for half in bodies:
            assert b" 408 " in half.recv(1000).split(b"\r\n")[0]
        with client_of(world, {"Authorization": f"Bearer {token}"}) as client:
            assert push(client, "a").status_code == 200


def test_a_client_that_stands_still_loses_its_event_stream(make_world: Callable[..., World]) -> None:
    world = make_world(fresh_backend(), slow_client_s=0.2, max_event_bytes=300_000)
    headers = world.headers("s=read,append")
    with Serving(world) as url, client_of(world, headers) as client:
        for n in range(60):
            push(client, f"op-{n}", data="x" * 200_000)
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", int(urlsplit(url).port or 0)))
        with stalled:
            authorization = f"Authorization: {headers['Authorization']}"
            stalled.sendall(f"GET /v1/streams/s/events HTTP/1.1\r\nHost: x\r\n{authorization}\r\n\r\n".encode())
            # Nothing is read. The relay lets go by itself, and does not wait until the client leaves.
            pause = threading.Event()
            while not world.relay.counts.cut_off:
                assert not pause.wait(0.02)
        assert world.relay.counts.ops_pulled < 60, "the rest of the stream was not read for it"
