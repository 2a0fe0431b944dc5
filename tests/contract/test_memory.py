"""The reference backend keeps the contract that it defines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casework.backends.memory import MemoryBackend
from casework.backends.port import Backend
from casework.backends.threaded import ThreadedBackend
from casework.testing.backend_contract import BackendContract
from casework.testing.bridge import BridgedBackend


@pytest.fixture(scope="module")
def bridged() -> Iterator[BridgedBackend]:
    async def make() -> ThreadedBackend:
        return ThreadedBackend(MemoryBackend(), pool_size=4)

    backend = BridgedBackend(make)
    yield backend
    backend.close()


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class TestMemoryOnALoop(BackendContract):
    @pytest.fixture
    def backend(self, bridged: BridgedBackend) -> Backend:
        return bridged
