"""A blocking face for a backend of an event loop, so that one contract suite serves both kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from casework.backends.port import AsyncBackend, StoreEffect
from casework.kernel.effects import Instant, Outcome
from casework.kernel.items import Table

T = TypeVar("T")


class BridgedBackend:
    """A :class:`~casework.backends.port.Backend` that carries an async one on an event loop in a thread of its own.

    Args:
        make: makes the async backend; it is called, and awaited, on that loop.
    """

    def __init__(self, make: Callable[[], Awaitable[AsyncBackend]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casework-bridge", daemon=True)
        self._thread.start()
        try:
            self.backend: AsyncBackend = self._wait(_awaited(make()))
        except BaseException:
            self._stop()
            raise

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect."""
        return self._wait(self.backend.execute(effect))

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects."""
        return self._wait(self.backend.execute_many(effects))

    def now(self) -> Instant:
        """The store's time."""
        return self._wait(self.backend.tell_time())

    def token(self) -> str:
        """A fresh token."""
        return self.backend.token()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._wait(self.backend.sleep(seconds))

    def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing."""
        self._wait(self.backend.create_tables(tables))

    def close(self) -> None:
        """Close the backend and end its loop."""
        if self._thread.is_alive():
            self._wait(self.backend.close())
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class BridgedStore:
    """A blocking face for an async store: every public coroutine method becomes a blocking one.

    Args:
        make: makes the store; it is called, and awaited, on an event loop in a thread of its own.
    """

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casework-bridge", daemon=True)
        self._thread.start()
        self.store = self._wait(_awaited(make()))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not asyncio.iscoroutinefunction(method):
            return method
        return lambda *args, **kwargs: self._wait(method(*args, **kwargs))

    def close(self) -> None:
        """Close the store and end its loop."""
        if self._thread.is_alive():
            self._wait(self.store.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
