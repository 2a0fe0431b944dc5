"""The simulated store without faults keeps the contract, and answers as the reference does; under lag, too."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casework.backends.port import Backend
from casework.simulation.backend import SimulatedBackend
from casework.simulation.faults import Faults
from casework.simulation.schedules import KINDS
from casework.testing.backend_contract import BackendContract
from casework.testing.contract_tables import CONTRACT_TABLES
from casework.testing.differential import assert_same_answers, sequences

LAGGING = Faults(index_lag=30)


@pytest.fixture(scope="module", params=KINDS)
def simulated(request: pytest.FixtureRequest) -> SimulatedBackend:
    return SimulatedBackend(seed=7, schedule=request.param)


@pytest.fixture(scope="module")
def lagging() -> SimulatedBackend:
    return SimulatedBackend(seed=7, faults=LAGGING)


class TestSimulated(BackendContract):
    @pytest.fixture
    def backend(self, simulated: SimulatedBackend) -> Backend:
        return simulated


class TestSimulatedWithIndexesThatLag(BackendContract):
    @pytest.fixture
    def backend(self, lagging: SimulatedBackend) -> Backend:
        return lagging


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=sequences(), seed=st.integers(0, 1 << 30), faults=st.sampled_from((Faults(), LAGGING)))
def test_the_simulated_store_answers_as_the_reference_does(steps: list, seed: int, faults: Faults) -> None:
    backend = SimulatedBackend(seed=seed, schedule=KINDS[seed % len(KINDS)], faults=faults)
    backend.create_tables(CONTRACT_TABLES)
    assert_same_answers(backend, steps)
