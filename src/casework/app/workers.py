"""Workers in a process: the thread that carries one, and what the process hears of its life.

The worker's shell has a thread and a loop of its own under both facades, so that no code of the user's, blocking or
not, can keep it from renewing leases and from everything else that it does. Plain functions run on threads of theirs;
coroutine functions run on the loop of ``open_async``, or under ``open`` on one more loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from casework.backends.drive_async import run_async
from casework.backends.port import AsyncBackend
from casework.backends.threaded import ThreadedBackend
from casework.backends.user_calls import UserCalls
from casework.errors import Misuse
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.containment import in_words

if TYPE_CHECKING:
    from casework.app.core import Core

log = logging.getLogger("casework.worker")


def make_worker(core: Core, options: WorkerOptions) -> Worker:
    """A worker of an application's."""
    return Worker(core.rt, options, core.bell, core.writer.log)


async def _carry_shell(core: Core, worker: Worker, backend: AsyncBackend, calls: UserCalls) -> None:
    """Carry the worker to its end on the running loop, and tell whoever wants to know."""
    worker.calls = calls
    error: BaseException | None = None
    try:
        await run_async(work(worker), backend, step_limit=None, calls=calls)
    except BaseException as raised:
        error = raised
        raise
    finally:
        calls.close()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            core.worker_error = error
            log.critical("the worker ended: %s", in_words(error), exc_info=error)
        worker.has_ended(error)


class WorkerThread:
    """A worker on a thread of its own, with an event loop of its own, for the length of a ``with`` block."""

    def __init__(self, app: Any, options: WorkerOptions) -> None:
        self._core: Core = app.core
        self.worker = make_worker(app.core, options)
        self._app = app
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _carry(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    async def _work(self) -> None:
        # Calls of the store only: each of so many tasks may renew its lease or store its result, beside the sweep.
        threaded = ThreadedBackend(self._app.backend, pool_size=min(64, self.worker.options.concurrency + 8))
        try:
            await _carry_shell(self._core, self.worker, threaded, UserCalls())
        finally:
            await threaded.close()

    def run(self) -> None:
        """Carry the worker in the calling thread until ``worker.stop`` is set, instead of in a ``with`` block.

        ``worker.stop.set()`` may be called from a signal handler.
        """
        self._check_is_new()
        self.worker.is_alive = True
        asyncio.run(self._work())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; False when it has not after ``timeout_s`` seconds.

        ``worker.error`` then says why, or is None: it was asked to.
        """
        ended = threading.Event()
        self.worker.when_ended(lambda error: ended.set())
        return ended.wait(timeout_s)

    def _check_is_new(self) -> None:
        self._app.check_is_open()
        if self._thread is not None or self.worker.stop.is_set or self.worker.ended.is_set:
            raise Misuse("this worker was used already; ask the application for another: app.worker()")

    def __enter__(self) -> Worker:
        self._check_is_new()
        self._core.worker_error = None
        self.worker.is_alive = True
        self._thread = threading.Thread(target=self._carry, name="casework-worker", daemon=True)
        self._thread.start()
        return self.worker

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.worker.stop.set()
        if self._thread is not None:
            self._thread.join()
        self._core.worker_error = None
        if self._error is not None and error is None:
            raise self._error


class WorkerTask:
    """A worker beside the running loop, for the length of an ``async with`` block.

    Its shell has a thread and a loop of its own; coroutine functions run on the loop of the block. Where the
    application was given a client of the user's own, which belongs to this loop, the shell runs on it as well.
    """

    def __init__(self, app: Any, options: WorkerOptions) -> None:
        self._core: Core = app.core
        self.worker = make_worker(app.core, options)
        self._app = app
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Worker:
        self._app.check_is_open()
        if self._task is not None or self.worker.stop.is_set or self.worker.ended.is_set:
            raise Misuse("this worker was used already; ask the application for another: app.worker()")
        self._core.worker_error = None
        self.worker.is_alive = True
        self._task = asyncio.create_task(self._work(), name="casework-worker")
        return self.worker

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        calls = UserCalls(loop)
        make_other = getattr(self._app.backend, "for_another_loop", lambda: None)
        other = make_other()
        if other is None:
            await _carry_shell(self._core, self.worker, self._app.backend, calls)
        else:
            await _on_own_thread(lambda: self._carry(other, calls))

    async def _carry(self, backend: AsyncBackend, calls: UserCalls) -> None:
        try:
            await _carry_shell(self._core, self.worker, backend, calls)
        finally:
            await backend.close()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the worker has ended; False when it has not after ``timeout_s`` seconds.

        ``worker.error`` then says why, or is None: it was asked to.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        self.worker.when_ended(tell)
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.worker.stop.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            self._core.worker_error = None


async def _on_own_thread(make: Callable[[], Any]) -> None:
    """Carry a coroutine on a thread with a loop of its own; cancelled, it cancels it there, and waits for its end."""
    home = asyncio.get_running_loop()
    ended: asyncio.Future[None] = home.create_future()
    there: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        there.append((asyncio.get_running_loop(), task))
        await make()

    def carry() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(main())
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop that began it is gone
            home.call_soon_threadsafe(_settle, ended, error)

    threading.Thread(target=carry, name="casework-worker", daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        for loop, task in there:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(BaseException):
            await asyncio.shield(ended)
        raise


def _settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None or isinstance(error, asyncio.CancelledError):
        ended.set_result(None)
    else:
        ended.set_exception(error)
