"""The blocking facade: :class:`App`, made by ``casework.open``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from casework.app import operations
from casework.app.arguments import check_rest, make_options
from casework.app.core import Core
from casework.app.idempotency_store import IdempotencyStore
from casework.app.methods import look_like
from casework.app.settings import read_settings, write_settings
from casework.app.stores import is_embedded, open_backend, store_url
from casework.app.streams import StreamStore
from casework.app.transaction import Transaction
from casework.app.workers import WorkerThread
from casework.backends.drive import run
from casework.backends.port import Backend
from casework.errors import MissingTable, Misuse
from casework.executions.runtime import Codec
from casework.executions.worker import WorkerOptions
from casework.kernel.programs import Program
from casework.kernel.schema import DEFAULT_BUCKETS, TABLES
from casework.statechart import Machine
from casework.streams.log import StreamOptions

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("casework.worker")


def _driven(operation: Callable[Concatenate[Core, P], Program[T]]) -> Callable[Concatenate[App, P], T]:
    """The blocking method that drives an operation."""

    def method(app: App, /, *args: P.args, **kwargs: P.kwargs) -> T:
        app.check_is_open()
        return run(operation(app.core, *args, **kwargs), app.backend)

    look_like(method, operation)
    return method


class App:
    """An application on a store. Safe to use from several threads; close it, or use it in a ``with`` block.

    Made by :func:`casework.open`.
    """

    def __init__(self, core: Core, backend: Backend, *, owns_backend: bool) -> None:
        self.core = core
        self.backend = backend
        """The store itself: ``app.backend.create_tables([...])`` makes tables of your own."""
        self._owns_backend = owns_backend
        self._is_open = True
        self.idempotency = IdempotencyStore(backend)
        """The idempotency records of this store; see ``casework.idempotent``."""
        self.streams = StreamStore(backend, writer=core.writer)
        """The streams of this store."""

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

    def transaction(self) -> Transaction:
        """One transaction, any mix: ``with app.transaction() as tx``; see ``casework.app.transaction``."""
        self.check_is_open()
        return Transaction(self)

    def worker(
        self, *, poll_s: float = 1.0, concurrency: int = 16, group: int = 256, drain_s: float = 30.0,
        lease_s: float = 30.0, heartbeat_s: float = 5.0,
    ) -> WorkerThread:  # fmt: skip
        """A worker in this process, for a ``with`` block; ``options`` are those of ``WorkerOptions``.

        Raises Misuse when a machine lacks functions that its definition names.
        """
        self.check_is_open()
        return WorkerThread(
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
        """Misuse after the application was closed."""
        if not self._is_open:
            raise Misuse("this application was closed; use it inside its `with` block, or open the store again")

    def close(self) -> None:
        """Give back the store; harmless when done twice."""
        self._is_open = False
        if self._owns_backend:
            self.backend.close()

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def checked_worker(core: Core, options: WorkerOptions) -> WorkerOptions:
    """The options of a worker; Misuse when a machine lacks functions."""
    missing = [f"{m.name}: {what}" for m in core.rt.machines.values() for what in m.missing_functions()]
    if missing:
        raise Misuse(
            "a worker needs every function that its machines name; register these with @machine.task, .action or "
            f".guard: {'; '.join(missing)}"
        )
    return options


def open_app(
    store: str | Backend | None = None,
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
) -> App:
    """Open a store, blocking.

    Args:
        store: its URL (``sqlite:///shop.db``, ``dynamodb://?region=eu-west-1&prefix=shop``, ``memory:``), or a backend.
            None is the URL in the environment variable CASEWORK_STORE, else the file casework.db in the working
            directory, as for the commands.
        machines: those of this process. They are not changed; another application can have them as well.
        create: make the tables that are missing; None: in a file or in memory, not on DynamoDB.
        codec: what stores context, messages and results, such as encryption. It belongs to the store: the first
            process that opens it with machines decides, and one that has another codec, or none, is refused.
        streams: settings of the streams.
        buckets: buckets of the indexes, 1 to 1,024, of a store that is new. An older store has its own number, which
            ``casework settings`` can raise.
        trace_max: keep so many trace entries per execution, 0 to 1,000,000; 0 keeps none and costs nothing. None: as
            many as the store says, which is what the first process gave that gave a number (0 until then), or
            ``casework settings --trace-max``.
        dedupe_window_s: refuse repeated event ids for so many seconds, at the price of a mark per event; 0: the last
            32 ids only. A store has one window for all its processes: fixed when it is made (0 by default), changed by
            ``casework settings``; None takes it. Processes that have the store open when it is changed keep the old one
            until they open it again.
        batch_max: at most so many events of one execution go into one commit, 1 to 64.
        spill_above: more messages, tasks and children than this in one commit, 1 to 60, are recorded in it and
            performed afterwards. The next commit may have to check the messages that one commit sent, and must still
            have room for what it takes itself.
        spill_part: so many of them are performed in one transaction, 1 to 90; the rest of it is for the state and the
            spilled item.

    Raises Misuse for what cannot work, MissingTable, MissingExtra, NewerFormat, Unavailable.
    """
    options = make_options(
        buckets=buckets, trace_max=trace_max, dedupe_window_s=dedupe_window_s, batch_max=batch_max,
        spill_above=spill_above, spill_part=spill_part,
    )  # fmt: skip
    check_rest(create, streams)
    return open_core(Core(machines, options, codec, streams), store, create)


def open_core(core: Core, store: str | Backend | None, create: bool | None, *, owns: bool | None = None) -> App:
    """An application on a store, of what it is given; see :func:`open_app`.

    ``owns``: it closes the store; None: where the store is not a backend that somebody else made.
    """
    if owns is None:
        owns = store is None or isinstance(store, str)
    url = store_url(store) if store is None or isinstance(store, str) else None
    core.url = url or ""
    backend = open_backend(url) if url is not None else store
    if not isinstance(backend, Backend):
        raise Misuse(f"{store!r:.80} is no store; give a URL such as sqlite:///shop.db, or a backend")
    if create is None:
        create = url is not None and is_embedded(url)
    try:
        prepare(core, backend, create=create)
    except BaseException:
        if owns:
            backend.close()
        raise
    return App(core, backend, owns_backend=owns)


def prepare(core: Core, backend: Backend, *, create: bool) -> None:
    """Take over the store's settings, making its tables first where that is wanted."""
    try:
        found = run(read_settings(core), backend)
    except MissingTable:
        if not create:
            raise
        backend.create_tables(TABLES)
        found = False
    if not found:
        run(write_settings(core), backend)
