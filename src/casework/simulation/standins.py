"""Stand-ins for tasks: what is called instead of a task's function, so that nothing outside is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import Misuse, TaskFailed
from casework.simulation.payloads import Below, draw, fill, guessed_result
from casework.statechart import Machine, check_json
from casework.statechart.durations import delay_us


class StandIn(msgspec.Struct, frozen=True):
    """What one task does."""

    returns: Any = None
    """A payload, drawn anew for each call."""
    fails: float = 0.0
    """The share of attempts that raise; the task's own retry policy goes on from there."""
    error: str = "simulated failure"
    final: bool = False
    """Whether it fails for good (``TaskFailed(retry=False)``), so that it is not tried again."""
    takes: tuple[float, ...] | None = None
    """Seconds that it may take, one of them each time; None: by chance, up to beyond each timer of the chart."""
    function: Callable[..., Any] | None = None
    """The user's own function, called with the task and its arguments; everything above but ``takes`` is left out."""

    def call(self, task: Any, below: Below, /, **kwargs: Any) -> Any:
        """One attempt."""
        if self.function is not None:
            return self.function(task, **kwargs)
        if self.fails and below(1000) >= 1000 * (1 - self.fails):
            if self.final:
                raise TaskFailed(self.error, retry=False)
            raise RuntimeError(self.error)
        return draw(self.returns, below)


_KEYS = {"returns", "fails", "error", "final", "takes"}


def stand_in(given: Any, where: str) -> StandIn:
    """A stand-in as a user writes it: a value, a function, or ``{returns, fails, error, final, takes}``; Misuse."""
    if isinstance(given, StandIn):
        return given
    if callable(given):
        return StandIn(function=given)
    if not isinstance(given, Mapping) or not given or not set(given) <= _KEYS:
        check_json(given, where)
        fill(given, lambda bound: 0)
        return StandIn(given)
    fails = given.get("fails", 0.0)
    if isinstance(fails, bool) or not isinstance(fails, int | float) or not 0 <= fails <= 1:
        raise Misuse(f"{where}: fails is {fails!r:.40}; it is a share of the attempts, from 0 to 1")
    takes = given.get("takes")
    try:
        seconds = None if takes is None else tuple(delay_us(t) / 1e6 for t in _listed(takes))
    except ValueError as error:
        raise Misuse(f"{where}: takes: {error}") from None
    returns = given.get("returns")
    check_json(returns, where)
    fill(returns, lambda bound: 0)
    is_final = given.get("final") is True
    return StandIn(returns, float(fails), str(given.get("error", "simulated failure")), is_final, seconds)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def stand_ins(machines: Sequence[Machine], given: Mapping[str, Any], *, real: bool) -> dict[tuple[str, str], StandIn]:
    """A stand-in for each task of each machine, by machine and task.

    Args:
        machines: the machines.
        given: the user's own, by task.
        real: call the registered functions of all others.

    Raises Misuse for one that no machine has, and for a real one that is not registered.
    """
    found: dict[tuple[str, str], StandIn] = {}
    names = {machine.name for machine in machines}
    for machine in machines:
        for task in sorted(machine.names.tasks - (names - machine.names.only_tasks - set(machine.tasks))):
            if task in given:
                found[machine.name, task] = stand_in(given[task], f"tasks: {task}")
            elif real and task in machine.tasks:
                found[machine.name, task] = StandIn(function=machine.tasks[task])
            elif real:
                raise Misuse(f"machine {machine.name!r} has no function for task {task!r}; register it, or stand in")
            else:
                found[machine.name, task] = StandIn(guessed_result(machine, task))
    unknown = sorted(set(given) - {task for _, task in found})
    if unknown:
        known = ", ".join(sorted({task for _, task in found})) or "none"
        raise Misuse(f"no machine here has a task {unknown[0]!r}; known: {known}")
    return found
