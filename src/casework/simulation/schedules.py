"""Schedules: who goes next. Each finds what the others miss.

``uniform`` mixes everything; ``sticky`` lets one go on for a while, as real hosts do, so that deep states are reached;
``priority`` (PCT: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS
2010) runs by priorities that change at few random points, and finds bugs that need few, exact switches. ``exhaustive``
walks through every schedule of a small scenario; see ``explore``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from casework.simulation.choices import Choices


class Schedule(Protocol):
    """Decides who goes next."""

    def pick(self, count: int, names: list[int]) -> int:
        """A position below ``count``; position 0 is whoever went last, if it can go on.

        ``names`` are the numbers of those who can go, which stay theirs as long as they run.
        """


class Uniform:
    """Everyone is as likely as everyone else."""

    needs_names = False

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def pick(self, count: int, names: list[int]) -> int:
        """Any position."""
        return self._choices.below(count)


class Sticky:
    """Whoever went last goes on nine times in ten."""

    needs_names = False

    def __init__(self, choices: Choices, stay: float = 0.9) -> None:
        self._choices = choices
        self._stay = stay

    def pick(self, count: int, names: list[int]) -> int:
        """Position 0, or any."""
        choices = self._choices
        if choices.is_replay:
            return choices.replayed(count)
        value = choices.random()
        if value < self._stay:
            return choices.record(0)
        return choices.record(int((value - self._stay) / (1 - self._stay) * count))


class Priority:
    """The highest priority goes; at ``switches`` random points whoever goes is put last."""

    needs_names = True

    def __init__(self, choices: Choices, switches: int = 3, length: int = 400) -> None:
        self._choices = choices
        self._priorities: dict[int, float] = {}
        self._steps = 0
        random = choices.random
        self._points = frozenset(int(random() * length) for _ in range(switches))

    def pick(self, count: int, names: list[int]) -> int:
        """The position of the highest priority."""
        choices = self._choices
        if choices.is_replay:
            return choices.replayed(count)
        self._steps += 1
        priorities = self._priorities
        best, best_position = -1.0, 0
        for position, name in enumerate(names):
            priority = priorities.get(name)
            if priority is None:
                priority = priorities[name] = 1 + choices.random()
            if priority > best:
                best, best_position = priority, position
        if self._steps in self._points:
            priorities[names[best_position]] = choices.random() * 0.5
        elif choices.random() < 0.02:  # nobody who polls for ever may starve the others for ever
            priorities[names[best_position]] = 1 + choices.random()
        return choices.record(best_position)


KINDS = ("uniform", "sticky", "priority")


def make(kind: str, choices: Choices) -> Uniform | Sticky | Priority:
    """The schedule of that name."""
    if kind == "priority":
        return Priority(choices)
    return Sticky(choices) if kind == "sticky" else Uniform(choices)


class Explorer:
    """Every schedule of a small scenario, depth first: replays a prefix of decisions and then takes the first of each.

    Iterate over it, run the scenario with each prefix, and say what was decided with :meth:`ran`.
    """

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._bounds: list[int] = []
        self._made: list[int] = []
        self.is_complete = False
        """Whether every schedule was run when the iteration ended."""

    def __iter__(self) -> Iterator[ExplorerChoices]:
        prefix: list[int] = []
        for _ in range(self._runs_max):
            choices = ExplorerChoices(prefix)
            yield choices
            self._made, self._bounds = choices.made, choices.bounds
            last = len(self._made) - 1
            while last >= 0 and self._made[last] + 1 >= self._bounds[last]:
                last -= 1
            if last < 0:
                self.is_complete = True
                return
            prefix = [*self._made[:last], self._made[last] + 1]


class ExplorerChoices(Choices):
    """A prefix of decisions, and the first of each after it; notes how many there were to choose from."""

    def __init__(self, prefix: list[int]) -> None:
        super().__init__(0, prefix)
        self.bounds: list[int] = []

    def replayed(self, bound: int) -> int:
        """The next decision."""
        self.bounds.append(bound)
        return super().replayed(bound)
