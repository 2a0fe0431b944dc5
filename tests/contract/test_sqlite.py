"""The SQLite backend keeps the contract, blocking and on an event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casework.backends.port import Backend
from casework.backends.sqlite import SqliteBackend
from casework.backends.threaded import ThreadedBackend
from casework.testing.backend_contract import BackendContract
from casework.testing.bridge import BridgedBackend


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteBackend]:
    with SqliteBackend(tmp_path_factory.mktemp("sqlite") / "contract.db") as backend:
        yield backend


@pytest.fixture(scope="module")
def bridged(blocking: SqliteBackend) -> Iterator[BridgedBackend]:
    async def make() -> ThreadedBackend:
        return ThreadedBackend(blocking, pool_size=4)

    backend = BridgedBackend(make)
    yield backend
    backend.close()


class TestSqlite(BackendContract):
    @pytest.fixture
    def backend(self, blocking: SqliteBackend) -> Backend:
        return blocking


class TestSqliteOnALoop(BackendContract):
    @pytest.fixture
    def backend(self, bridged: BridgedBackend) -> Backend:
        return bridged
