"""A DynamoDB that accepts and never answers: every method gives up after the attempts that were asked for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from casework import AsyncDynamoDBIdempotencyStore, DynamoDBIdempotencyStore, Misuse, StoreError, Unavailable
from casework.idempotency.bounded import bounded
from casework.kernel.effects import Get, Sleep
from casework.kernel.items import Key
from casework.kernel.programs import Program, get, sleep
from casework.kernel.schema import IDEMPOTENCY


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Any]]]:
    """The address of a server that takes connections, and those that it took."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-west-1")
    taken: list[Any] = []
    server = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            taken.append(connection)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)
    for connection in taken:
        connection.close()


CALLS = {
    "claim": ("k", "f" * 32, 1, 30), "complete": ("k", "t", 200, None, b"x", 60), "release": ("k", "t"),
    "renew": ("k", "t", 30), "get": ("k",),
}  # fmt: skip


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("method", CALLS)
def test_no_method_tries_more_often_than_was_asked_for(
    silent: tuple[str, list[Any]], method: str, retries: int
) -> None:
    url, taken = silent
    options: Any = {"read_timeout": 0.2, "max_retries": retries, "create_table": False, "endpoint_url": url}
    with DynamoDBIdempotencyStore(**options) as store, pytest.raises(StoreError):
        getattr(store, method)(*CALLS[method])
    # The silence that ends a call has half a second more than the attempts: two of these short ones fit in.
    assert 1 <= len(taken) <= retries + 4
    taken_before = len(taken)

    async def on_a_loop() -> None:
        async with AsyncDynamoDBIdempotencyStore(**options) as store:
            with pytest.raises(StoreError):
                await getattr(store, method)(*CALLS[method])
        with pytest.raises(Misuse, match="closed"):
            await store.get("k")

    asyncio.run(on_a_loop())
    assert 1 <= len(taken) - taken_before <= retries + 4


def test_the_table_is_looked_for_as_often_as_was_asked_for(silent: tuple[str, list[Any]]) -> None:
    url, taken = silent
    options: Any = {"read_timeout": 0.2, "max_retries": 1, "endpoint_url": url}
    with DynamoDBIdempotencyStore(**options) as store, pytest.raises(Unavailable, match="table"):
        store.get("k")
    assert len(taken) == 2


def test_silence_adds_up_over_the_calls_of_a_program_and_an_answer_ends_it() -> None:
    now_us = 0
    seen: list[str] = []
    key = Key(IDEMPOTENCY, "k", "0")

    def program() -> Program[str]:
        yield from get(key)
        for _ in range(2):
            try:
                yield from get(key)
            except Unavailable as error:
                seen.append(str(error))
        yield from sleep(1)
        try:
            yield from get(key)
        except Unavailable as error:
            seen.append(str(error))
        return "ended"

    carried = bounded(program(), 1_000_000, lambda: now_us)
    assert isinstance(next(carried), Get)
    now_us = 5_000_000
    assert isinstance(carried.send(None), Get), "the answer took long, but it came"
    now_us = 5_600_000
    assert isinstance(carried.throw(Unavailable("no answer")), Get)
    now_us = 6_200_000
    assert isinstance(carried.throw(Unavailable("no answer")), Sleep)
    with pytest.raises(StopIteration) as ended:
        carried.send(None)
    assert ended.value.value == "ended"
    assert seen == ["no answer", "no answer", "the store has not answered for 1 s; try again later"]


@pytest.mark.parametrize("grace", [-1, 0.5, "1", None, float("nan"), True])
def test_a_grace_that_is_no_whole_number_of_seconds_is_refused(grace: Any) -> None:
    with pytest.raises(Misuse, match="lease_grace_seconds"):
        DynamoDBIdempotencyStore(lease_grace_seconds=grace)
