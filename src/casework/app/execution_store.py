"""The execution store as a component: bound to a backend, sync and async.

For an engine or an application that has its own runtime. ``SqliteStore`` and ``DynamoDBStore`` block,
``AsyncDynamoDBStore`` is native on an event loop; the operations are those of :mod:`casework.executions.store`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from casework.app.methods import look_like
from casework.app.settings import TRACE_MAX
from casework.app.stores import check_place
from casework.arguments import check_count, check_flag, check_seconds, check_text
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.port import AsyncBackend, Backend, check_backend
from casework.errors import MissingTable, StoreError, Unavailable
from casework.executions import buckets as numbers
from casework.executions import store, store_purging
from casework.executions.store import Shared
from casework.executions.store_items import StoredExecution
from casework.kernel.programs import Program
from casework.kernel.schema import DEFAULT_BUCKETS, MAX_BUCKETS, TABLES

P = ParamSpec("P")
T = TypeVar("T")

RETRY_S = 0.5
"""While a store does not answer yet, it is asked again after this pause."""


def _driven(operation: Callable[Concatenate[Shared, P], Program[T]]) -> Callable[Concatenate[ExecutionStore, P], T]:
    def method(this: ExecutionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(this.shared, *args, **kwargs), this.backend)

    look_like(method, operation)
    return method


def _driven_async(
    operation: Callable[Concatenate[Shared, P], Program[T]],
) -> Callable[Concatenate[AsyncExecutionStore, P], Coroutine[Any, Any, T]]:
    async def method(this: AsyncExecutionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_async(operation(this.shared, *args, **kwargs), this.backend)

    look_like(method, operation)
    return method


def _save(shared: Shared, exe: StoredExecution) -> Program[None]:
    """Store the execution alone; see ``commit``."""
    yield from store.commit(shared, exe)


def _ack_outbox(shared: Shared, entry: Any) -> Program[None]:
    """Remove an emit, by its entry or its ``seq``; harmless when it is gone."""
    yield from store.acknowledge(shared, getattr(entry, "seq", entry))


def _ack_spawn(shared: Shared, entry: Any) -> Program[None]:
    """Remove a spawn, by its entry or its ``seq``; harmless when it is gone."""
    yield from store.acknowledge(shared, getattr(entry, "seq", entry))


def _raise_buckets(shared: Shared, number: int) -> Program[bool]:
    """Give the store more buckets of its indexes, up to 1,024; other processes learn of them by themselves.

    Raises Misuse for a number below the store's: what stands in a bucket must be found there.
    """
    return (yield from numbers.raise_buckets(shared, number))


def _check_numbers(trace_max: int, buckets: int = DEFAULT_BUCKETS) -> None:
    check_count("trace_max", trace_max, 0, TRACE_MAX)
    check_count("buckets", buckets, 1, MAX_BUCKETS)


def _check_making(
    endpoint_url: str | None, region_name: str | None, prefix: str, create_tables: bool, wait_seconds: float,
    trace_max: int,
) -> None:  # fmt: skip
    check_place(endpoint_url, region_name)
    check_text("prefix", prefix, 200, may_be_empty=True)
    check_flag("create_tables", create_tables)
    check_seconds("wait_seconds", wait_seconds)
    _check_numbers(trace_max)


class ExecutionStore:
    """An execution store on a blocking backend. Safe to use from several threads.

    Args:
        backend: the store; its tables must exist.
        trace_max: entries kept in each execution's trace.
        buckets: of the indexes of a new store; the same in every process that uses these tables. ``raise_buckets``
            gives an older one more.
    """

    def __init__(self, backend: Backend, *, trace_max: int = 200, buckets: int = DEFAULT_BUCKETS) -> None:
        check_backend(backend, Backend)
        _check_numbers(trace_max, buckets)
        self.backend = backend
        self.shared = Shared(buckets, trace_max)

    load = _driven(store.load)
    load_for_event = _driven(store.load_for_event)
    save = _driven(_save)
    commit = _driven(store.commit)
    list_executions = _driven(store.list_executions)
    is_processed = _driven(store.is_processed)
    pending_outbox = _driven(store.pending_outbox)
    ack_outbox = _driven(_ack_outbox)
    pending_spawns = _driven(store.pending_spawns)
    ack_spawn = _driven(_ack_spawn)
    due_timers = _driven(store.due_timers)
    delete_timer = _driven(store.delete_timer)
    append_trace = _driven(store.append_trace)
    read_trace = _driven(store.trace_of)
    purge = _driven(store_purging.purge)
    raise_buckets = _driven(_raise_buckets)

    def create_tables(self) -> None:
        """Make the tables that are missing; harmless when all are there."""
        self.backend.create_tables(TABLES)

    def close(self) -> None:
        """Give back the backend; harmless when done twice."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SqliteStore(ExecutionStore):
    """An execution store in one SQLite file, which is made with its tables when it is missing.

    Args:
        path: the file; its folder must exist.
        trace_max: entries kept in each execution's trace.
    """

    def __init__(self, path: str | os.PathLike[str], *, trace_max: int = 200) -> None:
        from casework.backends.sqlite import SqliteBackend

        _check_numbers(trace_max)
        super().__init__(SqliteBackend(path), trace_max=trace_max)
        self.backend.create_tables(TABLES)


class DynamoDBStore(ExecutionStore):
    """An execution store on DynamoDB, over boto3.

    Args:
        client: a boto3 client for DynamoDB; ``close`` leaves it open.
        prefix: of the tables' names.
        trace_max: entries kept in each execution's trace.
    """

    def __init__(self, client: Any, prefix: str = "casework", trace_max: int = 200) -> None:
        from casework.backends.dynamodb.sync import DynamoDBBackend

        check_text("prefix", prefix, 200, may_be_empty=True)
        _check_numbers(trace_max)
        super().__init__(DynamoDBBackend(client, prefix=prefix), trace_max=trace_max)

    @classmethod
    def create(
        cls,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        prefix: str = "casework",
        create_tables: bool = True,
        wait_seconds: float = 30,
        trace_max: int = 200,
    ) -> DynamoDBStore:
        """Make a client and, if wanted, the tables; wait until the service answers.

        Args:
            endpoint_url: another server than AWS; credentials are made up when none are found.
            region_name: the AWS region.
            prefix: of the tables' names.
            create_tables: make the tables that are missing.
            wait_seconds: ask again for so long while nothing answers.
            trace_max: entries kept in each execution's trace.

        Raises:
            Unavailable: nothing answered within ``wait_seconds``; names the endpoint.
        """  # fmt: skip
        from casework.backends.dynamodb.sync import DynamoDBBackend

        _check_making(endpoint_url, region_name, prefix, create_tables, wait_seconds, trace_max)
        backend = DynamoDBBackend(prefix=prefix, endpoint_url=endpoint_url, region_name=region_name)
        made = cls.__new__(cls)
        ExecutionStore.__init__(made, backend, trace_max=trace_max)
        deadline = time.monotonic() + wait_seconds
        try:
            while True:
                try:
                    made._begin(create_tables)
                    return made
                except Unavailable as error:
                    if time.monotonic() >= deadline:
                        raise _no_answer(endpoint_url, wait_seconds, error) from error
                time.sleep(RETRY_S)
        except BaseException:
            backend.close()
            raise

    def _begin(self, create_tables: bool) -> None:
        try:
            self.load("casework-is-there")  # an answer of any kind: making tables is patient with a silent service
        except MissingTable:
            if not create_tables:
                raise
        if create_tables:
            self.backend.create_tables(TABLES)


def _no_answer(endpoint_url: str | None, wait_seconds: float, error: StoreError) -> Unavailable:
    where = endpoint_url or "DynamoDB"
    return Unavailable(f"{where} did not answer within {wait_seconds:g} s: {error}")


class AsyncExecutionStore:
    """An execution store for one event loop; use it in an ``async with`` block, or close it.

    Args:
        backend: the store; its tables must exist.
        trace_max: entries kept in each execution's trace.
        buckets: of the indexes of a new store; the same in every process that uses these tables. ``raise_buckets``
            gives an older one more.
    """

    def __init__(self, backend: AsyncBackend, *, trace_max: int = 200, buckets: int = DEFAULT_BUCKETS) -> None:
        check_backend(backend, AsyncBackend)
        _check_numbers(trace_max, buckets)
        self.backend = backend
        self.shared = Shared(buckets, trace_max)

    load = _driven_async(store.load)
    load_for_event = _driven_async(store.load_for_event)
    save = _driven_async(_save)
    commit = _driven_async(store.commit)
    list_executions = _driven_async(store.list_executions)
    is_processed = _driven_async(store.is_processed)
    pending_outbox = _driven_async(store.pending_outbox)
    ack_outbox = _driven_async(_ack_outbox)
    pending_spawns = _driven_async(store.pending_spawns)
    ack_spawn = _driven_async(_ack_spawn)
    due_timers = _driven_async(store.due_timers)
    delete_timer = _driven_async(store.delete_timer)
    append_trace = _driven_async(store.append_trace)
    read_trace = _driven_async(store.trace_of)
    purge = _driven_async(store_purging.purge)
    raise_buckets = _driven_async(_raise_buckets)

    async def create_tables(self) -> None:
        """Make the tables that are missing; harmless when all are there."""
        await self.backend.create_tables(TABLES)

    async def close(self) -> None:
        """Give back the backend; harmless when done twice."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncDynamoDBStore(AsyncExecutionStore):
    """An execution store on DynamoDB, native over aiobotocore.

    Args:
        client: an aiobotocore client for DynamoDB, left open by ``close``; None: one of its own.
        prefix: of the tables' names.
        trace_max: entries kept in each execution's trace.
        endpoint_url: of the client of its own: another server than AWS.
        region_name: of the client of its own.
    """

    def __init__(
        self, client: Any = None, prefix: str = "casework", trace_max: int = 200, *, endpoint_url: str | None = None,
        region_name: str | None = None,
    ) -> None:  # fmt: skip
        from casework.backends.dynamodb.aio import AsyncDynamoDBBackend

        check_place(endpoint_url, region_name)
        check_text("prefix", prefix, 200, may_be_empty=True)
        _check_numbers(trace_max)
        backend = AsyncDynamoDBBackend(client, prefix=prefix, endpoint_url=endpoint_url, region_name=region_name)
        self._endpoint_url = endpoint_url
        super().__init__(backend, trace_max=trace_max)

    @classmethod
    async def create(
        cls,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        prefix: str = "casework",
        create_tables: bool = True,
        wait_seconds: float = 30,
        trace_max: int = 200,
    ) -> AsyncDynamoDBStore:
        """As :meth:`DynamoDBStore.create`, on the running loop."""  # fmt: skip
        _check_making(endpoint_url, region_name, prefix, create_tables, wait_seconds, trace_max)
        made = cls(None, prefix, trace_max, endpoint_url=endpoint_url, region_name=region_name)
        deadline = time.monotonic() + wait_seconds
        try:
            while True:
                try:
                    await made._begin(create_tables)
                    return made
                except Unavailable as error:
                    if time.monotonic() >= deadline:
                        raise _no_answer(endpoint_url, wait_seconds, error) from error
                await asyncio.sleep(RETRY_S)
        except BaseException:
            await made.close()
            raise

    async def _begin(self, create_tables: bool) -> None:
        try:
            await self.load("casework-is-there")
        except MissingTable:
            if not create_tables:
                raise
        if create_tables:
            await self.backend.create_tables(TABLES)
