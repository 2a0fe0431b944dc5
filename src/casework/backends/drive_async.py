"""The async driver: carries one program on an event loop, and shells with all that they start.

It does what :func:`casework.backends.drive.run` does, with two additions. A caller that is cancelled waits for a write
that was already sent, for at most ``SHIELD_S``, before the cancellation reaches the program: otherwise its release
could overtake its own claim. And it knows the effects of shells: ``Spawn``, ``Race`` and ``RunMany``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from casework.backends.drive import READS, STEP_LIMIT, WRITES, stop_program
from casework.backends.groups import run_group
from casework.backends.port import AsyncBackend
from casework.backends.user_calls import Calls
from casework.errors import Misuse, StepLimit
from casework.kernel.containment import guarded
from casework.kernel.effects import (
    All,
    Call,
    Cancelled,
    Effect,
    Flag,
    Handle,
    Now,
    Outcome,
    Race,
    RunMany,
    Signal,
    Sleep,
    Spawn,
    Token,
)
from casework.kernel.programs import Program

T = TypeVar("T")

SHIELD_S = 30.0
"""A cancelled caller waits so long for the answer to a write that was already sent."""


async def run_async(
    program: Program[T],
    backend: AsyncBackend,
    *,
    handle: Handle | None = None,
    step_limit: int | None = STEP_LIMIT,
    calls: Calls | None = None,
) -> T:
    """Carry ``program`` to its end on the running loop, and return what it returns.

    Raises what the program raises. Programs that it spawned and that still run are cancelled when it ends.

    Args:
        program: what to carry.
        backend: the store.
        handle: of a spawned program, so that it hears of its cancellation.
        step_limit: stop a program that takes more steps; None for shells, which go on until they are told to end.
        calls: where functions of users run; None: beside the loop, or on it.
    """
    answer: Any = None
    error: BaseException | None = None
    children: set[asyncio.Task[Any]] = set()
    try:
        for _ in itertools.count() if step_limit is None else range(step_limit):
            try:
                effect = program.send(answer) if error is None else program.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = error = None
            try:
                answer = await perform_async(effect, backend, children, calls)
            except asyncio.CancelledError as raised:
                error = Cancelled() if handle is not None and handle.cancel_requested else raised
            except BaseException as raised:
                error = raised
        stop_program(program)
        raise StepLimit(f"a program took more than {step_limit:,} steps and was stopped: {program!r}")
    finally:
        await _cancel_all(children)


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


async def perform_async(
    effect: Effect, backend: AsyncBackend, children: set[asyncio.Task[Any]], calls: Calls | None = None
) -> Any:
    """Carry out any effect, and return its answer."""
    kind = type(effect)
    if kind in READS:
        return await backend.execute(effect)  # type: ignore[arg-type]
    if kind in WRITES:
        return await shielded(backend.execute(effect))  # type: ignore[arg-type]
    if kind is Now:
        return await backend.tell_time()
    if kind is Token:
        return backend.token()
    if isinstance(effect, All):
        return [outcome.result() for outcome in await backend.execute_many(effect.reads)]
    if isinstance(effect, Sleep):
        return await backend.sleep(effect.seconds)
    if isinstance(effect, Call):
        return await _call(effect, backend, calls)
    if isinstance(effect, Signal):
        return effect.flag.set()
    if isinstance(effect, Spawn):
        return _spawn(effect, backend, children, calls)
    if isinstance(effect, Race):
        return await _race(effect, backend)
    if isinstance(effect, RunMany):
        return await run_many_async(effect.programs, backend, calls)
    raise Misuse(f"{effect!r:.80} is not an effect")


async def shielded(sent: Awaitable[T]) -> T:
    """Await a write that may have been sent; a cancellation waits for its answer first, for at most ``SHIELD_S``."""
    task = asyncio.ensure_future(sent)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task}, timeout=SHIELD_S)
        if task.done() and not task.cancelled():
            task.exception()  # taken note of: the cancellation outranks it
        raise


async def _call(effect: Call, backend: AsyncBackend, calls: Calls | None) -> Any:
    if calls is not None:
        return await calls.call(effect)
    if effect.may_block and not inspect.iscoroutinefunction(effect.function):
        return await backend.in_thread(lambda: guarded(effect.function, *effect.args, **effect.kwargs))
    result = effect.function(*effect.args, **effect.kwargs)
    return await result if inspect.isawaitable(result) else result


def _spawn(effect: Spawn, backend: AsyncBackend, children: set[asyncio.Task[Any]], calls: Calls | None) -> Handle:
    handle = Handle(effect.name)
    loop = asyncio.get_running_loop()

    async def carry() -> None:
        try:
            handle.outcome = Outcome(
                await run_async(effect.program, backend, handle=handle, step_limit=None, calls=calls)
            )
        except BaseException as raised:
            handle.outcome = Outcome(error=raised)
            if not isinstance(raised, Exception | Cancelled | asyncio.CancelledError):
                raise

    task = loop.create_task(carry(), name=effect.name or None)
    children.add(task)
    task.add_done_callback(children.discard)
    handle.task = task
    handle.wake = lambda: _wake(loop, task)
    return handle


def _wake(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to wake
        loop.call_soon_threadsafe(task.cancel)


async def _race(effect: Race, backend: AsyncBackend) -> None:
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()
    listeners: list[tuple[Flag, Callable[[], None]]] = []
    tasks: list[asyncio.Task[Any]] = []

    def wake(*_: Any) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(happened.set)

    try:
        for wait in effect.waits:
            if isinstance(wait, Flag):
                wait.listeners[wake] = None
                listeners.append((wait, wake))
                if wait.is_set:
                    return
            elif wait.done:
                return
            elif wait.task is not None:
                wait.task.add_done_callback(wake)
                tasks.append(wait.task)
        if effect.timeout_s is None:
            await happened.wait()
        else:
            await _wait_at_most(happened, effect.timeout_s, backend)
    finally:
        for flag, listener in listeners:
            flag.listeners.pop(listener, None)
        for task in tasks:
            task.remove_done_callback(wake)


async def _wait_at_most(happened: asyncio.Event, seconds: float, backend: AsyncBackend) -> None:
    timer = asyncio.ensure_future(backend.sleep(max(0.0, seconds)))
    waiter = asyncio.ensure_future(happened.wait())
    try:
        await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        waiter.cancel()


async def run_many_async(
    programs: Sequence[Program[Any]], backend: AsyncBackend, calls: Calls | None = None
) -> list[Outcome[Any]]:
    """Carry programs side by side: in lockstep on a backend with shared commits, else each by itself.

    One whose function of the user's does not come back soon is answered with ``Unfinished``, where ``calls`` are
    given: it goes on by itself, and the others do not wait for it.
    """
    return await run_group(programs, backend, calls, run_async, shielded)
