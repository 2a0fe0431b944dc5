"""Stand-ins for tasks: what is called instead of a task's function, so that nothing outside is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import Misuse, TaskFailed
from casework.simulation.guesses import Guess, Guesses
from casework.simulation.payloads import Below, draw, fill
from casework.statechart import Machine, check_json
from casework.statechart.durations import delay_us
from casework.statechart.suggestions import suggestion


class StandIn(msgspec.Struct, frozen=True):
    """What one task does."""

    returns: Any = None
    """A payload, drawn anew for each call. What the chart reads of it where a user says how, and not what."""
    fails: float = 0.0
    """The share of attempts that raise; the task's own retry policy goes on from there."""
    error: str = "simulated failure"
    final: bool = False
    """Whether it fails for good (``TaskFailed(retry=False)``), so that it is not tried again."""
    takes: tuple[float, ...] | None = None
    """Seconds that it may take, one of them each time; None: by chance, up to beyond each timer of the chart."""
    function: Callable[..., Any] | None = None
    """The user's own function, called with the task and its arguments; everything above but ``takes`` is left out."""
    guess: Guess | None = None
    """Where ``returns`` was guessed: from what."""

    def call(self, task: Any, below: Below, /, **kwargs: Any) -> Any:
        """One attempt."""
        if self.function is not None:
            return self.function(task, **kwargs)
        if self.fails and below(1000) >= 1000 * (1 - self.fails):
            if self.final:
                raise TaskFailed(self.error, retry=False)
            raise RuntimeError(self.error)
        return draw(self.returns, below)


_KEYS = ("returns", "fails", "error", "final", "takes")
_CLOSE = 0.75
"""How much a key must look like one of those to be taken for it, misspelt."""


def stand_in(given: Any, where: str) -> StandIn:
    """A stand-in as a user writes it: a value, a function, or ``{returns, fails, error, final, takes}``; Misuse."""
    if isinstance(given, StandIn):
        return given
    if callable(given):
        return StandIn(function=given)
    if not isinstance(given, Mapping) or not _says_how(given, where):
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
    if seconds == ():
        raise Misuse(f"{where}: takes is empty; it is a duration, or a list of some, as in [10ms, 20m]")
    returns, final, says = given.get("returns"), given.get("final", False), given.get("error", "simulated failure")
    check_json(returns, where)
    fill(returns, lambda bound: 0)
    if not isinstance(final, bool):
        raise Misuse(f"{where}: final is {final!r:.40}; it is true or false")
    if not isinstance(says, str):
        raise Misuse(f"{where}: error is {says!r:.40}; it is the message of the failure")
    return StandIn(returns, float(fails), says, final, seconds)


def _says_how(given: Mapping[Any, Any], where: str) -> bool:
    """Whether a mapping says what a task does, and is not its result; Misuse for one that can be neither."""
    import difflib  # when a simulation begins only: it is slow to import

    strange = [key for key in given if key not in _KEYS]
    if not strange:
        return bool(given)
    for key in strange:
        swapped = [known for known in _KEYS if sorted(known) == sorted(str(key))]
        close = swapped or difflib.get_close_matches(str(key), _KEYS, 1, _CLOSE)
        if close or len(strange) < len(given):
            meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_KEYS)};"
            raise Misuse(
                f"{where}: a stand-in has no {key!r} ({meant} to return a mapping with that key, "
                f"write {{returns: {{{key}: ...}}}})"
            )
    return False


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def stand_ins(
    machines: Sequence[Machine], given: Mapping[str, Any], guesses: Mapping[str, Guesses], *, real: bool
) -> dict[tuple[str, str], StandIn]:
    """A stand-in for each task of each machine, by machine and task.

    Args:
        machines: the machines.
        given: the user's own, by task.
        guesses: by machine: what all others return.
        real: call the registered functions of all others.

    Raises Misuse for one that no machine has, and for a real one that is not registered.
    """
    if not isinstance(given, Mapping):
        raise Misuse(f"tasks is {given!r:.60}; it is a mapping from a task's name to its stand-in")
    found: dict[tuple[str, str], StandIn] = {}
    names = {machine.name for machine in machines}
    for machine in machines:
        for task in sorted(machine.names.tasks - (names - machine.names.only_tasks - set(machine.tasks))):
            guess = guesses[machine.name].result(task)
            if task in given:
                known = stand_in(given[task], f"tasks: {task}")
                if isinstance(given[task], Mapping) and set(given[task]) <= {*_KEYS} - {"returns"} and given[task]:
                    known = msgspec.structs.replace(known, returns=guess.template, guess=guess)
                found[machine.name, task] = known
            elif real and task in machine.tasks:
                found[machine.name, task] = StandIn(function=machine.tasks[task])
            elif real:
                raise Misuse(f"machine {machine.name!r} has no function for task {task!r}; register it, or stand in")
            else:
                found[machine.name, task] = StandIn(guess.template, guess=guess)
    unknown = sorted(set(given) - {task for _, task in found}, key=str)
    if unknown:
        hint = suggestion(str(unknown[0]), {task for _, task in found})
        raise Misuse(f"no machine here has a task {unknown[0]!r} ({hint})")
    return found
