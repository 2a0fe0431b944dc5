"""What each option of a backend changes, made by hand or named by a URL."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import casework
from casework.app.stores import open_backend, open_backend_async
from casework.backends import dynamodb
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.kernel.items import Put
from casework.kernel.programs import write
from casework.kernel.schema import REGISTRY
from tests.options.store_rows import KEYS, OLD, OnDynamoDB, called, client_of
from tests.options.table import SOMETHING, Rows, refusal, row

# --- in memory, in a file ---------------------------------------------------------------------------------------------

SEED = ((1, SOMETHING), (2, SOMETHING))
CLOCK = ((VirtualClock(5_000_000), 5_000_000), (None, SOMETHING))


@contextlib.contextmanager
def in_file(name: str = "s.db", **options: Any) -> Iterator[tuple[SqliteBackend, Path]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(SqliteBackend(Path(folder) / name, **options)) as backend,
    ):
        yield backend, Path(folder)


def files(name: str) -> list[str]:
    with in_file(name) as (_, folder):
        return [path.name for path in folder.iterdir() if path.suffix == ".db"]


def of_file(see: Any, **options: Any) -> Any:
    with in_file(**options) as (backend, _):
        return see(backend)


def beside_another(busy_timeout_s: float) -> str:
    """How a write ends that meets the lock of another process, which gives it back where it is waited for."""
    with in_file(busy_timeout_s=busy_timeout_s) as (backend, folder):
        backend.create_tables([REGISTRY])
        other = sqlite3.connect(folder / "s.db", isolation_level=None, check_same_thread=False)
        with contextlib.closing(other):
            other.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(0.1, other.execute, ("ROLLBACK",))
            if busy_timeout_s > 1:
                timer.start()
            said = refusal(lambda: run(write(Put(REGISTRY, {"kind": "a", "name": "b"})), backend))
            if timer.is_alive():
                timer.join(20)
        return said


def synchronous(how: str) -> Any:
    """What SQLite itself says of it: 2 is full, 1 is normal."""

    def look(backend: SqliteBackend) -> Any:
        with backend._file.reader() as connection:
            return connection.execute("PRAGMA synchronous").fetchone()[0]

    return of_file(look, synchronous=how)


def at_once(pool_size: int) -> bool:
    """Whether a call goes on while another one is under way."""
    has_run = threading.Event()
    patience_s = 20.0 if pool_size > 1 else 0.05

    async def main() -> bool:
        backend = ThreadedBackend(MemoryBackend(), pool_size=pool_size)
        found, _ = await asyncio.gather(
            backend.in_thread(lambda: has_run.wait(patience_s)), backend.in_thread(has_run.set)
        )
        await backend.close()
        return bool(found)

    return asyncio.run(main())


def carried_by(other: bool) -> list[int]:
    """How many items two stores have, one of which is the one on threads."""
    stores = MemoryBackend(), MemoryBackend()
    for each in stores:
        each.create_tables([REGISTRY])

    async def main() -> None:
        backend = ThreadedBackend(stores[other])
        await run_async(write(Put(REGISTRY, {"kind": "a", "name": "b"})), backend)
        await backend.close()

    asyncio.run(main())
    return [len(each.tables.stored(REGISTRY).items) for each in stores]


def closes(owns_blocking: bool) -> bool:
    """Whether the store is closed that was on threads."""

    async def main(blocking: SqliteBackend) -> None:
        await ThreadedBackend(blocking, owns_blocking=owns_blocking).close()

    with in_file() as (backend, _):
        backend.create_tables([REGISTRY])
        asyncio.run(main(backend))
        return bool(refusal(lambda: run(write(Put(REGISTRY, {"kind": "a", "name": "b"})), backend)))


BACKENDS: Rows = {
    "MemoryBackend": {
        "seed": row(lambda seed: MemoryBackend(seed=seed).token(), *SEED),
        "clock": row(lambda clock: MemoryBackend(clock=clock).now().middle_us, *CLOCK),
    },
    "SqliteBackend": {
        "path": row(files, ("a.db", ["a.db"]), ("b.db", ["b.db"])),
        "busy_timeout_s": row(beside_another, (0.01, "Contention"), (20.0, "")),
        "clock": row(lambda clock: of_file(lambda backend: backend.now().middle_us, clock=clock), *CLOCK),
        "seed": row(lambda seed: of_file(lambda backend: backend.token(), seed=seed), *SEED),
        "synchronous": row(synchronous, ("full", 2), ("normal", 1)),
    },
    "ThreadedBackend": {
        "blocking": row(carried_by, (False, [1, 0]), (True, [0, 1])),
        "pool_size": row(at_once, (1, False), (2, True)),
        "owns_blocking": row(closes, (False, False), (True, True)),
    },
}


# --- on DynamoDB ------------------------------------------------------------------------------------------------------


class OnBackend(OnDynamoDB):
    """A service, and an execution store on a backend that goes to it."""

    @contextlib.contextmanager
    def store(self, **options: Any) -> Iterator[Any]:
        """A store on a backend with these options."""
        given = {"endpoint_url": self.service.url, **options}
        if "client" in options:
            del given["endpoint_url"]
        make = casework.AsyncExecutionStore if self.kind.startswith("Async") else casework.ExecutionStore
        with called(make(getattr(dynamodb, self.kind)(**given))) as own:
            yield own

    def looked(self, see: Any, **options: Any) -> Any:
        """What is seen of the backend after it was asked something."""
        with self.store(**options) as store:
            store.load("x")
            return see(store.backend)


def through(w: OnBackend, other: bool) -> list[bool]:
    """Which of two services is asked, to which a client of the user's goes."""
    url = (w.service, w.other)[other].url
    if not w.kind.startswith("Async"):
        w.looked(lambda backend: None, client=client_of(url))
    else:
        asyncio.run(_through(url))
    return [bool(each.requests) for each in (w.service, w.other)]


async def _through(url: str) -> None:
    from tests.servers.clients import dynamodb_async

    async with dynamodb_async(url) as client, casework.AsyncExecutionStore(
        dynamodb.AsyncDynamoDBBackend(client)
    ) as store:  # fmt: skip
        await store.load("x")


def attempts(w: OnBackend, lost_reads_max: int) -> int:
    """How often a read is tried at a service that does not answer."""
    w.service.silent = 100
    with w.store(policy=dynamodb.CallPolicy(lost_reads_max=lost_reads_max)) as store:
        assert refusal(lambda: store.load("x")) == "Unavailable"
    return len(w.service.requests)


def is_old(w: OnBackend, clock: Any) -> bool:
    """Whether it is before 2010."""
    return bool(w.looked(lambda backend: backend.clock.now(), clock=clock).middle_us < 1_262_304_000_000_000)


def counted(w: OnDynamoDB, meter: Any) -> int:
    """How many calls are counted."""
    with w.store(meter=meter) as store:
        store.load("x")
        return 0 if store.backend.meter is None else sum(each.calls for each in store.backend.meter.snapshot().values())


def in_client(name: str) -> Any:
    """What stands in the config of its own client."""
    return lambda backend: getattr(backend._client.meta.config, name)


TRANSPORT = {
    "client": row(through, (False, [True, False]), (True, [False, True])),
    "prefix": row(lambda w, name: w.ask(prefix=name).body["TableName"], ("a", "a_executions"), ("b", "b_executions")),
    "endpoint_url": KEYS["endpoint_url"],
    "region_name": KEYS["region_name"],
    "meter": row(counted, (False, 0), (True, 1)),
    "policy": row(attempts, (1, 1), (3, 3)),
    "concurrency": row(lambda w, most: w.looked(in_client("max_pool_connections"), concurrency=most), (2, 2), (3, 3)),
    "clock": row(is_old, (None, False), (OLD, True)),
    "settings": row(
        lambda w, most_s: w.looked(in_client("read_timeout"), settings={"read_timeout": most_s}), (2, 2), (3, 3)
    ),
    "config": KEYS["config"],
}

ON_SERVICE: Rows = {"DynamoDBBackend": TRANSPORT, "AsyncDynamoDBBackend": TRANSPORT}
"""On a world with a service."""


# --- by a URL ---------------------------------------------------------------------------------------------------------


class OnUrl(OnDynamoDB):
    """A service, and an execution store on the backend that a URL names."""

    @contextlib.contextmanager
    def store(self, **options: Any) -> Iterator[Any]:
        """A store on the backend of a URL with these options."""
        given = {"endpoint": self.service.url, **options}
        url = "dynamodb://?" + "&".join(f"{name}={value}" for name, value in given.items())
        if self.kind == "dynamodb://, async":
            with called(casework.AsyncExecutionStore(open_backend_async(url))) as own:
                yield own
        else:
            with called(casework.ExecutionStore(open_backend(url))) as own:
                yield own


def at(w: OnUrl, other: bool) -> list[bool]:
    """Which of two services is asked."""
    with w.store(endpoint=(w.service, w.other)[other].url) as store:
        store.load("x")
    return [bool(each.requests) for each in (w.service, w.other)]


URL = {
    "region": row(lambda w, name: w.ask(region=name).region, ("eu-west-1", "eu-west-1"), ("r-2", "r-2")),
    "prefix": row(lambda w, name: w.ask(prefix=name).body["TableName"], ("a", "a_executions"), ("b", "b_executions")),
    "endpoint": row(at, (False, [True, False]), (True, [False, True])),
    "meter": row(counted, ("false", 0), ("true", 1)),
}

BY_URL: Rows = {"dynamodb://": URL, "dynamodb://, async": URL}
