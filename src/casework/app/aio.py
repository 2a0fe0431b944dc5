"""The async facade: :class:`AsyncApp`, made by ``casework.open_async``. The same operations, with ``await``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from casework.app import operations
from casework.app.arguments import check_rest, make_options
from casework.app.core import Core
from casework.app.idempotency_store import AsyncIdempotencyStore
from casework.app.methods import look_like
from casework.app.settings import read_settings, write_settings
from casework.app.stores import is_embedded, open_backend_async, store_url
from casework.app.streams_aio import AsyncStreamStore
from casework.app.sync import checked_worker
from casework.app.transaction import AsyncTransaction
from casework.app.workers import WorkerTask
from casework.backends.drive_async import run_async
from casework.backends.port import AsyncBackend
from casework.errors import MissingTable, Misuse
from casework.executions.runtime import Codec
from casework.executions.worker import WorkerOptions
from casework.kernel.programs import Program
from casework.kernel.schema import DEFAULT_BUCKETS, TABLES
from casework.statechart import Machine
from casework.streams.log import StreamOptions

P = ParamSpec("P")
T = TypeVar("T")


def _driven(
    operation: Callable[Concatenate[Core, P], Program[T]],
) -> Callable[Concatenate[AsyncApp, P], Coroutine[Any, Any, T]]:
    """The coroutine method that drives an operation."""

    async def method(app: AsyncApp, /, *args: P.args, **kwargs: P.kwargs) -> T:
        app.check_is_open()
        return await run_async(operation(app.core, *args, **kwargs), app.backend)

    look_like(method, operation)
    return method


class AsyncApp:
    """An application on a store, for one event loop. Use it in an ``async with`` block, which opens and closes it.

    Made by :func:`casework.open_async`.
    """

    def __init__(self, core: Core, backend: AsyncBackend, *, owns_backend: bool, create: bool) -> None:
        self.core = core
        self.backend = backend
        """The store itself: ``app.backend.create_tables([...])`` makes tables of your own."""
        self._owns_backend = owns_backend
        self.idempotency = AsyncIdempotencyStore(backend)
        """The idempotency records of this store; see ``casework.idempotent``."""
        self.streams = AsyncStreamStore(backend, writer=core.writer)
        """The streams of this store."""
        self._create = create
        self._is_open = False

    start = _driven(operations.start)
    send = _driven(operations.send)
    handle = _driven(operations.handle)
    get = _driven(operations.get)
    inspect = _driven(operations.inspect)
    child_results = _driven(operations.child_results)
    wait = _driven(operations.wait)
    list = _driven(operations.list_executions)
    dead_letters = _driven(operations.dead_letters)
    trace = _driven(operations.trace)
    cancel = _driven(operations.cancel)
    terminate = _driven(operations.terminate)
    suspend = _driven(operations.suspend)
    resume = _driven(operations.resume)
    retry = _driven(operations.retry)
    redrive = _driven(operations.redrive)
    migrate = _driven(operations.migrate)
    purge = _driven(operations.purge)
    purge_ended = _driven(operations.purge_ended)
    complete_task = _driven(operations.complete_task)
    fail_task = _driven(operations.fail_task)
    raise_buckets = _driven(operations.raise_buckets)

    def transaction(self) -> AsyncTransaction:
        """One transaction, any mix: ``async with app.transaction() as tx``; see ``casework.app.transaction``."""
        self.check_is_open()
        return AsyncTransaction(self)

    def worker(
        self, *, poll_s: float = 1.0, concurrency: int = 16, group: int = 256, drain_s: float = 30.0,
        lease_s: float = 30.0, heartbeat_s: float = 5.0,
    ) -> WorkerTask:  # fmt: skip
        """A worker on this loop, for an ``async with`` block; ``options`` are those of ``WorkerOptions``.

        Raises Misuse when a machine lacks functions that its definition names.
        """
        self.check_is_open()
        return WorkerTask(
            self,
            checked_worker(
                self.core,
                WorkerOptions(
                    poll_s=poll_s,
                    concurrency=concurrency,
                    group=group,
                    drain_s=drain_s,
                    lease_s=lease_s,
                    heartbeat_s=heartbeat_s,
                ),
            ),
        )

    def check_is_open(self) -> None:
        """Misuse before the application was opened and after it was closed."""
        if not self._is_open:
            raise Misuse(
                "this application is not open; use it inside its block: `async with casework.open_async(...) as app:`"
            )

    async def close(self) -> None:
        """Give back the store; harmless when done twice."""
        self._is_open = False
        if self._owns_backend:
            await self.backend.close()

    async def __aenter__(self) -> AsyncApp:
        try:
            await self._prepare()
        except BaseException:
            await self.close()
            raise
        self._is_open = True
        return self

    async def _prepare(self) -> None:
        try:
            found = await run_async(read_settings(self.core), self.backend)
        except MissingTable:
            if not self._create:
                raise
            await self.backend.create_tables(TABLES)
            found = False
        if not found:
            await run_async(write_settings(self.core), self.backend)

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        await self.close()


def open_app_async(
    store: str | AsyncBackend | None = None,
    *,
    machines: Sequence[Machine] = (),
    create: bool | None = None,
    codec: Codec | None = None,
    streams: StreamOptions | None = None,
    buckets: int = DEFAULT_BUCKETS,
    trace_max: int | None = None,
    dedupe_window_s: int | None = None,
    batch_max: int = 64,
    spill_above: int = 60,
    spill_part: int = 90,
) -> AsyncApp:
    """Open a store on the running loop: ``async with casework.open_async(...) as app``.

    Arguments and errors are those of :func:`casework.open`; most errors come when the block is entered.
    """
    options = make_options(
        buckets=buckets, trace_max=trace_max, dedupe_window_s=dedupe_window_s, batch_max=batch_max,
        spill_above=spill_above, spill_part=spill_part,
    )  # fmt: skip
    check_rest(create, streams)
    return open_core_async(Core(machines, options, codec, streams), store, create)


def open_core_async(core: Core, store: str | AsyncBackend | None, create: bool | None) -> AsyncApp:
    """An application on a store, of what it is given; see :func:`open_app_async`."""
    if store is None or isinstance(store, str):
        url = store_url(store)
        wanted = is_embedded(url) if create is None else create
        core.url = url
        return AsyncApp(core, open_backend_async(url), owns_backend=True, create=wanted)
    if not isinstance(store, AsyncBackend):
        raise Misuse(f"{store!r:.80} is no store; give a URL such as sqlite:///shop.db, or an async backend")
    return AsyncApp(core, store, owns_backend=False, create=bool(create))
