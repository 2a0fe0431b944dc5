"""Functions that run in their caller's own thread: what they raise is the caller's, and the library is as before.

A key is released, so that the next call runs; a message is delivered again; an invariant does not hold; a stand-in's
attempt fails. Only a real Ctrl-C passes everywhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import casework
from casework.app.idempotency_store import AsyncIdempotencyStore, IdempotencyStore
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.kernel.schema import TABLES
from casework.replica import Replica
from casework.surfaces.messages import MessageHandler, message_handler
from tests.hostile.misbehaviours import NAMES, RAISED, misbehaving


def fresh_backend() -> MemoryBackend:
    backend = MemoryBackend()
    backend.create_tables(TABLES)
    return backend


PLACES = ("message", "idempotent", "http", "invariant", "stand-in", "view of a replica")


def raised_by(name: str) -> Any:
    return type(RAISED[name]())


# --- messages: never raises, never ends a consumer -------------------------------------------------------------------


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("part", ["function", "key", "payload"])
def test_a_message_whose_function_fails_is_delivered_again(part: str, name: str) -> None:
    bad = misbehaving(name)
    handler: MessageHandler[Any] = message_handler(
        IdempotencyStore(fresh_backend()), queue="q", key=bad if part == "key" else lambda message: "k",
        payload=bad if part == "payload" else None,
    )(bad if part == "function" else lambda message: None)  # fmt: skip
    for _ in range(2):
        handled = handler({"n": 1})
        assert not handled.is_done
        assert isinstance(handled.error, raised_by(name) | Exception)


@pytest.mark.parametrize("name", RAISED)
def test_so_it_is_on_a_loop(name: str) -> None:
    async def main() -> None:
        store = AsyncIdempotencyStore(ThreadedBackend(fresh_backend()))
        handler = message_handler(store, queue="q", key=lambda message: "k")(misbehaving(name, is_async=True))
        for _ in range(2):
            assert not (await handler.handle_async({"n": 1})).is_done

    asyncio.run(main())


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_changes_nothing(name: str) -> None:
    ran: list[int] = []
    handler = message_handler(
        IdempotencyStore(fresh_backend()), queue="q", key=lambda message: "k", hooks=[misbehaving(name)]
    )(ran.append)
    assert handler(1).is_done
    assert handler(1).was_before
    assert ran == [1]


# --- idempotent functions: the caller gets what was raised, and may try again -----------------------------------------


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("part", ["function", "key", "payload", "scope"])
def test_a_call_that_fails_leaves_its_key_free(part: str, name: str) -> None:
    bad, is_bad, ran = misbehaving(name), True, []

    def unless_mended(well: Any) -> Any:
        return lambda *args, **kwargs: bad(*args, **kwargs) if is_bad else well

    @casework.idempotent(
        IdempotencyStore(fresh_backend()), name="f",
        key=unless_mended("k") if part == "key" else "n",
        payload=unless_mended("p") if part == "payload" else True,
        scope=unless_mended("s") if part == "scope" else None,
    )  # fmt: skip
    def function(n: int) -> Any:
        ran.append(n)
        return unless_mended("well")() if part == "function" else "well"

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is, it is the caller's
        function(1)
    assert isinstance(caught.value, raised_by(name)) or isinstance(caught.value.__cause__, raised_by(name))
    is_bad = False
    assert function(1) == "well"
    assert function(1) == "well"
    assert len(ran) == (2 if part == "function" else 1)


# --- HTTP: the request fails, the next one is served ------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RAISED if name != "GeneratorExit"])
def test_an_application_that_fails_leaves_its_key_free(name: str) -> None:
    bad, is_bad = misbehaving(name), True

    def application(environ: Any, start_response: Any) -> list[bytes]:
        if is_bad:
            bad()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"well"]

    guarded = casework.IdempotencyWsgiMiddleware(application, IdempotencyStore(fresh_backend()), scope=None)
    said: list[str] = []

    def call() -> bytes:
        environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k-123456", "CONTENT_LENGTH": "0",
            "wsgi.input": __import__("io").BytesIO(b""), "SERVER_NAME": "h", "SERVER_PORT": "80",
            "wsgi.url_scheme": "http", "QUERY_STRING": "",
        }  # fmt: skip
        return b"".join(guarded(environ, lambda status, headers, exc_info=None: said.append(status)))

    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever it is, it is the server's
        call()
    is_bad = False
    assert call() == b"well"
    assert said[-1].startswith("200")


# --- the simulator ----------------------------------------------------------------------------------------------------

CHART = """
id: small
initial: a
states: {a: {invoke: {src: {task: work}, retry: {max_attempts: 2}, onDone: b, onError: b}}, b: {type: final}}
"""


@pytest.mark.parametrize("name", RAISED)
def test_an_invariant_that_raises_does_not_hold_and_is_told(name: str) -> None:
    machine = casework.Machine.from_yaml(CHART)
    report = casework.simulate(machine, runs=3, tasks={"work": None}, invariants=[misbehaving(name)])
    assert report.failure is not None
    assert name in str(report.failure)


@pytest.mark.parametrize("name", RAISED)
def test_a_stand_in_that_raises_is_a_failed_attempt(name: str) -> None:
    machine = casework.Machine.from_yaml(CHART)
    report = casework.simulate(machine, runs=3, tasks={"work": misbehaving(name)})
    assert report.failure is None, str(report.failure)


# --- replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RAISED)
def test_a_view_that_cannot_be_made_leaves_the_replica_as_it_is(name: str, tmp_path: Any) -> None:
    with Replica(tmp_path / "r.db", stream="s", relay="http://127.0.0.1:9", token="t") as replica:
        replica.append(msgspec.json.encode(1))
        with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever it is, it is the caller's
            replica.view("v", misbehaving(name), 0)
        assert replica.view("w", lambda total, op: total + 1, 0) == 1
