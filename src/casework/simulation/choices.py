"""Where a simulated run's decisions come from: a seed, or a recorded list.

Every decision of a run (who goes next, what fails) is one small number drawn here, so a run is a list of numbers. The
same list gives the same run; a shorter list, or one with more zeros, gives a simpler one: 0 always means the plain
choice, "whoever ran last goes on" or "nothing fails". That is what shrinking uses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Choices:
    """Decisions drawn from a seed and recorded, or replayed from a list.

    Args:
        seed: of the random numbers.
        replay: draw these instead; behind their end every decision is 0.
    """

    def __init__(self, seed: int, replay: Sequence[int] | None = None) -> None:
        self.seed = seed
        self.made: list[int] = []
        self._replay = replay
        self._position = 0
        self.random = random.Random(seed).random
        self._note = self.made.append

    @property
    def is_replay(self) -> bool:
        """Whether decisions come from a list."""
        return self._replay is not None

    def replayed(self, bound: int) -> int:
        """The next decision of the list, below ``bound``."""
        assert self._replay is not None
        position = self._position
        self._position += 1
        value = self._replay[position] % bound if position < len(self._replay) else 0
        self._note(value)
        return value

    def below(self, bound: int) -> int:
        """A number from 0 to ``bound`` - 1."""
        if self._replay is not None:
            return self.replayed(bound)
        value = int(self.random() * bound)
        self._note(value)
        return value

    def happens(self, probability: float) -> bool:
        """Whether something of that probability happens. Draws nothing when it cannot."""
        if not probability:
            return False
        if self._replay is not None:
            return self.replayed(2) == 1
        value = self.random() < probability
        self._note(1 if value else 0)
        return value

    def which(self, first: float, second: float) -> int:
        """1 or 2, with the probability of each, or 0 for neither. Draws nothing when nothing can be.

        What cannot happen is no choice: a replay, and whoever tries all choices, would let it happen.
        """
        if not first or not second:
            return int(self.happens(first)) or 2 * self.happens(second)
        if self._replay is not None:
            return self.replayed(3)
        value = self.random()
        which = 0 if value >= first + second else 1 if value < first else 2
        self._note(which)
        return which

    def record(self, value: int) -> int:
        """Note a decision that a schedule made by rules of its own."""
        self._note(value)
        return value
