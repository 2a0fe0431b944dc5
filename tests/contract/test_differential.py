"""Random sequences of effects are answered alike by the reference and by every other backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.testing.contract_tables import CONTRACT_TABLES
from casework.testing.differential import assert_same_answers, sequences

RUN_TOGETHER = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteBackend]:
    with SqliteBackend(tmp_path_factory.mktemp("differential") / "d.db", synchronous="off") as backend:
        backend.create_tables(CONTRACT_TABLES)
        yield backend


@RUN_TOGETHER
@given(steps=sequences())
def test_sqlite_answers_as_the_reference_does(sqlite: SqliteBackend, steps: list) -> None:
    assert_same_answers(sqlite, steps)


@settings(RUN_TOGETHER, max_examples=20)
@given(steps=sequences())
def test_two_references_answer_alike(steps: list) -> None:
    backend = MemoryBackend()
    backend.create_tables(CONTRACT_TABLES)
    assert_same_answers(backend, steps)


@pytest.mark.soak
@settings(RUN_TOGETHER, max_examples=5000)
@given(steps=sequences(60))
def test_sqlite_answers_as_the_reference_does_for_long(sqlite: SqliteBackend, steps: list) -> None:
    assert_same_answers(sqlite, steps)
