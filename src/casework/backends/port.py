"""The ports: what a backend must be able to do.

A backend carries out the store's effects: ``Get``, ``GetMany``, ``Query``, ``Write`` and ``Transact`` (drivers take
``All`` apart). It raises only the outcomes of :mod:`casework.errors`. ``casework.testing.BackendContract`` is the suite
that every backend passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from casework.errors import Misuse
from casework.kernel.effects import Get, GetMany, Instant, Outcome, Query, Transact, Write
from casework.kernel.items import Table

StoreEffect = Get | GetMany | Query | Write | Transact

LARGEST_PAGE_BYTES = 1024 * 1024
"""A page of a query ends after about so many bytes of items, on every backend (DynamoDB: 1 MB)."""


class Surroundings(Protocol):
    """What a program needs of the world outside the store."""

    def now(self) -> Instant:
        """The time, with its bounds; never runs backwards.

        A blocking backend asks its service first where it would have to guess. An async one answers what it knows, for
        a quick look; programs get :meth:`AsyncBackend.tell_time`.
        """

    def token(self) -> str:
        """A fresh random identifier: 22 URL-safe characters."""


@runtime_checkable
class Backend(Surroundings, Protocol):
    """A store, blocking. Safe to use from several threads at once."""

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect and return its answer, or raise its error."""

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects, sharing what can be shared; one outcome for each, in order."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing; harmless when all are there."""

    def close(self) -> None:
        """Give back what it holds; harmless when done twice."""


@runtime_checkable
class AsyncBackend(Surroundings, Protocol):
    """A store, for one event loop."""

    async def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect and return its answer, or raise its error."""

    async def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects, sharing what can be shared; one outcome for each, in order."""

    async def tell_time(self) -> Instant:
        """The time, with its bounds, for what is written; the service is asked first where it is in doubt."""

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run a blocking function beside the loop."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing; harmless when all are there."""

    async def close(self) -> None:
        """Give back what it holds; harmless when done twice."""


def check_backend(backend: object, kind: type[Backend] | type[AsyncBackend]) -> None:
    """Misuse unless ``backend`` is one of that kind: an address, or one of the other kind, would fail late."""
    if not isinstance(backend, kind):
        raise Misuse(
            f"{backend!r:.80} is no {kind.__name__}; make one, such as SqliteBackend(path), "
            "or open an address with casework.open(URL) or casework.open_async(URL)"
        )
