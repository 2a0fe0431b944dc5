"""What may pass is survived: credentials that cannot be renewed for a while, answers that are garbled or unknown.

What no time can cure is told at the start, where somebody reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.backends.dynamodb import AsyncDynamoDBBackend, CallPolicy, DynamoDBBackend
from casework.errors import CorruptItem, OutcomeUnknown, Unavailable
from casework.kernel.conditions import absent
from casework.kernel.effects import Get, Write
from casework.kernel.items import Put, Table
from tests.dynamodb.conftest import Maker
from tests.servers.lossy_proxy import LossyProxy

THINGS = Table(name="things", partition="id", sort="n", sort_type="int")
PUT = Put(THINGS, {"id": "a", "n": 1, "value": "mine"}, when=absent())
KEY = THINGS.key("a", 1)

MACHINE = "{id: m, initial: a, states: {a: {on: {go: b}}, b: {after: {1ms: c}}, c: {type: final}}}"


class Refusing:
    """Raises instead of signing, as a provider does that cannot renew its credentials."""

    def __init__(self, error: Any) -> None:
        self.error, self.is_down, self.asked = error, False, 0

    def __call__(self, **_: Any) -> None:
        if self.is_down:
            self.asked += 1
            raise self.error


def failures() -> list[Any]:
    from botocore import exceptions

    return [
        exceptions.CredentialRetrievalError(provider="sts", error_msg="no answer"),
        exceptions.NoCredentialsError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="no answer"),
        exceptions.UnauthorizedSSOTokenError(),
        exceptions.MetadataRetrievalError(error_msg="no answer"),
    ]


GARBLED = [
    pytest.param(b"<html>log in first</html>", id="a page of somebody in between"),
    pytest.param(b'{"Item": {"id": {"S": "a"}', id="half an answer"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b'{"Item": {"id": 7}}', id="another shape"),
    pytest.param(b'{"Item": {"id": {"Q": "a"}, "n": {"N": "x"}}}', id="unknown types"),
]


@pytest.fixture
def backend(make: Maker, lossy_proxy: LossyProxy, prefix: str) -> Any:
    policy = CallPolicy(deadline_s=2.0, lost_reads_max=2)
    backend = make(lossy_proxy.url, prefix=prefix, policy=policy)
    backend.create_tables([THINGS])
    lossy_proxy.clear()
    return backend


@pytest.mark.parametrize("body", GARBLED)
def test_a_garbled_answer_is_never_taken_for_an_empty_one(backend: Any, lossy_proxy: LossyProxy, body: bytes) -> None:
    backend.execute(Write(PUT))
    lossy_proxy.on("GetItem", times=None).answer(200, body)
    with pytest.raises((Unavailable, CorruptItem)):
        backend.execute(Get(KEY))
    lossy_proxy.clear()
    assert backend.execute(Get(KEY))["value"] == "mine"
    lossy_proxy.on("GetItem", nth=1).answer(200, b"<html>")
    assert backend.execute(Get(KEY))["value"] == "mine", "it is asked again"


def test_a_write_whose_answer_is_garbled_is_resolved(backend: Any, lossy_proxy: LossyProxy) -> None:
    lossy_proxy.on("PutItem", nth=1).answer(200, b"<html>")  # it never arrived: the repeat stores it
    backend.execute(Write(PUT))
    assert backend.execute(Get(KEY))["value"] == "mine"
    lossy_proxy.on("PutItem", times=None).answer(200, b"<html>")
    with pytest.raises(OutcomeUnknown):
        backend.execute(Write(Put(THINGS, {"id": "b", "n": 1})))


@pytest.mark.parametrize(("code", "status"), [("LimitExceededException", 400), ("NeverHeardOf", 400), ("Odd", 403)])
def test_a_refusal_that_nobody_knows_is_no_misuse(
    backend: Any, lossy_proxy: LossyProxy, code: str, status: int
) -> None:
    lossy_proxy.on("GetItem", times=None).answer(status, b'{"__type": "x#%s", "message": "m"}' % code.encode())
    with pytest.raises(casework.StoreError):
        backend.execute(Get(KEY))
    lossy_proxy.clear()
    assert backend.execute(Get(KEY)) is None


@pytest.mark.parametrize("error", failures(), ids=lambda error: type(error).__name__)
def test_a_worker_survives_a_provider_that_fails_for_a_while(
    roto_url: str, unique: Callable[[str], str], error: Any
) -> None:
    backend = DynamoDBBackend(endpoint_url=roto_url, prefix=unique("survive"))
    refusing = Refusing(error)
    machine = casework.Machine.from_yaml(MACHINE)
    with backend, casework.open(backend, machines=[machine], create=True) as app:
        with app.worker(poll_s=0.02) as worker:
            app.start("m", id="before")
            app.send("before", "go")
            assert app.wait("before", timeout_s=60).status == "done"
            backend._open().meta.events.register_first("before-sign.dynamodb", refusing)
            refusing.is_down = True
            with pytest.raises(Unavailable, match=r"credentials|log in|token"):
                app.get("before")
            while worker.status().trouble_n < 2:
                pass
            assert worker.is_alive
            refusing.is_down = False
            app.start("m", id="after")
            app.send("after", "go")
            assert app.wait("after", timeout_s=60).status == "done"
        assert worker.error is None


def test_so_it_is_on_a_loop(roto_url: str, unique: Callable[[str], str]) -> None:
    async def main() -> None:
        backend = AsyncDynamoDBBackend(endpoint_url=roto_url, prefix=unique("survive"))
        refusing = Refusing(failures()[0])
        machine = casework.Machine.from_yaml(MACHINE)
        async with backend, casework.open_async(backend, machines=[machine], create=True) as app:
            others: list[Any] = []
            make_other = backend.for_another_loop

            def made() -> Any:
                others.append(make_other())
                return others[-1]

            backend.for_another_loop = made  # type: ignore[method-assign]
            async with app.worker(poll_s=0.02) as worker:
                await app.start("m", id="before")
                await app.send("before", "go")
                assert (await app.wait("before", timeout_s=60)).status == "done"
                for each in (backend, *others):
                    each._client.meta.events.register_first("before-sign.dynamodb", refusing)
                refusing.is_down = True
                with pytest.raises(Unavailable, match="credentials"):
                    await app.get("before")
                while worker.status().trouble_n < 2:
                    with pytest.raises(Unavailable):
                        await app.get("before")
                assert worker.is_alive
                refusing.is_down = False
                await app.start("m", id="after")
                await app.send("after", "go")
                assert (await app.wait("after", timeout_s=60)).status == "done"
            assert worker.error is None

    asyncio.run(main())
