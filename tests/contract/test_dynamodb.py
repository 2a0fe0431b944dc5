"""The DynamoDB backends keep the contract, blocking and async, on two servers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from casework.backends.dynamodb import AsyncDynamoDBBackend, DynamoDBBackend
from casework.backends.port import Backend
from casework.testing.backend_contract import BackendContract
from casework.testing.bridge import BridgedBackend
from casework.testing.contract_tables import CONTRACT_TABLES
from casework.testing.differential import assert_same_answers, sequences


@pytest.fixture(scope="module", params=["ministack", "roto"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(scope="module")
def blocking(url: str) -> Iterator[DynamoDBBackend]:
    with DynamoDBBackend(endpoint_url=url, prefix=f"c-{secrets.token_hex(4)}") as backend:
        yield backend


@pytest.fixture(scope="module")
def bridged(url: str) -> Iterator[BridgedBackend]:
    async def make() -> AsyncDynamoDBBackend:
        return await AsyncDynamoDBBackend(endpoint_url=url, prefix=f"c-{secrets.token_hex(4)}").create()

    backend = BridgedBackend(make)
    yield backend
    backend.close()


class TestDynamoDB(BackendContract):
    @pytest.fixture
    def backend(self, blocking: DynamoDBBackend) -> Backend:
        return blocking


class TestDynamoDBOnALoop(BackendContract):
    @pytest.fixture
    def backend(self, bridged: BridgedBackend) -> Backend:
        return bridged


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(steps=sequences())
def test_dynamodb_answers_as_the_reference_does(blocking: DynamoDBBackend, steps: list) -> None:
    blocking.create_tables(CONTRACT_TABLES)
    assert_same_answers(blocking, steps)
