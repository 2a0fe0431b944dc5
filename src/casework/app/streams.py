"""The stream store: streams on a blocking backend. ``app.streams`` is one; it can be used without the rest, too."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from casework.app.methods import look_like
from casework.arguments import check_instance, check_seconds
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.backends.port import Backend, check_backend
from casework.backends.threaded import ThreadedBackend
from casework.backends.user_calls import UserCalls
from casework.errors import Misuse
from casework.kernel.effects import Flag
from casework.kernel.programs import Program
from casework.streams import cursors, groups, marks, read, retention, waiting
from casework.streams.consumer import Consumer, ConsumerOptions, Handler, consume
from casework.streams.cursors import Cursor, Parked
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

log_ = logging.getLogger("casework.streams")

PAGE_OPS = 1000
"""Operations read at once while iterating."""

TAIL_WAIT_S = 20.0


def _driven(operation: Callable[Concatenate[Log, P], Program[T]]) -> Callable[Concatenate[StreamStore, P], T]:
    def method(this: StreamStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(this.log, *args, **kwargs), this.backend)

    look_like(method, operation)
    return method


def parked(log: Log, group: str, stream: str, *, limit: int = 100, after: int = 0) -> Program[list[Parked]]:
    """Operations that a group put aside because its handler failed too often, in order, from behind ``after`` on."""
    return (yield from cursors.parked_ops(group, stream, limit=limit, after=after))


def unpark(log: Log, group: str, stream: str, seq: int) -> Program[None]:
    """Forget a parked operation, once it has been dealt with."""
    yield from cursors.unpark(group, stream, seq)


def resume(log: Log, group: str, stream: str, *, skip: bool = False) -> Program[Cursor]:
    """Let a stopped group go on, at the operation that failed, or with ``skip`` behind it; the cursor afterwards."""
    return (yield from cursors.resume(group, stream, skip=skip))


def cursor(log: Log, group: str, stream: str) -> Program[Cursor]:
    """How far a group has come in a stream."""
    return (yield from cursors.read_cursor(group, stream))


def truncate(
    log: Log, stream: str, upto: int, *, repush_window_s: float = retention.REPUSH_WINDOW_S
) -> Program[retention.Truncated]:
    """Remove the operations up to number ``upto``. Can be repeated, and goes on where another run of it ended.

    The segment that ends at the head stays, and so does what is younger than ``repush_window_s`` seconds, with its
    claims: until then a repeated push is recognised. Both are below the floor all the same.

    Raises Misuse when ``upto`` is above the head.
    """
    check_seconds("repush_window_s", repush_window_s)
    return (yield from retention.truncate(log, stream, upto, repush_window_s=repush_window_s))


class StreamStore:
    """Streams on a blocking backend. Safe to use from several threads, whose appends share transactions.

    Args:
        backend: the store; its tables must exist.
        options: settings, the same in every process that uses these streams.
        writer: shares the appends and what is known of the streams with another store of this process.
    """

    def __init__(self, backend: Backend, *, options: StreamOptions | None = None, writer: Writer | None = None) -> None:
        check_backend(backend, Backend)
        if options is not None:
            check_instance("options", options, StreamOptions, "a casework.StreamOptions(...)")
        self.backend = backend
        self._writer = writer or Writer(Log(options))
        self.log = self._writer.log

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
    cursor = _driven(cursor)
    parked = _driven(parked)
    unpark = _driven(unpark)
    resume = _driven(resume)
    seek = _driven(groups.seek)
    replay_parked = _driven(groups.replay_parked)
    groups = _driven(groups.list_groups)

    def append(
        self, stream: str, ops: Sequence[Op], *, deadline_s: float | None = None, expected_seq: int | None = None
    ) -> Sequence[Appended]:
        """Store operations at the end of a stream, in their order; what became of each, in the same order.

        Appends of other threads to the same stream share the transaction.

        Args:
            stream: its id; it begins to exist with its first operation.
            ops: from none to thousands. What one transaction does not hold goes into several, one after the other.
            deadline_s: begin no transaction later than this, but for one behind what had been stored before: so each
                repeat goes further.
            expected_seq: store them only if the stream ends at this number, 0 where it must not exist yet; all of them
                in one transaction, or none. A repeat of what is stored is answered all the same. None: anywhere.

        Raises:
            Misuse, ItemTooLarge: an id or an operation is wrong; nothing was written.
            UnexpectedSeq: the stream ends elsewhere; nothing was stored.
            OpIdReused: an operation's id is taken by other content; what was before it in the list is stored.
            AppendTimeout, AppendContention, AppendUnknown: stopped on the way; append the same again.
            StreamDamaged, StreamFull: the stream needs a person.
        """
        return run(self._writer.append(stream, ops, deadline_s=deadline_s, expected_seq=expected_seq), self.backend)

    def read(self, stream: str, after: int = 0, limit: int | None = None, *, mark: str = "") -> Iterator[Op]:
        """Every operation after number ``after`` that can be read now, in order, without a hole.

        Args:
            stream: its id; one that does not exist yet has no operations.
            after: the cursor: the ``seq`` of the last operation that was dealt with, 0 at the beginning.
            limit: at most so many, 1 or more; None: to the end.
            mark: of the cursor, from :meth:`mark` or the page that ended there; empty: whatever log it is.

        Raises Misuse at once; CursorTooOld, CursorAhead, StreamDamaged; LogChanged, when the log is not that of
        the mark, or becomes another one meanwhile.
        """
        check_stream(stream)
        check_after(after)
        check_limit(limit)
        check_mark(mark)
        return self._read(stream, after, limit, mark)

    def _read(self, stream: str, after: int, limit: int | None, mark: str) -> Iterator[Op]:
        left = limit
        while left is None or left > 0:
            page = self.page(stream, after, PAGE_OPS if left is None else min(PAGE_OPS, left), mark=mark)
            yield from page.ops
            if page.next_after == after:
                return
            after, mark = page.next_after, page.mark
            left = None if left is None else left - len(page.ops)

    def tail(self, stream: str, after: int = 0, *, stop: Flag | None = None, mark: str = "") -> Iterator[Op]:
        """Every operation after number ``after``, and then every one that is appended, for ever, or until ``stop``.

        Waiting readers of one process share one poll. Raises as :meth:`read` does.
        """
        check_stream(stream)
        check_after(after)
        check_stop(stop)
        check_mark(mark)
        return self._tail(stream, after, stop, mark)

    def _tail(self, stream: str, after: int, stop: Flag | None, mark: str) -> Iterator[Op]:
        with Watcher(self.log, stream) as watcher:
            while stop is None or not stop.is_set:
                page = run(
                    waiting.wait_again(
                        self.log, watcher, after, PAGE_OPS, wait_s=TAIL_WAIT_S, stop=stop, mark=mark
                    ), self.backend
                )  # fmt: skip
                yield from page.ops
                after, mark = page.next_after, page.mark

    def writer(self) -> BufferedWriter:
        """A writer that collects operations into whole transactions, for a ``with`` block, whose end flushes it."""
        return BufferedWriter(self)

    def consumer(self, group: str, streams: Sequence[str], handler: Handler, **options: Any) -> ConsumerThread:
        """A consumer on a thread of its own, for a ``with`` block; ``options`` are those of ``ConsumerOptions``.

        Args:
            group: name of the cursors; consumers of one group, here or in other processes, share the streams.
            streams: the same list in each consumer of the group.
            handler: called with each operation and a :class:`casework.streams.consumer.HandlerWrites`.
            options: settings.
        """
        return ConsumerThread(self, Consumer(self.log, group, streams, handler, consumer_options(options)))

    def close(self) -> None:
        """Give back the backend; harmless when done twice. Not for ``app.streams``, whose backend is the app's."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def consumer_options(options: dict[str, Any]) -> ConsumerOptions:
    """The options of a consumer; Misuse for unknown ones and for what cannot be."""
    try:
        return ConsumerOptions(**options)
    except TypeError as error:
        raise Misuse(f"consumer options: {error}; known: {', '.join(ConsumerOptions.__struct_fields__)}") from None


class BufferedWriter:
    """Collects operations into whole transactions. ``put`` returns at once, but for one call in a transaction's worth.

    A ``with`` block flushes at its end, unless it ends with an error.
    """

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self._writer = Writer(store.log)

    def put(self, stream: str, *ops: Op) -> None:
        """Put operations behind those that wait. An error of theirs is raised by ``flush``."""
        run(self._writer.put(stream, ops), self._store.backend)

    def flush(self) -> None:
        """Store all that was put; raises the first error among it, as ``append`` does."""
        run(self._writer.flush(), self._store.backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()


class ConsumerThread:
    """A consumer on a thread of its own, with an event loop of its own, for the length of a ``with`` block."""

    def __init__(self, store: StreamStore, consumer: Consumer) -> None:
        self.consumer = consumer
        self._backend = store.backend
        self._thread = threading.Thread(target=self._carry, name=f"casework-{consumer.group}", daemon=True)
        self._error: BaseException | None = None

    def _carry(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            log_.critical("the consumer ended: %s: %s", type(error).__name__, error, exc_info=error)

    async def _work(self) -> None:
        threaded = ThreadedBackend(self._backend, pool_size=min(64, len(self.consumer.streams) + 4))
        calls = UserCalls()
        try:
            await run_async(consume(self.consumer), threaded, step_limit=None, calls=calls)
        finally:
            calls.close()
            await threaded.close()

    def run(self) -> None:
        """Carry the consumer in the calling thread until ``consumer.stop`` is set; safe to set in a signal handler."""
        asyncio.run(self._work())

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self.consumer

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.consumer.stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
