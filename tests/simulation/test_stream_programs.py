"""What the scenarios of failing and slow handlers, of buffering and of repairs are there for really runs in them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from casework.simulation.runner import explore
from casework.simulation.scenarios import buffering, consuming, repairing
from casework.streams import append, consumer, cursors, retention
from tests.simulation.seeds import fixed_seed

PROGRAMS: list[tuple[Any, Any, list[str]]] = [
    (consuming.Failures, cursors, ["note_failure", "park"]),
    (consuming.Failures, consuming, ["resume", "unpark", "parked_ops", "lag"]),
    (consuming.Failures, consumer, ["_failed"]),
    (consuming.SlowHandlers, cursors, ["extend", "note_failure"]),
    (consuming.OverrunHandlers, cursors, ["extend", "take"]),
    (buffering.Buffered, append, ["resolve"]),
    (repairing.Repairs, retention, ["_mark", "_set_head"]),
]


@pytest.mark.parametrize(("scenario", "module", "names"), PROGRAMS, ids=lambda each: getattr(each, "__name__", ""))
def test_each_program_that_a_scenario_is_there_for_runs_in_it(scenario: Any, module: Any, names: list[str]) -> None:
    watched = {name: mock.Mock(side_effect=getattr(module, name)) for name in names}
    with mock.patch.multiple(module, **watched):
        report = explore(scenario, runs=120, first_seed=fixed_seed(scenario.name), shrinks=False)
    assert report.failure is None, str(report.failure)
    calls = {name: watch.call_count for name, watch in watched.items()}
    assert all(calls.values()), f"in 120 runs: {calls}"
