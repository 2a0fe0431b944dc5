"""Planted faults in how a worker bears with functions that do not return, and with a bell that does not stop."""

from __future__ import annotations

from typing import Any

from casework.executions import holding, run_task, worker
from casework.simulation.scenarios.returning import Returning
from tests.simulation.planting import Fault, patched


def _all_free(self: Any, shell: Any) -> None:
    """A thread that was left counts as free."""
    self.threads = self.coroutines = max(0, shell.options.concurrency - len(shell.running))


def _answers_all(shell: Any) -> Any:
    """What was rung is answered until nothing rings any more."""
    did = 0
    while ids := shell.bell.rung(shell.options.group):
        did += yield from worker._advance_all(shell, ids)
    return did


def _never(self: Any, now_us: int, beats: int) -> str:
    """No bound of a task passes."""
    return ""


FAULTS = (
    Fault("a thread that was left is free", Returning, patched(holding.Room, "__init__", _all_free)),
    Fault(
        "a task has no bound but its lease",
        Returning,
        patched(run_task._Watch, "overdue", _never),
    ),
    Fault("a bell is answered until it is still", Returning, patched(worker, "_answer_bell", _answers_all)),
)
