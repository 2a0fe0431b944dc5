"""What each option of the stores that stand alone changes: how they are made."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import casework
from casework.app import execution_store
from casework.backends.drive import run
from casework.backends.dynamodb.clock import ServiceClock
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.executions.buckets import SETTINGS
from casework.kernel.programs import get, query_all
from casework.kernel.schema import EXECUTIONS, IDEMPOTENCY, TABLES
from tests.options.service import Service
from tests.options.table import SOMETHING, OnLoop, Row, Rows, refusal, row

# --- in memory, in a file ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def called(store: Any) -> Iterator[Any]:
    """A store as a test without a loop calls it, closed at the end."""
    if not asyncio.iscoroutinefunction(type(store).close):
        with contextlib.closing(store):
            yield store
        return
    with asyncio.Runner() as runner:
        own = OnLoop(store, runner)
        try:
            yield own
        finally:
            own.close()


def memory() -> MemoryBackend:
    backend = MemoryBackend(clock=VirtualClock())
    backend.create_tables(TABLES)
    return backend


def on(kind: str, backend: MemoryBackend, **options: Any) -> Any:
    """A store of that kind on a backend."""
    make = getattr(casework, kind)
    return make(ThreadedBackend(backend, owns_blocking=True) if kind.startswith("Async") else backend, **options)


def in_backend(kind: str, other: bool) -> list[int]:
    """How many items two stores have, where one of them has got one."""
    backends = memory(), memory()
    with called(on(kind, backends[other])) as store:
        if "Execution" in kind:
            store.save(casework.StoredExecution("x", "{}"))
        else:
            store.claim("k", "f", 1, 30.0)
    return [sum(len(each.tables.stored(table).items) for table in (EXECUTIONS, IDEMPOTENCY)) for each in backends]


def traced(store: Any) -> int:
    """How many entries of ten are kept of a trace."""
    for n in range(10):
        exe = store.load("x") or casework.StoredExecution("x", "{}")
        store.commit(exe, trace={"n": n})
    return len(store.read_trace("x"))


def buckets(kind: str, number: int) -> Any:
    backend = memory()
    with called(on(kind, backend, buckets=number)) as store:
        store.save(casework.StoredExecution("x", "{}"))
    found = run(get(SETTINGS), backend)
    assert found is not None
    return found["buckets"]


def grace_s(kind: str, lease_grace_seconds: int) -> Any:
    """How long after a claim's lease the store may forget it."""
    backend = memory()
    with called(on(kind, backend, lease_grace_seconds=lease_grace_seconds)) as store:
        record = store.claim("k", "f", 1, 30.0).record
    (item,) = backend.tables.stored(IDEMPOTENCY).items.values()
    return item["expires_at_s"] - record.lease_until_us // 1_000_000 - 1  # type: ignore[operator]


@contextlib.contextmanager
def in_file(kind: str, name: str = "s.db", **options: Any) -> Iterator[tuple[Any, Path]]:
    with tempfile.TemporaryDirectory() as folder, getattr(casework, kind)(Path(folder) / name, **options) as store:
        yield store, Path(folder)


def files(kind: str, name: str) -> list[str]:
    with in_file(kind, name) as (_, folder):
        return [path.name for path in folder.iterdir() if path.suffix == ".db"]


def trace_in_file(trace_max: int) -> int:
    with in_file("SqliteStore", trace_max=trace_max) as (store, _):
        return traced(store)


def grace_in_file(lease_grace_seconds: int) -> Any:
    with in_file("SqliteIdempotencyStore", lease_grace_seconds=lease_grace_seconds) as (store, _):
        record = store.claim("k", "f", 1, 30.0).record
        (item,) = run(query_all(IDEMPOTENCY, "k"), store.backend)
        return item["expires_at_s"] - record.lease_until_us // 1_000_000 - 1  # type: ignore[operator]


def begun_us(clock: Any) -> Any:
    return casework.MemoryIdempotencyStore(clock=clock).claim("k", "f", 1, 30.0).record.created_at_us


FILE = (("a.db", ["a.db"]), ("b.db", ["b.db"]))


def standing_alone(kind: str) -> dict[str, Row]:
    backend = {"backend": row(lambda other: in_backend(kind, other), (False, [1, 0]), (True, [0, 1]))}
    if "Execution" not in kind:
        return {**backend, "lease_grace_seconds": row(lambda s: grace_s(kind, s), (0, 0), (60, 60))}

    def trace(trace_max: int) -> int:
        with called(on(kind, memory(), trace_max=trace_max)) as store:
            return traced(store)

    return {
        **backend,
        "trace_max": row(trace, (2, 2), (5, 5)),
        "buckets": row(lambda number: buckets(kind, number), (16, 16), (32, 32)),
    }


STORES: Rows = {
    **{
        kind: standing_alone(kind)
        for kind in ("ExecutionStore", "AsyncExecutionStore", "IdempotencyStore", "AsyncIdempotencyStore")
    },
    "SqliteStore": {
        "path": row(lambda name: files("SqliteStore", name), *FILE),
        "trace_max": row(trace_in_file, (2, 2), (5, 5)),
    },
    "SqliteIdempotencyStore": {
        "path": row(lambda name: files("SqliteIdempotencyStore", name), *FILE),
        "lease_grace_seconds": row(grace_in_file, (0, 0), (60, 60)),
    },
    "MemoryIdempotencyStore": {
        "clock": row(begun_us, (VirtualClock(5_000_000), 5_000_000), (None, SOMETHING)),
    },
}

# --- on DynamoDB ------------------------------------------------------------------------------------------------------

OLD = ServiceClock(wall_s=lambda: 1e9, monotonic_s=lambda: 1.0)
"""A clock that says 2001."""


class OnDynamoDB:
    """A service, and how a store of some kind is made on it."""

    def __init__(self, kind: str, service: Service | None = None) -> None:
        self.kind = kind
        self.service = service or Service()
        self.made: list[Service] = []

    def close(self) -> None:
        """Stop all."""
        for each in (self.service, *self.made):
            each.close()

    @property
    def other(self) -> Service:
        """Another service."""
        self.made = self.made or [Service()]
        return self.made[0]

    @contextlib.contextmanager
    def store(self, **options: Any) -> Iterator[Any]:
        """A store with these options, whose own client goes to the service unless it is said otherwise."""
        given = {"endpoint_url": self.service.url, **options}
        if "client" in options:
            del given["endpoint_url"]
        if "Idempotency" in self.kind:
            given = {"create_table": False, **given}
        elif self.kind == "DynamoDBStore" and "client" not in given:
            given["client"] = client_of(given.pop("endpoint_url"))
        with called(getattr(casework, self.kind)(**given)) as own:
            yield own

    def ask(self, **options: Any) -> Any:
        """What the service is asked when something is looked up."""
        with self.store(**options) as store:
            store.get("k") if "Idempotency" in self.kind else store.load("x")
        return self.service.requests[-1]

    def claim(self, **options: Any) -> Any:
        """The item that is put for a claim."""
        with self.store(**options) as store:
            store.claim("k", "f", 1, 30.0)
        (request,) = [each for each in self.service.requests if each.operation == "PutItem"]
        return request.body["Item"]


def client_of(url: str) -> Any:
    from tests.servers.clients import dynamodb

    return dynamodb(url)


def through(w: OnDynamoDB, other: bool) -> list[bool]:
    """Which of two services is asked, to which a client of the user's goes."""
    url = (w.service, w.other)[other].url
    if not w.kind.startswith("Async"):
        with w.store(client=client_of(url)) as store:
            store.get("k") if "Idempotency" in w.kind else store.load("x")
    else:
        asyncio.run(_through(w.kind, url))
    return [bool(each.requests) for each in (w.service, w.other)]


async def _through(kind: str, url: str) -> None:
    from tests.servers.clients import dynamodb_async

    async with dynamodb_async(url) as client:
        options = {"create_table": False} if "Idempotency" in kind else {}
        async with getattr(casework, kind)(client=client, **options) as store:
            await (store.get("k") if "Idempotency" in kind else store.load("x"))


def at(w: OnDynamoDB, other: bool) -> list[bool]:
    """Which of two services a store asks that makes its own client."""
    with w.store(endpoint_url=(w.service, w.other)[other].url) as store:
        store.get("k") if "Idempotency" in w.kind else store.load("x")
    return [bool(each.requests) for each in (w.service, w.other)]


def connects_in_s(w: OnDynamoDB, connect_timeout: float) -> Any:
    """Of the client, since no server can keep a client from connecting that is on this machine."""
    with w.store(connect_timeout=connect_timeout) as store:
        store.get("k")
        made = store.backend if w.kind.startswith("Dynamo") else next(iter(store._backends.values()))
        return made._client.meta.config.connect_timeout


def in_time(w: OnDynamoDB, read_timeout: float) -> str:
    w.service.held_s = 0.2
    with w.store(read_timeout=read_timeout, max_retries=0) as store:
        return refusal(lambda: store.get("k"))


def attempts(w: OnDynamoDB, max_retries: int) -> int:
    """How often a look is tried at a service that does not answer."""
    w.service.silent = 100
    with w.store(max_retries=max_retries) as store:
        assert refusal(lambda: store.get("k")) == "Unavailable"
    return len(w.service.requests)


def forgets_after_s(w: OnDynamoDB, lease_grace_seconds: int) -> int:
    item = w.claim(lease_grace_seconds=lease_grace_seconds, clock=OLD)
    return int(item["expires_at_s"]["N"]) - int(item["lease_until_us"]["N"]) // 1_000_000


def begins_in(w: OnDynamoDB, clock: Any) -> bool:
    """Whether a claim began before 2010."""
    return int(w.claim(clock=clock)["created_at_us"]["N"]) < 1_262_304_000_000_000


def with_config(w: OnDynamoDB, name: str | None) -> bool:
    from aiobotocore.config import AioConfig
    from botocore.config import Config

    make = AioConfig if w.kind.startswith("Async") else Config
    return "by-me" in w.ask(config=None if name is None else make(user_agent_extra=name)).headers["User-Agent"]


KEYS = {
    "table": row(lambda w, name: w.ask(table=name).body["TableName"], (None, "casework_idempotency"), ("t", "t")),
    "client": row(through, (False, [True, False]), (True, [False, True])),
    "endpoint_url": row(at, (False, [True, False]), (True, [False, True])),
    "region_name": row(lambda w, name: w.ask(region_name=name).region, ("eu-west-1", "eu-west-1"), ("r-2", "r-2")),
    "create_table": row(
        lambda w, create: w.ask(create_table=create) and "CreateTable" in w.service.operations(),
        (False, False), (True, True),
    ),
    "lease_grace_seconds": row(forgets_after_s, (0, SOMETHING), (60, SOMETHING)),
    "connect_timeout": row(connects_in_s, (1.0, 1.0), (2.0, 2.0)),
    "read_timeout": row(in_time, (0.05, "Unavailable"), (10.0, "")),
    "max_retries": row(attempts, (0, 1), (2, 3)),
    "config": row(with_config, (None, False), ("by-me", True)),
    "clock": row(begins_in, (None, False), (OLD, True)),
}  # fmt: skip

EXECUTIONS_ALONE = {
    "client": KEYS["client"],
    "prefix": row(lambda w, name: w.ask(prefix=name).body["TableName"], ("a", "a_executions"), ("b", "b_executions")),
    "trace_max": row(lambda w, most: made_with(w, trace_max=most), (2, 2), (5, 5)),
}

OF_ITS_OWN = {"endpoint_url": KEYS["endpoint_url"], "region_name": KEYS["region_name"]}


def made_with(w: OnDynamoDB, **options: Any) -> Any:
    """What the store itself goes by; the rows of ``ExecutionStore`` show what that changes."""
    with w.store(**options) as store:
        return store.shared.trace_max


# --- made together with its tables ------------------------------------------------------------------------------------


@contextlib.contextmanager
def created(w: OnDynamoDB, **options: Any) -> Iterator[Any]:
    """What ``create`` makes."""
    make = getattr(casework, w.kind).create
    given = {"endpoint_url": w.service.url, **options}
    if not w.kind.startswith("Async"):
        with contextlib.closing(make(**given)) as store:
            yield store
        return
    with asyncio.Runner() as runner:
        own = OnLoop(runner.run(make(**given)), runner)
        try:
            yield own
        finally:
            own.close()


def created_at(w: OnDynamoDB, other: bool) -> list[bool]:
    with created(w, endpoint_url=(w.service, w.other)[other].url):
        return [bool(each.requests) for each in (w.service, w.other)]


def created_in(w: OnDynamoDB, region: str) -> set[str]:
    with created(w, region_name=region):
        return {request.region for request in w.service.requests}


def tables_made(w: OnDynamoDB, **options: Any) -> set[str]:
    with created(w, **options):
        return {name.partition("_")[0] for name in w.service.tables}


def found(w: OnDynamoDB, wait_seconds: float) -> str:
    """How a store is made on a service that listens once somebody has looked for it in vain."""
    w.service.close()
    w.service = Service(listens=False)
    kind = getattr(casework, w.kind)
    begin, pause_s = kind._begin, execution_store.RETRY_S

    def begin_once(store: Any, create_tables: bool) -> Any:
        try:
            return begin(store, create_tables)
        finally:
            w.service.listen()

    async def begin_once_async(store: Any, create_tables: bool) -> Any:
        try:
            return await begin(store, create_tables)
        finally:
            w.service.listen()

    kind._begin = begin_once_async if w.kind.startswith("Async") else begin_once
    execution_store.RETRY_S = 0.001
    try:
        with created(w, wait_seconds=wait_seconds):
            return ""
    except casework.Unavailable as error:
        return type(error).__name__
    finally:
        kind._begin, execution_store.RETRY_S = begin, pause_s


def trace_of_created(w: OnDynamoDB, trace_max: int) -> Any:
    with created(w, trace_max=trace_max) as store:
        return store.shared.trace_max


CREATE = {
    "endpoint_url": row(created_at, (False, [True, False]), (True, [False, True])),
    "region_name": row(created_in, ("eu-west-1", {"eu-west-1"}), ("r-2", {"r-2"})),
    "prefix": row(lambda w, prefix: tables_made(w, prefix=prefix), ("a", {"a"}), ("b", {"b"})),
    "create_tables": row(lambda w, create: tables_made(w, create_tables=create), (False, set()), (True, {"casework"})),
    "wait_seconds": row(found, (0, "Unavailable"), (20, "")),
    "trace_max": row(trace_of_created, (2, 2), (5, 5)),
}

ON_DYNAMODB: Rows = {
    "DynamoDBIdempotencyStore": KEYS,
    "AsyncDynamoDBIdempotencyStore": KEYS,
    "DynamoDBStore": EXECUTIONS_ALONE,
    "AsyncDynamoDBStore": {**EXECUTIONS_ALONE, **OF_ITS_OWN},
    "DynamoDBStore.create": CREATE,
    "AsyncDynamoDBStore.create": CREATE,
}
"""On a world with a service."""
