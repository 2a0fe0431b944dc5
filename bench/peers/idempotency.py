"""One measurement of one library: ``python bench/peers/idempotency.py LIBRARY MEASURE [COUNT]``, prints JSON.

Libraries: casework, idemkit, powertools. Each measurement is a process of its own, so that none warms up another. What
a library does is checked (how often the function ran), so that one that skips work cannot win.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

warnings.simplefilter("ignore")
ROUNDS = 15


def best(run: Callable[[], int]) -> float:
    """Operations a second, the best of several rounds: what else runs on the machine only makes it slower."""
    found = 0.0
    for _ in range(ROUNDS):
        gc.collect()
        started = time.perf_counter()
        count = run()
        found = max(found, count / (time.perf_counter() - started))
    return found


# --- the store in memory --------------------------------------------------------------------------------------------


def casework_store(live: int, measure: str) -> float:
    from casework import MemoryIdempotencyStore

    return _store_rates(live, measure, lambda: _Blocking(MemoryIdempotencyStore()))


class _Blocking:
    def __init__(self, store: Any) -> None:
        self.store = store

    def fresh(self, keys: range) -> None:
        claim, complete = self.store.claim, self.store.complete
        for n in keys:
            token = claim(f"k{n}", "print", 1, 30.0).token
            assert complete(f"k{n}", token, 200, {"a": "b"}, b"body", 3600.0)

    def replay(self, keys: range) -> None:
        claim = self.store.claim
        for n in keys:
            assert claim(f"k{n}", "print", 1, 30.0).record.body == b"body"


def idemkit_store(live: int, measure: str) -> float:
    from idemkit import InMemoryBackend

    class Async:
        def __init__(self) -> None:
            self.store = InMemoryBackend(max_size=10**9)

        def fresh(self, keys: range) -> None:
            async def run() -> None:
                claim, complete = self.store.claim, self.store.complete
                for n in keys:
                    token = (await claim(f"k{n}", "print", 1, 30.0)).our_claim_token
                    assert await complete(f"k{n}", token, 200, {"a": "b"}, b"body", 3600.0)

            asyncio.run(run())

        def replay(self, keys: range) -> None:
            async def run() -> None:
                claim = self.store.claim
                for n in keys:
                    assert (await claim(f"k{n}", "print", 1, 30.0)).record.response_body == b"body"

            asyncio.run(run())

    return _store_rates(live, measure, Async)


def _store_rates(live: int, measure: str, make: Callable[[], Any]) -> float:
    """Fresh: ``live`` records, then 200 more are made. Replay: of 200 among ``live`` records."""
    if measure == "fresh" and live <= 200:

        def all_fresh() -> int:
            make().fresh(range(live))
            return live

        return best(all_fresh)
    store = make()
    store.fresh(range(live)) if live <= 10_000 or isinstance(store, _Blocking) else None
    at = [live]

    def fresh() -> int:
        store.fresh(range(at[0], at[0] + 200))
        at[0] += 200
        return 200

    def replay() -> int:
        for _ in range(5):
            store.replay(range(min(live, 200)))
        return 5 * min(live, 200)

    return best(fresh if measure == "fresh" else replay)


# --- functions ------------------------------------------------------------------------------------------------------


def casework_function(count: int, measure: str) -> float:
    from casework import MemoryIdempotencyStore, idempotent

    ran: list[int] = []

    def make() -> Callable[..., Awaitable[Any]]:
        @idempotent(MemoryIdempotencyStore(), key="order_id")
        async def refund(*, order_id: str, amount: int) -> dict:  # type: ignore[type-arg]
            ran.append(1)
            return {"amount": amount}

        return refund

    return _function_rates(count, measure, make, ran)


def idemkit_function(count: int, measure: str) -> float:
    from idemkit import InMemoryBackend, MethodConfig, idempotent

    ran: list[int] = []

    def make() -> Callable[..., Awaitable[Any]]:
        @idempotent(backend=InMemoryBackend(max_size=10**9), config=MethodConfig(key_fields=["order_id"]))
        async def refund(*, order_id: str, amount: int) -> dict:  # type: ignore[type-arg]
            ran.append(1)
            return {"amount": amount}

        return refund

    return _function_rates(count, measure, make, ran)


def _function_rates(count: int, measure: str, make: Callable[[], Any], ran: list[int]) -> float:
    async def calls(function: Any) -> None:
        for n in range(count):
            assert (await function(order_id=f"o{n}", amount=n))["amount"] == n

    if measure == "fresh":

        def fresh() -> int:
            ran.clear()
            asyncio.run(calls(make()))
            assert len(ran) == count
            return count

        return best(fresh)
    function = make()
    asyncio.run(calls(function))

    def replay() -> int:
        asyncio.run(calls(function))
        assert len(ran) == count
        return count

    return best(replay)


# --- ASGI -----------------------------------------------------------------------------------------------------------

BODY = json.dumps({"order": "o-1", "amount": 4200, "items": [1, 2, 3]}).encode()


def casework_asgi(count: int, measure: str) -> float:
    from casework import IdempotencyMiddleware, MemoryIdempotencyStore

    return _asgi(count, measure, lambda app: IdempotencyMiddleware(app, MemoryIdempotencyStore(), scope=None))


def idemkit_asgi(count: int, measure: str) -> float:
    from idemkit import IdempotencyMiddleware, InMemoryBackend

    return _asgi(count, measure, lambda app: IdempotencyMiddleware(app, backend=InMemoryBackend(max_size=10**9)))


def _asgi(count: int, measure: str, guard: Callable[[Any], Any]) -> float:
    """Microseconds that the middleware adds to a request, without a server."""
    ran: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(1)
        await receive()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"13")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"n":1,"m":2}'})

    async def receive() -> Any:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        pass

    async def requests(target: Any, keys: range) -> float:
        started = time.perf_counter()
        for n in keys:
            headers = [
                (b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"54"),
                (b"user-agent", b"bench"), (b"accept", b"*/*"), (b"idempotency-key", f'"key-{n}"'.encode()),
            ]  # fmt: skip
            scope = {
                "type": "http", "method": "POST", "path": "/pay", "query_string": b"", "root_path": "",
                "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http",
                "http_version": "1.1", "asgi": {"version": "3.0"},
            }  # fmt: skip
            await target(scope, receive, send)
        return (time.perf_counter() - started) / len(keys) * 1e6

    async def main() -> float:
        added = []
        for _ in range(ROUNDS):
            guarded = guard(app)
            ran.clear()
            bare = await requests(app, range(count))
            fresh = await requests(guarded, range(count))
            assert len(ran) == 2 * count
            replay = await requests(guarded, range(count))
            assert len(ran) == 2 * count
            added.append((fresh if measure == "fresh" else replay) - bare)
        return min(added)

    return asyncio.run(main())


# --- DynamoDB: calls and units --------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_dynamodb() -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """A server on loopback, and every call that the SDKs make to it with the write units that it consumed."""
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "bench")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    calls: list[tuple[str, float]] = []
    import aiobotocore.client
    import botocore.client

    def noted(name: str, kwargs: dict[str, Any]) -> None:
        written = kwargs.get("Item") or kwargs.get("ExpressionAttributeValues") or {}
        size = len(json.dumps(written, default=str)) if name in ("PutItem", "UpdateItem") else 0
        calls.append((name, float(-(-size // 1024)) if size else 0.0))

    sync_call = botocore.client.BaseClient._make_api_call
    async_call = aiobotocore.client.AioBaseClient._make_api_call

    def call(self: Any, name: str, kwargs: dict[str, Any]) -> Any:
        noted(name, kwargs)
        return sync_call(self, name, kwargs)

    async def call_async(self: Any, name: str, kwargs: dict[str, Any]) -> Any:
        noted(name, kwargs)
        return await async_call(self, name, kwargs)

    botocore.client.BaseClient._make_api_call = call
    aiobotocore.client.AioBaseClient._make_api_call = call_async
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}", calls
    finally:
        server.stop()


Two = Callable[[], tuple[list[tuple[str, float]], list[tuple[str, float]]]]


def casework_dynamodb(count: int, measure: str) -> dict[str, float]:
    from casework import DynamoDBIdempotencyStore, idempotent

    with counted_dynamodb() as (url, calls), DynamoDBIdempotencyStore(endpoint_url=url) as store:

        @idempotent(store, key="order_id")
        def refund(order_id: str, amount: int) -> dict:  # type: ignore[type-arg]
            return {"amount": amount}

        refund("warm", 1)
        return _counted(calls, lambda: refund("o-1", 5))


def idemkit_dynamodb(count: int, measure: str) -> dict[str, float]:
    from idemkit import DynamoBackend, MethodConfig, idempotent

    with counted_dynamodb() as (url, calls), asyncio.Runner() as runner:
        backend = DynamoBackend(endpoint_url=url)

        @idempotent(backend=backend, config=MethodConfig(key_fields=["order_id"]))
        async def refund(*, order_id: str, amount: int) -> dict:  # type: ignore[type-arg]
            return {"amount": amount}

        runner.run(refund(order_id="warm", amount=1))
        found = _counted(calls, lambda: runner.run(refund(order_id="o-1", amount=5)))
        runner.run(backend.aclose())
        return found


def powertools_dynamodb(count: int, measure: str) -> dict[str, float]:
    with counted_dynamodb() as (url, calls):
        import boto3
        from aws_lambda_powertools.utilities.idempotency import (
            DynamoDBPersistenceLayer,
            IdempotencyConfig,
            idempotent_function,
        )

        client = boto3.client("dynamodb", endpoint_url=url)
        client.create_table(
            TableName="powertools", KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}], BillingMode="PAY_PER_REQUEST",
        )  # fmt: skip
        layer = DynamoDBPersistenceLayer(table_name="powertools", boto3_client=client)

        @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=IdempotencyConfig())
        def refund(order: dict) -> dict:  # type: ignore[type-arg]
            return {"amount": order["amount"]}

        refund(order={"id": "warm", "amount": 1})
        return _counted(calls, lambda: refund(order={"id": "o-1", "amount": 5}))


def _counted(calls: list[tuple[str, float]], act: Callable[[], Any]) -> dict[str, float]:
    calls.clear()
    act()
    fresh = list(calls)
    calls.clear()
    act()
    replay = list(calls)
    return {
        "fresh calls": len(fresh), "fresh write units": sum(units for _, units in fresh), "replay calls": len(replay),
    }  # fmt: skip


def casework_waiting(count: int, measure: str) -> float:
    from casework import AsyncDynamoDBIdempotencyStore

    with counted_dynamodb() as (url, calls):

        async def main() -> int:
            store = AsyncDynamoDBIdempotencyStore(endpoint_url=url)
            token = (await store.claim("k", "print", 1, 60.0)).token
            calls.clear()
            waiting = [asyncio.create_task(store.wait_for_completion("k", 30)) for _ in range(count)]
            await asyncio.sleep(5)
            reads = collections.Counter(name for name, _ in calls)["GetItem"]
            await store.complete("k", str(token), 200, None, b"x", 60)
            assert all(record is not None for record in await asyncio.gather(*waiting))
            await store.close()
            return reads

        return asyncio.run(main())


def idemkit_waiting(count: int, measure: str) -> float:
    from idemkit import DynamoBackend

    with counted_dynamodb() as (url, calls):

        async def main() -> int:
            store = DynamoBackend(endpoint_url=url)
            token = (await store.claim("k", "print", 1, 60.0)).our_claim_token
            calls.clear()
            waiting = [asyncio.create_task(store.wait_for_completion("k", 30)) for _ in range(count)]
            await asyncio.sleep(5)
            reads = collections.Counter(name for name, _ in calls)["GetItem"]
            await store.complete("k", token, 200, {}, b"x", 60)
            await asyncio.gather(*waiting)
            await store.aclose()
            return reads

        return asyncio.run(main())


def main() -> None:
    library, kind, measure, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    found = globals()[f"{library}_{kind}"](count, measure)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
