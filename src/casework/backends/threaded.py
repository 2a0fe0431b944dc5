"""A blocking backend for an event loop: its calls run in a bounded pool of threads.

So a shell needs no async client: over SQLite and over boto3 it uses this.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from casework.backends.port import Backend, StoreEffect
from casework.errors import Misuse
from casework.kernel.effects import Instant, Outcome
from casework.kernel.items import Table

POOL_SIZE = 32
"""Threads of the pool: as many calls are under way at once."""


class ThreadedBackend:
    """An :class:`~casework.backends.port.AsyncBackend` over a blocking one.

    Args:
        blocking: the backend that does the work; it is closed by whoever made it, unless it is owned.
        pool_size: threads for its calls. Functions of users have their own: a call of the store never waits for one.
        owns_blocking: close the blocking backend with this one.
    """

    def __init__(self, blocking: Backend, *, pool_size: int = POOL_SIZE, owns_blocking: bool = False) -> None:
        self.blocking = blocking
        self._owns_blocking = owns_blocking
        self.shares_commits: bool = getattr(blocking, "shares_commits", False)
        self._in_doubt: Callable[[], bool] | None = getattr(blocking, "is_time_in_doubt", None)
        self._look: Callable[[], Instant] = getattr(blocking, "look_at_clock", blocking.now)
        self._is_shut = False
        self._pool = ThreadPoolExecutor(pool_size, thread_name_prefix="casework")

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run a blocking function in the pool."""
        if self._is_shut:
            raise Misuse("this store was closed; open it again")
        return asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(function, *args))

    async def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect in the pool."""
        return await self.in_thread(self.blocking.execute, effect)

    async def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects in the pool."""
        outcomes: list[Outcome[Any]] = await self.in_thread(self.blocking.execute_many, effects)
        return outcomes

    def now(self) -> Instant:
        """The store's time, as far as it is known: nothing is asked on the loop."""
        return self._look()

    async def tell_time(self) -> Instant:
        """The store's time; a backend that may have to ask a service for it does so beside the loop."""
        if self._in_doubt is not None and self._in_doubt():
            instant: Instant = await self.in_thread(self.blocking.now)
            return instant
        return self.blocking.now()

    def token(self) -> str:
        """A fresh token."""
        return self.blocking.token()

    async def sleep(self, seconds: float) -> None:
        """Let time pass; a virtual clock sleeps in no time, a host's clock on the loop."""
        own_sleep = getattr(self.blocking, "sleep_async", None)
        await (asyncio.sleep(seconds) if own_sleep is None else own_sleep(seconds))

    async def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing."""
        await self.in_thread(self.blocking.create_tables, tables)

    def for_another_loop(self) -> ThreadedBackend:
        """The same store for a second event loop, with threads of its own."""
        return ThreadedBackend(self.blocking)

    def shut_down(self) -> None:
        """Give back the pool's threads, without waiting for them."""
        self._is_shut = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Give back the pool's threads, and the blocking backend if it is owned."""
        self.shut_down()
        if self._owns_blocking:
            self.blocking.close()
