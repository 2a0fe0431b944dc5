"""The contract of idempotency stores, on every store that ships."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casework import (
    AsyncDynamoDBIdempotencyStore,
    AsyncIdempotencyStore,
    DynamoDBIdempotencyStore,
    IdempotencyStore,
    MemoryIdempotencyStore,
    SqliteIdempotencyStore,
)
from casework.backends.memory import MemoryBackend
from casework.backends.threaded import ThreadedBackend
from casework.kernel.schema import TABLES
from casework.testing.bridge import BridgedStore
from casework.testing.idempotency_contract import IdempotencyStoreContract

pytestmark = pytest.mark.slow


class TestOnMemory(IdempotencyStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Any]:
        backend = MemoryBackend()
        backend.create_tables(TABLES)
        with IdempotencyStore(backend) as store:
            yield store


class TestInMemoryWithoutAStore(IdempotencyStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Any]:
        with MemoryIdempotencyStore() as store:
            yield store


class TestOnSqlite(IdempotencyStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Any]:
        with SqliteIdempotencyStore(tmp_path / "keys.db") as store:
            yield store


class TestOnThreads(IdempotencyStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Any]:
        async def make() -> Any:
            backend = MemoryBackend()
            backend.create_tables(TABLES)
            return AsyncIdempotencyStore(ThreadedBackend(backend))

        store = BridgedStore(make)
        yield store
        store.close()


class TestOnDynamoDB(IdempotencyStoreContract):
    largest_bytes = 2_900_000  # ministack counts the base64 text of bytes, the service their number

    @pytest.fixture
    def store(self, ministack_url: str, unique: Callable[[str], str]) -> Iterator[Any]:
        with DynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=ministack_url) as store:
            yield store


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of aiohttp, silent by default
class TestOnDynamoDBAsync(IdempotencyStoreContract):
    largest_bytes = 2_900_000  # ministack counts the base64 text of bytes, the service their number

    @pytest.fixture
    def store(self, ministack_url: str, unique: Callable[[str], str]) -> Iterator[Any]:
        async def make() -> Any:
            await asyncio.sleep(0)
            return AsyncDynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=ministack_url)

        store = BridgedStore(make)
        yield store
        store.close()
