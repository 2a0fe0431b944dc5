"""The contract of a backend, as tests: for whoever writes one.

Subclass it in a test module and say how a backend is made; pytest does the rest::

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self):
            backend = MyBackend(...)
            yield backend
            backend.close()

An async backend is put behind :class:`casework.testing.bridge.BridgedBackend`. The fixture may have any scope: every
test works in partitions of its own. Index reads are repeated until they show what they should, so a store may lag.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import ClassVar

import pytest

from casework.backends.port import Backend
from casework.testing.contract_conditions import ConditionsContract
from casework.testing.contract_queries import QueriesContract
from casework.testing.contract_tables import CONTRACT_TABLES
from casework.testing.contract_writes import WritesContract


class BackendContract(ConditionsContract, WritesContract, QueriesContract):
    """What every backend promises. Override ``backend``; the tables are made for it."""

    _made_for: ClassVar[Backend | None] = None

    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        """The backend under test."""
        raise NotImplementedError("override the fixture `backend` in your subclass")

    @pytest.fixture(autouse=True)
    def _tables(self, backend: Backend) -> None:
        if type(self)._made_for is not backend:
            backend.create_tables(CONTRACT_TABLES)
            type(self)._made_for = backend

    @pytest.fixture
    def place(self) -> str:
        """Text that no other test has, for partitions."""
        return f"contract-{secrets.token_hex(8)}"

    # --- surroundings ----------------------------------------------------------------------------------------------

    def test_tokens_are_fresh_and_fit_for_a_url(self, backend: Backend) -> None:
        tokens = {backend.token() for _ in range(100)}
        assert len(tokens) == 100
        assert all(len(token) == 22 and token.isascii() and not set(token) & set("+/=") for token in tokens)

    def test_time_has_bounds_and_never_runs_backwards(self, backend: Backend) -> None:
        instants = [backend.now() for _ in range(100)]
        assert all(instant.earliest_us <= instant.middle_us <= instant.latest_us for instant in instants)
        for before, after in itertools.pairwise(instants):
            assert before.earliest_us <= after.earliest_us

    def test_it_is_a_backend(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)
