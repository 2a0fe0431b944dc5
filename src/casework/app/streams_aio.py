"""The stream store for one event loop: the same operations as :mod:`casework.app.streams`, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from casework.app import streams as blocking
from casework.app.methods import look_like
from casework.app.streams import PAGE_OPS, TAIL_WAIT_S, consumer_options, truncate
from casework.arguments import check_instance
from casework.backends.drive_async import run_async
from casework.backends.port import AsyncBackend, check_backend
from casework.backends.user_calls import UserCalls
from casework.kernel.effects import Flag
from casework.kernel.programs import Program
from casework.streams import cursors, groups, marks, read, retention, waiting
from casework.streams.append import Pending
from casework.streams.consumer import Consumer, Handler, consume
from casework.streams.log import (
    Appended,
    Log,
    Op,
    StreamOptions,
    Watcher,
    check_after,
    check_limit,
    check_stop,
    check_stream,
)
from casework.streams.marks import check_mark
from casework.streams.writer import Writer

P = ParamSpec("P")
T = TypeVar("T")


def _driven(
    operation: Callable[Concatenate[Log, P], Program[T]],
) -> Callable[Concatenate[AsyncStreamStore, P], Coroutine[Any, Any, T]]:
    async def method(this: AsyncStreamStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_async(operation(this.log, *args, **kwargs), this.backend)

    look_like(method, operation)
    return method


class AsyncStreamStore:
    """Streams for one event loop, whose tasks' appends share transactions.

    Args:
        backend: the store; its tables must exist.
        options: settings, the same in every process that uses these streams.
        writer: shares the appends and what is known of the streams with another store of this loop.
    """

    def __init__(
        self, backend: AsyncBackend, *, options: StreamOptions | None = None, writer: Writer | None = None
    ) -> None:
        check_backend(backend, AsyncBackend)
        if options is not None:
            check_instance("options", options, StreamOptions, "a casework.StreamOptions(...)")
        self.backend = backend
        self._writer = writer or Writer(Log(options))
        self.log = self._writer.log
        self._late: set[asyncio.Task[Any]] = set()

    page = _driven(read.read_page)
    wait = _driven(waiting.wait_page)
    head = _driven(read.read_head)
    mark = _driven(marks.mark_of)
    list = _driven(retention.list_streams)
    truncate = _driven(truncate)
    snapshot = _driven(retention.put_snapshot)
    load_snapshot = _driven(retention.get_snapshot)
    repair = _driven(retention.repair)
    lag = _driven(cursors.lag)
    cursor = _driven(blocking.cursor)
    parked = _driven(blocking.parked)
    unpark = _driven(blocking.unpark)
    resume = _driven(blocking.resume)
    seek = _driven(groups.seek)
    replay_parked = _driven(groups.replay_parked)
    groups = _driven(groups.list_groups)

    async def append(
        self, stream: str, ops: Sequence[Op], *, deadline_s: float | None = None, expected_seq: int | None = None
    ) -> Sequence[Appended]:
        """As :meth:`casework.app.streams.StreamStore.append`; the deadline ends the wait for an answer, too.

        Operations whose answer had not come by then are in the error's ``unknown``: they may be stored all the same.
        """
        shown: list[Pending] = []
        program = self._writer.append(stream, ops, deadline_s=deadline_s, expected_seq=expected_seq, shown=shown)
        if deadline_s is None:
            return await run_async(program, self.backend)
        task = asyncio.create_task(run_async(program, self.backend))
        try:
            await asyncio.wait({task}, timeout=deadline_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        self._late.add(task)  # its round in flight comes to its end; its answer is nobody's any more
        task.add_done_callback(self._forget)
        raise self._writer.timeout(stream, shown)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()

    def read(self, stream: str, after: int = 0, limit: int | None = None, *, mark: str = "") -> AsyncIterator[Op]:
        """As :meth:`casework.app.streams.StreamStore.read`, for ``async for``."""
        check_stream(stream)
        check_after(after)
        check_limit(limit)
        check_mark(mark)
        return self._read(stream, after, limit, mark)

    async def _read(self, stream: str, after: int, limit: int | None, mark: str) -> AsyncIterator[Op]:
        left = limit
        while left is None or left > 0:
            page = await self.page(stream, after, PAGE_OPS if left is None else min(PAGE_OPS, left), mark=mark)
            for op in page.ops:
                yield op
            if page.next_after == after:
                return
            after, mark = page.next_after, page.mark
            left = None if left is None else left - len(page.ops)

    async def tail(self, stream: str, after: int = 0, *, stop: Flag | None = None, mark: str = "") -> AsyncIterator[Op]:
        """As :meth:`casework.app.streams.StreamStore.tail`, for ``async for``."""
        check_stream(stream)
        check_after(after)
        check_stop(stop)
        check_mark(mark)
        with Watcher(self.log, stream) as watcher:
            while stop is None or not stop.is_set:
                page = await run_async(
                    waiting.wait_again(
                        self.log, watcher, after, PAGE_OPS, wait_s=TAIL_WAIT_S, stop=stop, mark=mark
                    ), self.backend
                )  # fmt: skip
                for op in page.ops:
                    yield op
                after, mark = page.next_after, page.mark

    def writer(self) -> AsyncBufferedWriter:
        """As :meth:`casework.app.streams.StreamStore.writer`, for ``async with``."""
        return AsyncBufferedWriter(self)

    def consumer(self, group: str, streams: Sequence[str], handler: Handler, **options: Any) -> ConsumerTask:
        """As :meth:`casework.app.streams.StreamStore.consumer`, a task of the running loop, for ``async with``."""
        return ConsumerTask(self, Consumer(self.log, group, streams, handler, consumer_options(options)))

    async def settle(self) -> None:
        """Wait for appends whose callers gave up at their deadline."""
        while self._late:
            await asyncio.wait(set(self._late))

    async def close(self) -> None:
        """Give back the backend; harmless when done twice. Not for ``app.streams``, whose backend is the app's."""
        await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncBufferedWriter:
    """Collects operations into whole transactions; an ``async with`` block that ends without an error flushes."""

    def __init__(self, store: AsyncStreamStore) -> None:
        self._store = store
        self._writer = Writer(store.log)

    async def put(self, stream: str, *ops: Op) -> None:
        """Put operations behind those that wait. An error of theirs is raised by ``flush``."""
        await run_async(self._writer.put(stream, ops), self._store.backend)

    async def flush(self) -> None:
        """Store all that was put; raises the first error among it, as ``append`` does."""
        await run_async(self._writer.flush(), self._store.backend)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            await self.flush()


class ConsumerTask:
    """A consumer as a task of the running loop, for the length of an ``async with`` block."""

    def __init__(self, store: AsyncStreamStore, consumer: Consumer) -> None:
        self.consumer = consumer
        self._backend = store.backend
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Consumer:
        self._task = asyncio.create_task(self._work())
        return self.consumer

    async def _work(self) -> None:
        calls = UserCalls(asyncio.get_running_loop())
        try:
            await run_async(consume(self.consumer), self._backend, step_limit=None, calls=calls)
        finally:
            calls.close()

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.consumer.stop.set()
        if self._task is not None:
            await self._task
