"""Streams and their consumers in the simulator: crashes, lost answers, pauses, skewed clocks, torn reads."""

from __future__ import annotations

import pytest

from casework.simulation.runner import explore
from casework.simulation.scenarios.streams import ALL, NaiveReader


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_streams_hold_what_they_promise_under_every_fault(scenario: type) -> None:
    report = explore(scenario, runs=150)
    assert report.failure is None, report.failure and f"seed {report.failure.seed}: {report.failure.problem}"


def test_a_reader_without_the_contiguity_check_is_caught() -> None:
    report = explore(NaiveReader, runs=1000, shrinks=False)
    assert report.failure is not None
