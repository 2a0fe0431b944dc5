"""The contract of an execution store, as tests: for whoever writes one.

Subclass it in a test module and say how a store is opened; pytest does the rest::

    class TestMyStore(ExecutionStoreContract):
        @pytest.fixture
        def open_store(self):
            return lambda **options: MyStore(URL, **options)

``open_store`` may be called several times in a test; all of its stores must see the same data, as processes do. What it
makes may be blocking or have coroutines: each test is written once, and a coroutine is run on an event loop of the
test's own. The data may be shared with others: every test works with ids of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from casework.errors import StoreError
from casework.executions.store_items import StoredExecution
from casework.testing.contract_commits import CommitsContract
from casework.testing.contract_listing import ListingContract
from casework.testing.contract_outbox import OutboxContract
from casework.testing.contract_timers import TimersContract

OpenStore = Callable[..., Any]


class StoreFace:
    """A store under test: its calls block, whichever kind it is."""

    def __init__(self, store: Any, runner: asyncio.Runner) -> None:
        self.store = store
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._result(method(*args, **kwargs))

        return call

    def _result(self, answer: Any) -> Any:
        return self._runner.run(answer) if inspect.iscoroutine(answer) else answer

    def at_once(self, name: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call one method several times at once; what each call returned, or the error of the store that it raised."""
        method = getattr(self.store, name)
        if inspect.iscoroutinefunction(method):
            return self._runner.run(_gathered([method(*args) for args in calls]))

        def one(args: tuple[Any, ...]) -> Any:
            try:
                return method(*args)
            except StoreError as error:
                return error

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(one, calls))


async def _gathered(coroutines: list[Any]) -> list[Any]:
    answers = await asyncio.gather(*coroutines, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, StoreError):
            raise answer
    return answers


class ExecutionStoreContract(CommitsContract, OutboxContract, TimersContract, ListingContract):
    """What every execution store promises. Override ``open_store``."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens a store on the data under test; takes ``trace_max``; may return a coroutine."""
        raise NotImplementedError("override the fixture `open_store` in your subclass")

    @pytest.fixture
    def opened(self, open_store: OpenStore) -> Iterator[OpenStore]:
        """As ``open_store``, with the calls of all its stores blocking; they are closed at the end."""
        faces: list[StoreFace] = []
        with asyncio.Runner() as runner:

            def open_one(**options: Any) -> StoreFace:
                made = open_store(**options)
                face = StoreFace(runner.run(made) if inspect.iscoroutine(made) else made, runner)
                faces.append(face)
                return face

            yield open_one
            for face in faces:
                face.close()

    @pytest.fixture
    def store(self, opened: OpenStore) -> Any:
        """A store under test, with blocking calls."""
        return opened()

    @pytest.fixture
    def new(self) -> Callable[..., StoredExecution]:
        """Makes an execution that is not stored yet: ``new("a")``, with an id that no other test has."""
        mark = secrets.token_hex(6)

        def make(name: str = "a", data: str = '{"n":0}', **more: Any) -> StoredExecution:
            return StoredExecution(id=f"{mark}-{name}", data=data, **{"machine": f"m-{mark}", **more})

        return make
