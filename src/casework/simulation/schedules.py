"""Schedules: who goes next. Each finds what the others miss.

``uniform`` mixes everything; ``sticky`` lets one go on for a while, as real hosts do, so that deep states are reached;
``priority`` (PCT: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS
2010) runs by priorities that change at few random points, and finds bugs that need few, exact switches. ``exhaustive``
walks through every schedule of a small scenario; see ``explore``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from casework.simulation.choices import Choices


class Numbered(Protocol):
    """Who takes steps."""

    number: int
    """Its own as long as it runs."""


class Schedule(Protocol):
    """Decides who goes next."""

    def pick(self, ready: Sequence[Numbered]) -> int:
        """The position of one of those who can go on; at position 0 is whoever went last, if it can."""


class Uniform:
    """Everyone is as likely as everyone else."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def pick(self, ready: Sequence[Numbered]) -> int:
        """Any position."""
        return self._choices.below(len(ready))


class Sticky:
    """Whoever went last goes on nine times in ten."""

    def __init__(self, choices: Choices, stay: float = 0.9) -> None:
        self._choices = choices
        self._stay = stay

    def pick(self, ready: Sequence[Numbered]) -> int:
        """Position 0, or any."""
        choices = self._choices
        if choices.is_replay:
            return choices.replayed(len(ready))
        value = choices.random()
        if value < self._stay:
            return choices.record(0)
        return choices.record(int((value - self._stay) / (1 - self._stay) * len(ready)))


class Priority:
    """The highest priority goes; at ``switches`` random points whoever goes is put last."""

    def __init__(self, choices: Choices, switches: int = 3, length: int = 400) -> None:
        self._choices = choices
        self._priorities: dict[int, float] = {}
        self._steps = 0
        random = choices.random
        self._points = frozenset(int(random() * length) for _ in range(switches))

    def pick(self, ready: Sequence[Numbered]) -> int:
        """The position of the highest priority."""
        choices = self._choices
        if choices.is_replay:
            return choices.replayed(len(ready))
        self._steps += 1
        priorities = self._priorities
        best, best_position = -1.0, 0
        for position, actor in enumerate(ready):
            priority = priorities.get(actor.number)
            if priority is None:
                priority = priorities[actor.number] = 1 + choices.random()
            if priority > best:
                best, best_position = priority, position
        if self._steps in self._points:
            priorities[ready[best_position].number] = choices.random() * 0.5
        elif choices.random() < 0.02:  # nobody who polls for ever may starve the others for ever
            priorities[ready[best_position].number] = 1 + choices.random()
        return choices.record(best_position)


KINDS = ("uniform", "sticky", "priority")


def make(kind: str, choices: Choices) -> Uniform | Sticky | Priority:
    """The schedule of that name."""
    if kind == "priority":
        return Priority(choices)
    return Sticky(choices) if kind == "sticky" else Uniform(choices)


class Explorer:
    """Runs of a small scenario, depth first: replays a prefix of decisions and then takes the plain one of each.

    Iterate over it and run the scenario with each of its choices. Without ``deviations_max`` every schedule is run.
    With it, every run in which at most so many decisions are not the plain one: whoever goes is interrupted, something
    fails, a random number is not 0. Most faults need two (Musuvathi and Qadeer, "Iterative context bounding for
    systematic testing of multithreaded programs", PLDI 2007, who count interruptions only).

    Args:
        runs_max: stop after so many.
        deviations_max: see above; None: no bound.
    """

    def __init__(self, runs_max: int, deviations_max: int | None = None) -> None:
        self._runs_max = runs_max
        self._deviations_max = deviations_max
        self.is_complete = False
        """Whether every such run was run when the iteration ended."""

    def __iter__(self) -> Iterator[ExplorerChoices]:
        prefix: list[int] = []
        for _ in range(self._runs_max):
            choices = ExplorerChoices(prefix)
            yield choices
            following = self._next(choices.taken, choices.bounds)
            if following is None:
                self.is_complete = True
                return
            prefix = following

    def _next(self, taken: list[int], bounds: list[int]) -> list[int] | None:
        """The prefix that comes after a run; None when there is none."""
        deviations = sum(1 for choice in taken if choice)
        for last in range(len(taken) - 1, -1, -1):
            deviations -= taken[last] > 0  # how many there are before this one
            may_deviate = self._deviations_max is None or deviations < self._deviations_max
            if may_deviate and taken[last] + 1 < bounds[last]:
                return [*taken[:last], taken[last] + 1]
        return None


class ExplorerChoices(Choices):
    """A prefix of decisions, and the plain one of each after it; notes how many there were to choose from.

    Of a decision among many values, a length of time for example, the first, the middle and the last one are tried.
    """

    MANY = 16

    def __init__(self, prefix: Sequence[int]) -> None:
        super().__init__(0, prefix)
        self._prefix = prefix
        self.taken: list[int] = []
        """What was chosen, each as a number below its bound."""
        self.bounds: list[int] = []

    def replayed(self, bound: int) -> int:
        """The next decision."""
        is_wide = bound > self.MANY
        position = len(self.taken)
        choice = self._prefix[position] if position < len(self._prefix) else 0
        self.taken.append(choice)
        self.bounds.append(3 if is_wide else bound)
        value = (0, bound // 2, bound - 1)[choice] if is_wide else choice
        return self.record(value)
