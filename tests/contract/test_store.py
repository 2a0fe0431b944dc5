"""The contract against the store that ``--store URL`` names: a file, a server, an account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casework.app.idempotency_store import IdempotencyStore
from casework.backends.port import Backend
from casework.kernel.schema import IDEMPOTENCY
from casework.testing.backend_contract import BackendContract
from casework.testing.idempotency_contract import IdempotencyStoreContract


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Iterator[Backend]:
    from casework.app.stores import open_backend

    backend = open_backend(request.config.getoption("--store"))
    yield backend
    backend.close()


class TestStore(BackendContract):
    @pytest.fixture
    def backend(self, store: Backend) -> Backend:
        return store


class TestIdempotencyStore(IdempotencyStoreContract):
    @pytest.fixture(scope="class")
    def store(self, request: pytest.FixtureRequest) -> Iterator[IdempotencyStore]:
        from casework.app.stores import open_backend

        backend = open_backend(request.config.getoption("--store"))
        backend.create_tables([IDEMPOTENCY])
        with IdempotencyStore(backend) as store:
            yield store
