"""Each option of an application, opened one way or the other, changes something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.options.applications import machines
from tests.options.opening_rows import OPENING
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(OPENING), ids=names(OPENING))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert OPENING[place][option].differs()


def test_the_fixture_of_an_application_hands_its_options_on(casework_app: Callable[..., Any]) -> None:
    (*_, second) = machines()
    for trace_max, entries in ((0, 0), (10, 1)):
        app = casework_app(second, trace_max=trace_max)
        app.start("second", id="x")
        assert len(app.trace("x")) == entries


def test_the_fixture_of_a_simulation_hands_its_options_on(casework_simulation: Callable[..., Any]) -> None:
    (*_, second) = machines()
    for runs in (1, 2):
        report = casework_simulation(second, runs=runs, seed=runs, crashes=False)
        assert (report.runs, report.first_seed) == (runs, runs)
    with pytest.raises(AssertionError, match="never"):
        casework_simulation(second, runs=1, invariants=[lambda execution, history: "never"])
