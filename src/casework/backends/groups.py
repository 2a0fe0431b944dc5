"""How a group of programs is carried on an event loop, and how one whose function never returns is left behind.

On a backend with shared commits the group goes in lockstep on one thread of the store's; a program that calls a
function of the user's leaves it, and goes on on a thread for users' functions. Elsewhere each program is carried by
itself. Either way the group waits :data:`PATIENCE_S` for such functions, no longer: what is not back then is
``Unfinished``.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from casework.backends.drive import LEFT, run_many, run_on, stop_program
from casework.backends.port import AsyncBackend
from casework.backends.threaded import ThreadedBackend
from casework.backends.user_calls import Called, Calls, UserCalls, name_of
from casework.errors import Unavailable
from casework.kernel.effects import Call, Handle, Outcome, Unfinished
from casework.kernel.programs import Program

CONCURRENT_PROGRAMS = 64
"""At most so many programs of one ``RunMany`` are under way at once on a backend without shared commits."""

PATIENCE_S = 1.0
"""A group waits so long for a program whose function of the user's does not return."""

LANES = 8
"""So many programs of a group call functions of the user's at once, until one of these does not return in time. Then
all others begin at once: a group with many such functions is held up for twice the patience, and no longer."""

LEFT_MAX = 64
"""With so many functions that never came back, no further program that calls one is begun."""

Carry = Callable[..., Awaitable[Any]]


async def run_group(
    programs: Sequence[Program[Any]],
    backend: AsyncBackend,
    calls: Calls | None,
    carry: Carry,
    shielded: Callable[[Awaitable[Any]], Awaitable[Any]],
) -> list[Outcome[Any]]:
    """The outcomes of programs that are carried side by side.

    Args:
        programs: what to carry.
        backend: the store.
        calls: where functions of users run; None: in the group, which then waits for them.
        carry: ``run_async``.
        shielded: what lets a write that was sent be answered before a cancellation counts.
    """
    if isinstance(backend, ThreadedBackend) and backend.shares_commits:
        if not isinstance(calls, UserCalls):
            outcomes: list[Outcome[Any]] = await shielded(backend.in_thread(run_many, programs, backend.blocking))
            return outcomes
        handed: list[tuple[int, Program[Any], Call]] = []
        outcomes = await shielded(
            backend.in_thread(run_many, programs, backend.blocking, lambda *one: handed.append(one))
        )
        if handed:
            await _Lanes(backend, calls, outcomes).carry(handed)
        return outcomes
    return await _each_alone(programs, backend, calls if isinstance(calls, UserCalls) else None, carry)


class _Lanes:
    """The programs of a group that call functions of the user's, a few at a time, each on a thread."""

    def __init__(self, backend: ThreadedBackend, calls: UserCalls, outcomes: list[Outcome[Any]]) -> None:
        self._backend, self._calls, self._outcomes = backend, calls, outcomes
        self._active: dict[asyncio.Future[Any], tuple[int, Called]] = {}
        self._is_late = False

    async def carry(self, handed: Sequence[tuple[int, Program[Any], Call]]) -> None:
        """Carry them all to their end, or as far as patience goes."""
        waiting = collections.deque(handed)
        try:
            while waiting or self._active:
                while waiting and self._has_lane():
                    self._begin(*waiting.popleft())
                await self._wait()
        finally:
            for _, program, _ in waiting:
                stop_program(program)

    def _has_lane(self) -> bool:
        in_use = len(self._active)
        if self._is_late:
            return not in_use or in_use + self._calls.threads_left < LEFT_MAX
        return in_use < LANES

    def _begin(self, position: int, program: Program[Any], effect: Call) -> None:
        if self._calls.threads_left >= LEFT_MAX:
            stop_program(program)
            self._outcomes[position] = Outcome(error=_no_thread(self._calls))
            return
        blocking = self._backend.blocking
        call = self._calls.in_thread(lambda: run_on(program, effect, blocking), _spoken(effect))
        self._active[asyncio.wrap_future(call.future)] = (position, call)

    async def _wait(self) -> None:
        if not self._active:
            return
        oldest_s = min(call.since_s for _, call in self._active.values())
        left_s = max(0.0, oldest_s + PATIENCE_S - time.monotonic())
        done, _ = await asyncio.wait(self._active, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        late_s = time.monotonic() - PATIENCE_S
        for future, (position, call) in list(self._active.items()):
            if future in done:
                error = future.exception()
                self._outcomes[position] = Outcome(None if error else future.result(), error)
            elif call.since_s <= late_s:
                self._outcomes[position] = Outcome(error=_unfinished(call, future))
                self._is_late = True
            else:
                continue
            del self._active[future]


def _unfinished(call: Called, future: asyncio.Future[Any]) -> Unfinished:
    """What stands for a program that goes on by itself; its handle is done when it has ended after all."""
    call.is_left = True
    handle = Handle(call.name)

    def ended(future: asyncio.Future[Any]) -> None:
        handle.outcome = (
            Outcome() if future.cancelled() or future.exception() is None else Outcome(error=future.exception())
        )

    future.add_done_callback(ended)
    handle.task = future
    return Unfinished(call.name, handle)


async def _each_alone(
    programs: Sequence[Program[Any]], backend: AsyncBackend, calls: UserCalls | None, carry: Carry
) -> list[Outcome[Any]]:
    places = asyncio.Semaphore(CONCURRENT_PROGRAMS)
    inside: dict[int, Called] = {}

    async def one(position: int, program: Program[Any]) -> Outcome[Any]:
        async with places:
            try:
                own = None if calls is None else _OwnCalls(calls, inside, position)
                return Outcome(await carry(program, backend, calls=own))
            except Exception as raised:
                return Outcome(error=raised)

    tasks = [asyncio.ensure_future(one(*each)) for each in enumerate(programs)]
    if calls is None:
        return list(await asyncio.gather(*tasks))
    outcomes: list[Outcome[Any]] = [LEFT] * len(tasks)
    left = dict(enumerate(tasks))
    try:
        while left:
            await asyncio.wait(left.values(), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            late_s = time.monotonic() - PATIENCE_S
            for position, task in list(left.items()):
                call = inside.get(position)
                if task.done():
                    outcomes[position] = task.result()
                elif call is not None and call.since_s <= late_s:
                    outcomes[position] = Outcome(error=_unfinished(call, task))
                    places.release()  # the others need not wait for its place
                else:
                    continue
                del left[position]
    finally:
        for task in left.values():
            task.cancel()
    return outcomes


class _OwnCalls:
    """The calls of one program of a group: on threads, and known to whoever waits for the group."""

    def __init__(self, calls: UserCalls, inside: dict[int, Called], position: int) -> None:
        self._calls, self._inside, self._position = calls, inside, position

    async def call(self, effect: Call) -> Any:
        """Call a short function of the user's on a thread."""
        if self._calls.threads_left >= LEFT_MAX:
            raise _no_thread(self._calls)
        call = self._calls.in_thread(lambda: effect.function(*effect.args, **effect.kwargs), _spoken(effect))
        self._inside[self._position] = call
        try:
            return await asyncio.wrap_future(call.future)
        finally:
            self._inside.pop(self._position, None)


def _no_thread(calls: UserCalls) -> Unavailable:
    names = ", ".join(sorted(set(calls.names_left)))
    return Unavailable(f"{calls.threads_left} functions never returned ({names}); this process begins no more of them")


def _spoken(effect: Call) -> str:
    return effect.what or name_of(effect.function)
