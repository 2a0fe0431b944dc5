"""The idempotency store as a component: bound to a backend, sync and async.

``IdempotencyStore`` and its subclasses block, ``AsyncIdempotencyStore`` and its subclasses are for event loops; the
operations are those of :mod:`casework.idempotency`, and the surfaces (decorator, HTTP, queues) take any of them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from casework.app.idempotency_memory import MemoryRecords
from casework.app.methods import look_like
from casework.app.stores import check_place
from casework.arguments import check_count, check_flag, check_seconds, check_text
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.port import AsyncBackend, Backend, check_backend
from casework.backends.surroundings import Clock, HostClock, VirtualClock, host_steady_us
from casework.backends.threaded import ThreadedBackend
from casework.errors import Misuse
from casework.idempotency import lifecycle, operating, waiting
from casework.idempotency.bounded import bounded
from casework.idempotency.lifecycle import Shared
from casework.idempotency.record import DONE, ClaimResult
from casework.kernel.items import Table
from casework.kernel.programs import Program
from casework.kernel.schema import IDEMPOTENCY

P = ParamSpec("P")
T = TypeVar("T")


def _driven(operation: Callable[Concatenate[Shared, P], Program[T]]) -> Callable[Concatenate[IdempotencyStore, P], T]:
    def method(this: IdempotencyStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return this.run(operation(this.shared, *args, **kwargs))

    look_like(method, operation)
    return method


def _driven_async(
    operation: Callable[Concatenate[Shared, P], Program[T]],
) -> Callable[Concatenate[AsyncIdempotencyStore, P], Coroutine[Any, Any, T]]:
    async def method(this: AsyncIdempotencyStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await this.run(operation(this.shared, *args, **kwargs))

    look_like(method, operation)
    return method


def _claim(
    shared: Shared, key: str, fingerprint: str, fingerprint_version: int, lease_ttl_seconds: float
) -> Program[ClaimResult]:
    """Take the key if it is free, or its lease has lapsed, or its result has expired; else say who has it.

    Args:
        key: what identifies the operation, 1 to 2048 bytes.
        fingerprint: of the payload.
        fingerprint_version: of the way in which the fingerprint was made.
        lease_ttl_seconds: the claim can be taken over so long after its last renewal.

    Raises:
        NewerFormat: the record was written by a newer casework; it is left as it is.
        ResultLost: the record is completed, but a part of its result is missing.
        Contention: too many races were lost in a row.
    """  # fmt: skip
    return (yield from lifecycle.claim(shared, key, fingerprint, fingerprint_version, lease_ttl_seconds))


_claim.__name__ = "claim"


CONNECT_TIMEOUT_S = 5


def steady_clock(backend: Any) -> Callable[[], int]:
    """The steady clock beside a backend's time: the host's, or the virtual one where time is virtual."""
    clock = getattr(getattr(backend, "blocking", backend), "clock", None)
    if isinstance(clock, VirtualClock):
        return lambda: clock.now().middle_us
    return host_steady_us


def _check_grace(lease_grace_seconds: int) -> None:
    check_count("lease_grace_seconds", lease_grace_seconds, 0, 10 * 366 * 86_400)


class IdempotencyStore:
    """An idempotency store on a blocking backend. Safe to use from several threads, and after a fork.

    Args:
        backend: the store; its tables must exist.
        lease_grace_seconds: claims and results outlive their end by so much before the store may forget them.
    """

    def __init__(self, backend: Backend, *, lease_grace_seconds: int = 60) -> None:
        check_backend(backend, Backend)
        _check_grace(lease_grace_seconds)
        self.backend = backend
        self.shared = Shared(steady_clock(backend), grace_s=lease_grace_seconds)
        self._threaded: ThreadedBackend | None = None
        self._threaded_pid = 0

    claim = _driven(_claim)
    complete = _driven(lifecycle.complete)
    release = _driven(lifecycle.release)
    renew = _driven(lifecycle.renew)
    wait_for_completion = _driven(waiting.wait_for_completion)
    get = _driven(operating.get_record)
    force_release = _driven(operating.force_release)
    purge = _driven(operating.purge)
    purge_expired = _driven(operating.purge_expired)

    def run(self, program: Program[T]) -> T:
        """Carry a program of this store on the calling thread."""
        return run(program, self.backend)

    async def run_on_loop(self, program: Program[T]) -> T:
        """Carry a program of this store on the running loop; its calls to the store run in threads beside it."""
        return await run_async(program, self._on_loop())

    def _on_loop(self) -> AsyncBackend:
        if self._threaded is None or self._threaded_pid != os.getpid():
            self._threaded, self._threaded_pid = ThreadedBackend(self.backend), os.getpid()
        return self._threaded

    def close(self) -> None:
        """Give back the backend; harmless when done twice."""
        threaded, self._threaded = self._threaded, None
        if threaded is not None and self._threaded_pid == os.getpid():
            threaded.shut_down()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class MemoryIdempotencyStore(IdempotencyStore):
    """An idempotency store in this process's memory, for tests and single processes; gone at the process's end.

    Args:
        clock: a :class:`~casework.backends.surroundings.VirtualClock` makes time stand still until it is moved.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(MemoryBackend(clock=clock))
        own = clock or HostClock()
        self.records = MemoryRecords(lambda: own.now().earliest_us)
        self.shared = Shared(steady_clock(self.backend), direct=self.records)

    def claim(  # the one short cut: a replay is a look at a dict, and driving a program would double its price
        self, key: str, fingerprint: str, fingerprint_version: int, lease_ttl_seconds: float
    ) -> ClaimResult:
        """As :meth:`IdempotencyStore.claim`."""
        found = self.records.completed(key)
        if found is not None:
            return ClaimResult(DONE, found, None)
        return super().claim(key, fingerprint, fingerprint_version, lease_ttl_seconds)


class SqliteIdempotencyStore(IdempotencyStore):
    """An idempotency store in one SQLite file, which is made with its table when it is missing.

    Args:
        path: the file; its folder must exist.
        lease_grace_seconds: as for :class:`IdempotencyStore`.
    """

    def __init__(self, path: str | os.PathLike[str], *, lease_grace_seconds: int = 60) -> None:
        from casework.backends.sqlite import SqliteBackend

        _check_grace(lease_grace_seconds)
        super().__init__(SqliteBackend(path), lease_grace_seconds=lease_grace_seconds)
        self.backend.create_tables((IDEMPOTENCY,))


class _LazyTable:
    """A DynamoDB table that is made when it is first needed; when that fails, the next call tries again."""

    def __init__(self, table: str | None, create: bool) -> None:
        name = "casework_idempotency" if table is None else table
        check_text("table", name, 255)
        self.table = Table(name=name, partition=IDEMPOTENCY.partition, sort=IDEMPOTENCY.sort, ttl=IDEMPOTENCY.ttl)
        self.is_pending = create


class DynamoDBIdempotencyStore(IdempotencyStore):
    """An idempotency store on DynamoDB, over boto3. Nothing is contacted before the first call.

    Args:
        table: name of the table; None: ``casework_idempotency``.
        client: a boto3 client for DynamoDB, left open by ``close``; None: one of its own, made again after a fork.
        endpoint_url: of the client of its own: another server than AWS.
        region_name: of the client of its own.
        create_table: make the table when it is missing, and see to its TTL, before the first call.
        lease_grace_seconds: as for :class:`IdempotencyStore`.
        connect_timeout: seconds to connect, of the client of its own.
        read_timeout: seconds to wait for an answer, of the client of its own; of yours, those that you gave it.
        max_retries: attempts at a call that found nobody or no answer, before ``Unavailable``. Of a service that never
            answers, every method hears within ``(max_retries + 1) x read_timeout`` and a second.
        config: a ``botocore.config.Config`` of yours, merged over that of the client of its own.
        clock: the service's time; for tests.
    """

    def __init__(
        self, *, table: str | None = None, client: Any = None, endpoint_url: str | None = None,
        region_name: str | None = None, create_table: bool = True, lease_grace_seconds: int = 60,
        connect_timeout: float = CONNECT_TIMEOUT_S, read_timeout: float = 10, max_retries: int = 3, config: Any = None,
        clock: Any = None,
    ) -> None:  # fmt: skip
        from casework.backends.dynamodb.sync import DynamoDBBackend

        _check_client(endpoint_url, region_name, create_table, connect_timeout, read_timeout)
        _check_grace(lease_grace_seconds)
        backend = DynamoDBBackend(
            client, prefix="", endpoint_url=endpoint_url, region_name=region_name, clock=clock,
            policy=_call_policy(max_retries, read_timeout), config=config,
            settings=_settings(client, connect_timeout, read_timeout),
        )  # fmt: skip
        super().__init__(backend, lease_grace_seconds=lease_grace_seconds)
        self._lazy = _LazyTable(table, create_table)
        self._silence_us = _silence_us(max_retries, read_timeout)
        self.shared.table = self._lazy.table

    def run(self, program: Program[T]) -> T:
        """Carry a program of this store, making its table first where that is still to be done."""
        if self._lazy.is_pending:
            self._make_table()
        return run(bounded(program, self._silence_us, self.shared.steady_us), self.backend)

    async def run_on_loop(self, program: Program[T]) -> T:
        """As :meth:`IdempotencyStore.run_on_loop`."""
        if self._lazy.is_pending:
            await self._on_loop().in_thread(self._make_table)
        return await super().run_on_loop(bounded(program, self._silence_us, self.shared.steady_us))

    def _make_table(self) -> None:
        self.backend.create_tables((self._lazy.table,))
        self._lazy.is_pending = False


def _call_policy(max_retries: int, read_timeout: float) -> Any:
    from casework.backends.dynamodb.plan import CallPolicy

    check_count("max_retries", max_retries, 0, 100)
    deadline_s = _silence_us(max_retries, read_timeout) / 1e6
    most = max_retries + 1
    return CallPolicy(unsent_max=most, lost_reads_max=most, control_max=most, deadline_s=deadline_s)


def _silence_us(max_retries: int, read_timeout: float) -> int:
    """Nothing more is sent to a store that has been silent for so long: a call ends within ``(max_retries + 1) x
    read_timeout`` and a second.
    """
    return round((max_retries * read_timeout + 0.5) * 1e6)


def _settings(client: Any, connect_timeout: float, read_timeout: float) -> dict[str, float] | None:
    """Of a client of the store's own; Misuse for a time to connect where one of the user's was given."""
    if client is None:
        return {"connect_timeout": connect_timeout, "read_timeout": read_timeout}
    if connect_timeout != CONNECT_TIMEOUT_S:
        raise Misuse("connect_timeout: that is for a client of the store's own, and one was given; make yours with it")
    return None


def _check_client(
    endpoint_url: str | None, region_name: str | None, create_table: bool, connect_timeout: float, read_timeout: float
) -> None:
    check_place(endpoint_url, region_name)
    check_flag("create_table", create_table)
    check_seconds("connect_timeout", connect_timeout, above=True)
    check_seconds("read_timeout", read_timeout, 0, 300, above=True)


class AsyncIdempotencyStore:
    """An idempotency store for event loops; use it in an ``async with`` block, or close it.

    Args:
        backend: the store; its tables must exist.
        lease_grace_seconds: as for :class:`IdempotencyStore`.
    """

    def __init__(self, backend: AsyncBackend, *, lease_grace_seconds: int = 60) -> None:
        check_backend(backend, AsyncBackend)
        _check_grace(lease_grace_seconds)
        self.backend = backend
        self.shared = Shared(steady_clock(backend), grace_s=lease_grace_seconds)

    claim = _driven_async(_claim)
    complete = _driven_async(lifecycle.complete)
    release = _driven_async(lifecycle.release)
    renew = _driven_async(lifecycle.renew)
    wait_for_completion = _driven_async(waiting.wait_for_completion)
    get = _driven_async(operating.get_record)
    force_release = _driven_async(operating.force_release)
    purge = _driven_async(operating.purge)

    async def run(self, program: Program[T]) -> T:
        """Carry a program of this store on the running loop."""
        return await run_async(program, self.backend)

    async def run_on_loop(self, program: Program[T]) -> T:
        """Carry a program of this store on the running loop."""
        return await self.run(program)

    async def close(self) -> None:
        """Give back the backend; harmless when done twice."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncDynamoDBIdempotencyStore(AsyncIdempotencyStore):
    """An idempotency store on DynamoDB, native over aiobotocore. Nothing is contacted before the first call.

    It works on any number of event loops, one after the other or in several threads: each has a client of its own,
    which ``close_loop`` on that loop gives back. ``close`` gives back the running loop's and ends the store. A client
    that was handed in belongs to its own loop.

    Arguments are those of :class:`DynamoDBIdempotencyStore`; ``client`` is an aiobotocore client.
    """

    def __init__(
        self, *, table: str | None = None, client: Any = None, endpoint_url: str | None = None,
        region_name: str | None = None, create_table: bool = True, lease_grace_seconds: int = 60,
        connect_timeout: float = CONNECT_TIMEOUT_S, read_timeout: float = 10, max_retries: int = 3, config: Any = None,
        clock: Any = None,
    ) -> None:  # fmt: skip
        from casework.backends.dynamodb.aio import AsyncDynamoDBBackend
        from casework.backends.dynamodb.client import check_own
        from casework.backends.dynamodb.clock import ServiceClock

        _check_client(endpoint_url, region_name, create_table, connect_timeout, read_timeout)
        _check_grace(lease_grace_seconds)
        clock = clock or ServiceClock()
        self._make = functools.partial(
            AsyncDynamoDBBackend, client, prefix="", endpoint_url=endpoint_url, region_name=region_name, clock=clock,
            policy=_call_policy(max_retries, read_timeout), config=config,
            settings=_settings(client, connect_timeout, read_timeout),
        )  # fmt: skip
        check_own(client, endpoint_url=endpoint_url, region_name=region_name, config=config)
        self._lazy = _LazyTable(table, create_table)
        self._silence_us = _silence_us(max_retries, read_timeout)
        self._is_closed = False
        self._backends: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncBackend] = weakref.WeakKeyDictionary()
        self.shared = Shared(host_steady_us, table=self._lazy.table, grace_s=lease_grace_seconds)

    def _on_loop(self) -> AsyncBackend:
        if self._is_closed:
            raise Misuse("this idempotency store was closed; make another, or use close_loop() where a loop ends")
        loop = asyncio.get_running_loop()
        found = self._backends.get(loop)
        if found is None:
            found = self._backends[loop] = self._make()
        return found

    async def run(self, program: Program[T]) -> T:
        """Carry a program of this store, making its table first where that is still to be done."""
        backend = self._on_loop()
        if self._lazy.is_pending:
            await backend.create_tables((self._lazy.table,))
            self._lazy.is_pending = False
        return await run_async(bounded(program, self._silence_us, self.shared.steady_us), backend)

    async def close_loop(self) -> None:
        """Give back the client of the running loop, which is about to end; another loop's next call makes another."""
        backend = self._backends.pop(asyncio.get_running_loop(), None)
        if backend is not None:
            await backend.close()

    async def close(self) -> None:
        """Give back the client of the running loop, and take no more calls; harmless when done twice."""
        self._is_closed = True
        await self.close_loop()
