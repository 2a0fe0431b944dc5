"""A store at its weakest, and a schedule from a seed: programs interleave at each effect, die and come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from casework.backends.drive import perform
from casework.backends.memory import MemoryBackend
from casework.backends.refusals import raise_refusals
from casework.errors import Contention, OutcomeUnknown
from casework.kernel.effects import Sleep, Transact, Write
from casework.kernel.items import AnyWrite, Check
from casework.kernel.programs import Program
from tests.executions.stepping import fresh_backend

Mutation = Callable[[Transact], Transact]


class Weak:
    """Transactions become visible item by item, in any order; an item on its way refuses every other write of it.

    Answers to transactions are lost now and then, after they were applied or instead of it.
    """

    def __init__(self, dice: random.Random, mutation: Mutation | None, loses: float) -> None:
        self._backend: MemoryBackend = fresh_backend()
        self._dice = dice
        self._mutation = mutation
        self._loses = loses
        self.in_flight: list[AnyWrite] = []

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Transact):
            return self._transact(effect if self._mutation is None else self._mutation(effect))
        if isinstance(effect, Write):
            self._conflicts([effect.write])
        return self._backend.execute(effect)

    def _transact(self, effect: Transact) -> None:
        lost = self._dice.random() < self._loses
        if lost and self._dice.random() < 0.5:
            raise OutcomeUnknown("lost on the way there")
        self._conflicts(effect.writes)
        raise_refusals(self._backend.tables.refusals(effect.writes))
        self.in_flight += [write for write in effect.writes if not isinstance(write, Check)]
        for _ in range(self._dice.randint(0, len(self.in_flight))):
            self.tick()
        if lost:
            raise OutcomeUnknown("lost on the way back")

    def _conflicts(self, writes: Any) -> None:
        held = {write.key for write in self.in_flight}
        if any(write.key in held for write in writes):
            raise Contention("an item is in another transaction")

    def tick(self) -> None:
        """One item, any of those on their way, becomes visible."""
        if self.in_flight:
            self._backend.tables.apply(self.in_flight.pop(self._dice.randrange(len(self.in_flight))))

    def settle(self) -> None:
        """All of them do."""
        while self.in_flight:
            self.tick()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Actor:
    """One process: it begins a program, may die at any of its effects, and then begins it again."""

    def __init__(self, name: str, begin: Callable[[], Program[Any]], *, dies: float = 0.0, again: bool = False) -> None:
        self.name, self.begin, self.dies, self.again = name, begin, dies, again
        self.program = begin()
        self.answer: Any = None
        self.error: Exception | None = None
        self.results: list[Any] = []
        self.done = False

    def step(self, backend: Weak, dice: random.Random) -> None:
        """Go on by one effect."""
        if dice.random() < self.dies:
            self.program.close()
            self._restart()
            return
        try:
            if self.error is not None:
                effect = self.program.throw(self.error)
            else:
                effect = self.program.send(self.answer)
        except StopIteration as stop:
            self.results.append(stop.value)
            self._restart()
            self.done = not self.again
            return
        self.answer = self.error = None
        try:
            self.answer = None if isinstance(effect, Sleep) else perform(effect, backend)  # type: ignore[arg-type]
        except Exception as error:
            self.error = error

    def _restart(self) -> None:
        self.program, self.answer, self.error = self.begin(), None, None


def play(actors: list[Actor], backend: Weak, dice: random.Random, *, steps_max: int = 20_000) -> None:
    """Let the actors interleave until all that end have ended. AssertionError when somebody is wedged."""
    speed = dice.choice([0.1, 0.2, 0.4])
    for _ in range(steps_max):
        going = [actor for actor in actors if not actor.done]
        if all(actor.again for actor in going):
            return
        dice.choice(going).step(backend, dice)
        if dice.random() < speed:
            backend.tick()
    raise AssertionError(f"wedged: {[actor.name for actor in actors if not actor.done and not actor.again]}")
