"""Where the functions of users run: plain ones on threads of their own, coroutines on a loop that is theirs.

No call of a store ever stands behind a user's function: it has threads, and a worker's shell has a loop, that users'
code never sees. A function cannot be stopped from outside; one that is no longer waited for is *left*, and counted
until it returns. The threads are daemons, so that a process can end although one of them never comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from casework.kernel.containment import contained, guarded, is_interrupt
from casework.kernel.effects import Call

KEPT_THREADS = 32
"""Idle threads are kept up to this number."""

ANSWERS_WITHIN_S = 2.0
"""A loop that has not run anything for so long is blocked by a coroutine."""


def name_of(function: Any) -> str:
    """A function's name, as logs tell it."""
    found = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return found if isinstance(found, str) else type(function).__name__


class Called:
    """One call of a user's function, while it runs."""

    __slots__ = ("future", "is_left", "name", "since_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.since_s = time.monotonic()
        self.is_left = False
        """Nobody waits for it any more."""
        self.future: Future[Any] = Future()


class Calls(Protocol):
    """Carries out the ``Call`` effects of programs."""

    async def call(self, effect: Call) -> Any:
        """What the function returns, or an ``Exception`` for what it raises."""


class UserCalls:
    """Threads and a loop for users' functions.

    Args:
        loop: where coroutine functions run; None: on a loop of its own, begun by the first of them.
        name: of the threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, name: str = "casework-function") -> None:
        self._name = name
        self._loop = loop
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Any]] = []
        self._in_threads: dict[Called, None] = {}
        self._on_loop: dict[Called, None] = {}
        self._asked_s = 0.0
        self._is_shut = False

    # --- what there is to know --------------------------------------------------------------------------------------

    @property
    def threads_left(self) -> int:
        """Threads whose function nobody waits for, and which it has not given back."""
        return sum(call.is_left for call in tuple(self._in_threads))

    @property
    def coroutines_left(self) -> int:
        """Coroutines that were told to end, and have not."""
        return sum(call.is_left for call in tuple(self._on_loop))

    @property
    def threads_used(self) -> int:
        """Threads that run a function now."""
        return len(self._in_threads)

    @property
    def names_left(self) -> list[str]:
        """The functions that nobody waits for, and that still run."""
        return [call.name for call in (*self._in_threads, *self._on_loop) if call.is_left]

    @property
    def is_loop_free(self) -> bool:
        """Whether coroutines get on: False while one of them blocks their loop. Asks the loop anew each time."""
        loop = self._loop or self._own_loop
        if loop is None:
            return True
        if self._asked_s and time.monotonic() - self._asked_s > ANSWERS_WITHIN_S:
            return False
        if not self._asked_s:
            self._asked_s = time.monotonic()
            with contextlib.suppress(RuntimeError):  # it is closed: nothing will be begun on it
                loop.call_soon_threadsafe(self._answered)
        return True

    def _answered(self) -> None:
        self._asked_s = 0.0

    # --- calling ----------------------------------------------------------------------------------------------------

    async def call(self, effect: Call) -> Any:
        """Call a user's function, wherever it belongs; what it raises is an ``Exception``.

        Cancelled, it leaves a plain function to itself and tells a coroutine to end, and waits for neither.
        """
        function, args, kwargs = effect.function, effect.args, effect.kwargs
        if not effect.may_block:
            result = guarded(function, *args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        if inspect.iscoroutinefunction(function):
            return await self._waited(self._begin_coroutine(function, args, kwargs))
        result = await self._waited(self.in_thread(lambda: function(*args, **kwargs), name_of(function)))
        if inspect.iscoroutine(result):
            coroutine = result
            return await self._waited(self._begin_coroutine(lambda: coroutine, (), {}, name_of(function)))
        return result

    async def _waited(self, call: Called) -> Any:
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            call.is_left = True
            raise

    # --- threads ----------------------------------------------------------------------------------------------------

    def in_thread(self, function: Callable[[], Any], name: str) -> Called:
        """Begin a call on a thread of its own."""
        call = Called(name)
        with self._lock:
            self._in_threads[call] = None
            work = self._idle.pop() if self._idle else None
        if work is None:
            work = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()
        work.put((function, call))
        return call

    def _serve(self, work: queue.SimpleQueue[Any]) -> None:
        while True:
            asked = work.get()
            if asked is None:
                return
            function, call = asked
            result, error, pid = None, None, os.getpid()
            try:
                result = function()
            except BaseException as raised:
                error = contained(raised)
            _end_if_forked(pid)
            with self._lock:
                self._in_threads.pop(call, None)
            _settle(call.future, result, error)
            del function, call, asked, result, error
            with self._lock:
                if self._is_shut or len(self._idle) >= KEPT_THREADS:
                    return
                self._idle.append(work)

    # --- coroutines -------------------------------------------------------------------------------------------------

    def _begin_coroutine(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = ""
    ) -> Called:
        call = Called(name or name_of(function))

        async def carry() -> None:
            result, error, pid = None, None, os.getpid()
            try:
                result = await function(*args, **kwargs)
            except BaseException as raised:
                if is_interrupt(raised):
                    _settle(call.future, None, contained(raised))
                    raise
                if is_told_to_end(raised):
                    call.future.cancel()
                    raise
                error = contained(raised)
            finally:
                _end_if_forked(pid)
                self._on_loop.pop(call, None)
            _settle(call.future, result, error)

        def begin() -> None:
            if call.future.cancelled():
                self._on_loop.pop(call, None)
                return
            task = loop.create_task(carry(), name=call.name)
            call.future.add_done_callback(lambda future: _cancel(loop, task) if future.cancelled() else None)

        loop = self._loop or self._start_loop()
        self._on_loop[call] = None
        loop.call_soon_threadsafe(begin)
        return call

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._own_loop is None:
                self._own_loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_loop, args=(self._own_loop,), name=f"{self._name}-loop", daemon=True
                ).start()
            return self._own_loop

    def close(self) -> None:
        """Give back what is idle; what still runs is left to itself."""
        with self._lock:
            self._is_shut = True
            idle, self._idle = self._idle, []
            loop, self._own_loop = self._own_loop, None
        for work in idle:
            work.put(None)
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Carry the users' loop. A stray task of theirs may raise SystemExit, which ends a run of it, not the loop."""
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
        except BaseException as raised:
            loop.call_exception_handler({"message": f"a task of yours raised {type(raised).__name__}"})
            continue
        break
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except BaseException:
        pass
    finally:
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
        loop.call_soon_threadsafe(task.cancel)


def _end_if_forked(pid: int) -> None:
    """End the child of a function that forked and returned twice: one thread of a worker is no worker."""
    if os.getpid() != pid:
        os._exit(0)


def is_told_to_end(raised: BaseException) -> bool:
    """Whether the coroutine was cancelled or closed from outside, and did not raise that by itself."""
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    if isinstance(raised, GeneratorExit):
        try:
            return asyncio.current_task() is None
        except RuntimeError:  # nothing runs: it is being thrown away
            return True
    return False


def _settle(future: Future[Any], result: Any, error: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
