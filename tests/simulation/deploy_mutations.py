"""Faults planted in what happens where two versions of the code work side by side."""

from __future__ import annotations

from typing import Any

from casework.executions import run_task
from casework.executions.change import Change
from casework.simulation.scenarios import deploying
from casework.statechart import snapshot as chart
from tests.simulation.planting import Fault, patched

_start_children = Change._start_children


def _an_error_where_unknown(self: Change, effect: chart.StartChildren) -> None:
    """A machine that this process does not know is an error of the parent's."""
    if effect.src in self.rt.machines:
        _start_children(self, effect)
        return
    self.later.append(chart.error_invoke(effect.invoke_id, effect.stay, {"message": "unknown", "type": "Unknown"}))


def _its_own_version(rt: Any, task: Any) -> Any:
    """What does not fit the function here fits it nowhere."""
    yield from ()
    return False


_begin = Change.begin


def _bound_to_nothing(self: Change, input: Any) -> None:
    """A child that was started where nobody knew its machine runs on without a definition of its own."""
    before = self.machine_hash
    _begin(self, input)
    self.machine_hash = before


FAULTS = (
    Fault(
        "a machine that a process does not know fails the parent",
        deploying.TwoVersions,
        patched(Change, "_start_children", _an_error_where_unknown),
    ),
    Fault(
        "a name that nobody knew stays a task's",
        deploying.TwoVersions,
        patched(Change, "_is_open", lambda self, effect: False),
    ),
    Fault(
        "a task that does not fit another version's function fails",
        deploying.TwoVersions,
        patched(run_task, "_is_of_another_version", _its_own_version),
    ),
    Fault("a child is begun without a definition", deploying.TwoVersions, patched(Change, "begin", _bound_to_nothing)),
)
