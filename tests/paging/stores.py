"""Stores whose pages hold few items, so that ten pages are twenty items.

A store may end a page early at any time: DynamoDB does at 1 MB, whatever the limit was. Here it is done by lowering the
limit of each query before the store sees it; all else, cursors included, is the store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.kernel.effects import Query
from casework.kernel.schema import TABLES

PAGE = 2
"""Items of a page."""

SIZES = (0, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE)

STORES = [
    "memory",
    "sqlite",
    pytest.param("ministack", marks=pytest.mark.servers),
    pytest.param("roto", marks=pytest.mark.servers),
]


class SmallPages:
    """A backend with pages of ``PAGE`` items; it counts those that were not the last."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.cut_n = 0

    def _small(self, effect: Any) -> Any:
        if not isinstance(effect, Query):
            return effect
        return msgspec.structs.replace(effect, limit=min(effect.limit or PAGE, PAGE))

    def execute(self, effect: Any) -> Any:
        answer = self.backend.execute(self._small(effect))
        self.cut_n += isinstance(effect, Query) and answer.next is not None
        return answer

    def execute_many(self, effects: Sequence[Any]) -> Any:
        outcomes = self.backend.execute_many([self._small(effect) for effect in effects])
        for effect, outcome in zip(effects, outcomes, strict=True):
            self.cut_n += isinstance(effect, Query) and outcome.error is None and outcome.value.next is not None
        return outcomes

    def walk(self, table: Any, limit: int, after: str | None) -> Any:
        items, after = self.backend.walk(table, min(limit, PAGE), after)
        self.cut_n += after is not None
        return items, after

    def now(self) -> Any:
        return self.backend.now()

    def token(self) -> str:
        return self.backend.token()  # type: ignore[no-any-return]

    def sleep(self, seconds: float) -> None:
        self.backend.sleep(seconds)

    def create_tables(self, tables: Any) -> None:
        self.backend.create_tables(tables)

    def close(self) -> None:
        self.backend.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def open_store(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]
) -> Iterator[Any]:
    """The store of that name, with casework's tables and nothing in them; closed afterwards."""
    client: Any = None
    backend: Any
    if name == "memory":
        backend = MemoryBackend()
    elif name == "sqlite":
        backend = SqliteBackend(str(tmp_path / "pages.db"))
    else:
        from casework.backends.dynamodb import DynamoDBBackend
        from tests.servers.clients import dynamodb

        client = dynamodb(request.getfixturevalue(f"{name}_url"), max_attempts=1)
        backend = DynamoDBBackend(client, prefix=unique("pages"))
    backend.create_tables(TABLES)
    yield SmallPages(backend)
    backend.close()
    if client is not None:
        client.close()
