"""Single items, read and written by several at once: what the store itself promises."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from casework.errors import ConditionFailed, Contention, OutcomeUnknown, Throttled
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Effect
from casework.kernel.items import Put, Table
from casework.kernel.programs import get, sleep, transact, write
from casework.simulation.carrier import Process
from casework.simulation.checkers import Operation, not_linearizable
from casework.simulation.runner import Scenario

CELLS = Table(name="cells", partition="id")


def cell(state: Any, operation: Operation) -> tuple[bool, Any]:
    """What reading, and comparing and setting, do to one cell."""
    if operation.name == "read":
        return operation.answer == state, state
    expected, new = operation.argument
    if operation.answer is False:
        return state != expected, state
    return state == expected, new


class Cells(Scenario):
    """Two cells, three clients that read, compare and set them, one at a time or both in a transaction."""

    name = "cells"
    tables = (CELLS,)
    clients, rounds = 3, 5

    def begin(self) -> None:
        """Start the clients."""
        self.left = self.clients
        for n in range(self.clients):
            self.world.process(f"client-{n}", self.client, may_crash=False)

    def client(self, process: Process) -> Generator[Effect, Any, Any]:
        """Read a cell, then set it on condition of what was read."""
        world = self.world
        for i in range(self.rounds):
            key = f"c{world.choices.below(2)}"
            called = world.steps
            item = yield from get(CELLS.key(key))
            value = None if item is None else item["v"]
            self.note(key, "read", None, value, called, world.steps)
            yield from self.compare_and_set(key, value, f"{process.name}/{i}", plain=world.choices.below(2) == 0)
            yield from sleep(0.001 * world.choices.below(5))
        self.left -= 1

    def compare_and_set(self, key: str, expected: Any, new: str, *, plain: bool) -> Generator[Effect, Any, Any]:
        """One conditional write, alone or as a transaction."""
        put = Put(CELLS, {"id": key, "v": new}, absent() if expected is None else equals("v", expected))
        called = self.world.steps
        answer: bool | None
        try:
            if plain:
                yield from write(put)
            else:
                yield from transact([put])
            answer = True
        except ConditionFailed:
            answer = False
        except OutcomeUnknown:
            self.note(key, "set", (expected, new), True, called, None)
            return
        except (Contention, Throttled):
            return  # nothing was applied
        self.note(key, "set", (expected, new), answer, called, self.world.steps)

    def note(self, key: str, name: str, argument: Any, answer: Any, called: int, answered: int | None) -> None:
        """Remember what a client saw."""
        self.world.history.append(Operation(key, name, argument, answer, called, answered))

    def is_over(self) -> bool:
        """Every client has finished, and no transaction is under way."""
        return not self.left and not self.world.store.locks

    def problems(self) -> Iterable[str]:
        """Each cell's history is linearizable."""
        why = not_linearizable(self.world.history, cell)
        if why:
            yield why


ALL = (Cells,)
