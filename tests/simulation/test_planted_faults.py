"""Every planted fault is caught; what is not mutated survives."""

from __future__ import annotations

import re
from typing import Any

import pytest

from casework.simulation.runner import Report, Scenario, explore
from casework.simulation.scenarios import (
    consuming,
    executions,
    lifecycle,
    operated,
    outcomes,
    raising,
    streams,
    transactions,
    truncation,
)
from casework.simulation.scenarios.catalogue import SCENARIOS
from tests.simulation import (
    clock_mutations,
    consumer_mutations,
    deploy_mutations,
    idempotency_mutations,
    lifecycle_mutations,
    mutations,
    operator_mutations,
    outcome_mutations,
    race_mutations,
    raise_mutations,
    repair_mutations,
    returning_mutations,
    stream_mutations,
    transaction_mutations,
)
from tests.simulation.classics import MISTAKES, SOUND
from tests.simulation.planting import Fault
from tests.simulation.seeds import fixed_seed, fresh_seed

VARIANTS = {
    executions.ChildrenHarsh, executions.ShellHarsh, streams.AppendsHarsh, streams.ConsumersHarsh,
    truncation.TruncationAtOnce, truncation.Keepers, outcomes.Asked, outcomes.Parked, consuming.OverrunHandlers,
    lifecycle.LivesPublished, transactions.FinishedOnce, raising.Raises, operated.Operated,
}  # fmt: skip
"""The same as another scenario with other faults or settings, or long: fewer seeds in `make test`, not in a soak."""
FAULTS = (
    *mutations.FAULTS, *race_mutations.FAULTS, *lifecycle_mutations.FAULTS, *stream_mutations.FAULTS,
    *outcome_mutations.FAULTS, *consumer_mutations.FAULTS, *repair_mutations.FAULTS,
    *deploy_mutations.FAULTS, *operator_mutations.FAULTS, *returning_mutations.FAULTS,
    *idempotency_mutations.FAULTS, *clock_mutations.FAULTS, *raise_mutations.FAULTS,
    *transaction_mutations.FAULTS,
)  # fmt: skip
SEEDS_MAX = 6000
"""A fault that is not found within so many seeds fails the test; medians stand far below."""

MISFIT = re.compile(r"raised (TypeError|AttributeError|NameError|ImportError)")
"""What a planted fault does that was written for other code: everybody would find that."""


class Impatient:
    """A scenario that is stuck earlier: a fault that stops everything is seen sooner. The sound one still ends."""

    def __new__(cls, scenario: type[Scenario]) -> Any:
        return type(scenario.__name__, (scenario,), {"steps_max": scenario.steps_max * 2 // 3})


def found(scenario: Any, runs: int, name: str) -> Report:
    return explore(Impatient(scenario), runs=runs, first_seed=fixed_seed(name), shrinks=False)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_in_our_programs_is_caught(fault: Fault) -> None:
    with fault.plant():
        report = found(fault.scenario, SEEDS_MAX, fault.name)
    assert report.failure is not None, f"{fault.name}: not found by {report.runs} seeds of {report.scenario}"
    assert not MISFIT.search(report.failure.problem), f"{fault.name} does not fit the code: {report.failure.problem}"


@pytest.mark.parametrize("design", MISTAKES, ids=lambda design: design.__name__)
def test_a_classic_mistake_is_caught(design: Any) -> None:
    report = found(design, 10 * SEEDS_MAX, design.__name__)  # small and quick, and one of them is rare
    assert report.failure is not None, f"{design.__name__}: not found by {report.runs} seeds"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_not_mutated_survives_four_hundred_seeds_or_as_a_variant_one_hundred(scenario: Any) -> None:
    runs = 100 if scenario in VARIANTS else 400
    report = explore(scenario, runs=runs, first_seed=fixed_seed(scenario.name))
    assert report.failure is None, str(report.failure)
    assert report.runs == runs


@pytest.mark.parametrize("design", SOUND, ids=lambda design: design.__name__)
def test_a_sound_classic_design_survives(design: Any) -> None:
    report = explore(design, runs=2000, first_seed=fixed_seed(design.__name__))
    assert report.failure is None, str(report.failure)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_an_impatient_scenario_without_a_fault_ends_all_the_same(scenario: Any) -> None:
    report = found(scenario, 80, f"impatient {scenario.name}")
    assert report.failure is None, str(report.failure)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_not_mutated_survives_a_hundred_thousand_seeds(scenario: Any) -> None:
    report = explore(scenario, runs=100_000, first_seed=fresh_seed())
    assert report.failure is None, str(report.failure)
    assert report.runs == 100_000
