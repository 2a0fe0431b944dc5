"""What users say must hold, and what they are shown of a run when it is asked: ``@casework.invariant``.

An invariant is a function of an execution and its history, called at every commit and once more at the end of the run.
It fails when it returns False or a text, or raises; returning None or True means that it holds.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from casework.errors import Misuse
from casework.executions.deliver import Execution
from casework.kernel.containment import in_words, is_interrupt, shown, text_of
from casework.statechart import Machine


class TaskCall(msgspec.Struct):
    """One call of a task's function, or of its stand-in. Each attempt is a call."""

    name: str
    execution_id: str
    key: str
    """The idempotency key, the same for every attempt at one task."""
    attempt: int
    kwargs: Mapping[str, Any]
    at_s: float
    """Virtual seconds since the run began."""
    result: Any = None
    error: str = ""
    """What the function raised; empty when it returned."""


class Sent(msgspec.Struct):
    """An event that was sent from outside, once for each time."""

    type: str
    data: Any
    id: str | None
    at_s: float
    is_again: bool = False
    """The same event once more: a duplicate, or a repeat by a sender who got no answer."""
    is_acknowledged: bool = False
    is_guessed: bool = False
    """Its payload was made up by the simulator."""


class Commit(msgspec.Struct):
    """One step of an execution, as it was stored."""

    version: int
    at_s: float
    execution: Execution
    events: list[dict[str, Any]]
    """What was taken: ``event``, ``from``, ``to``, and where there are any ``id``, ``stay``, ``duplicate``."""


class History:
    """What happened to one execution so far."""

    def __init__(self, id: str, machine: str, executions: Mapping[str, Execution], calls: list[TaskCall]) -> None:
        self.id = id
        self.machine = machine
        self.commits: list[Commit] = []
        self.sent: list[Sent] = []
        self.executions = executions
        """Every execution of the run by id, as it is stored now; children are among them."""
        self.is_over = False
        """Whether the run has ended: nothing is due any more."""
        self._calls = calls

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that was taken, in order."""
        return [event for commit in self.commits for event in commit.events]

    def calls(self, task: str | None = None) -> list[TaskCall]:
        """Calls of this execution's task functions so far; ``task`` picks one."""
        return [call for call in self._calls if call.execution_id == self.id and task in (None, call.name)]

    def visited(self, state: str) -> bool:
        """Whether the state at that path, or one inside it, was ever active."""
        return any(commit.execution.is_in(state) for commit in self.commits)


Invariant = Callable[[Execution, History], Any]
F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__casework_invariant__"
_of_machines: WeakKeyDictionary[Any, list[Invariant]] = WeakKeyDictionary()
"""By a machine's tables, which it has in common with the views that applications have of it, and with no other one."""


def invariant(what: Any) -> Any:
    """Mark a function as an invariant: ``@casework.invariant``, or ``@casework.invariant(machine)`` for one machine's.

    ``casework simulate MODULE`` finds the marked functions of that module; an invariant of a machine goes with the
    machine wherever it is simulated. Others are given to :func:`casework.simulate`. The function itself is unchanged::

        @casework.invariant(order)
        def never_charged_twice(execution, history):
            keys = {call.key for call in history.calls("charge_card")}
            assert len(keys) <= 1, f"charged as {sorted(keys)}"
    """
    if isinstance(what, Machine):
        machine = what

        def register(function: F) -> F:
            found = _of_machines.setdefault(machine.tables, [])
            if function not in found:
                found.append(function)
            return function

        return register
    if not callable(what):
        raise Misuse(f"@casework.invariant takes a function or a machine, not {what!r:.60}")
    setattr(what, _MARK, True)
    return what


def invariants_of(machine: Machine) -> list[Invariant]:
    """Those registered with ``@casework.invariant(machine)``, which an application may know by a view of its own."""
    return list(_of_machines.get(machine.tables, ()))


def marked(values: Iterable[Any]) -> list[Invariant]:
    """The functions among ``values`` that ``@casework.invariant`` marked."""
    return [value for value in values if callable(value) and getattr(value, _MARK, False) is True]


def broken(check: Invariant, execution: Execution, history: History) -> str:
    """Why an invariant does not hold; empty when it does."""
    name = getattr(check, "__name__", shown(check))
    try:
        answer = check(execution, history)
    except AssertionError as error:
        why = text_of(error) or _failed_line(error)
    except BaseException as error:
        if is_interrupt(error):
            raise
        why = f"it raised {in_words(error)}"
    else:
        if answer is None or answer is True:
            return ""
        why = answer if isinstance(answer, str) else f"it returned {shown(answer, 200)}"
    return f"{execution.id}: {name} does not hold: {why}"


def _failed_line(error: AssertionError) -> str:
    """The line of source of an assertion without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line if frames else None
    return f"{line} (line {frames[-1].lineno})" if line else "its assertion failed"
