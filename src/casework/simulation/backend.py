"""The simulated store as a backend: each effect is carried to its end in a world of its own making.

So the contract of backends and the differential test run on the very code under which programs are simulated, without
faults; what the world adds is the order of things, which its seed decides.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Any

from casework.backends.port import StoreEffect
from casework.errors import CaseworkError, Contention, Misuse
from casework.kernel.effects import Effect, Get, GetMany, Instant, Outcome, Query, Sleep, Token, Transact, Write
from casework.kernel.items import Table
from casework.simulation.carrier import Process
from casework.simulation.faults import NONE, Faults
from casework.simulation.world import World

_STORE_EFFECTS = (Get, GetMany, Query, Write, Transact)
_STEPS_MAX = 100_000
_ATTEMPTS = 100


class SimulatedBackend:
    """A :class:`~casework.backends.port.Backend` on a :class:`~casework.simulation.world.World`.

    Args:
        seed: of the order in which effects that are under way together take their steps.
        schedule: ``uniform``, ``sticky`` or ``priority``.
        faults: what goes wrong; by default nothing.
    """

    def __init__(self, *, seed: int = 0, schedule: str = "uniform", faults: Faults = NONE) -> None:
        self.world = World(seed, (), schedule=schedule, faults=faults)
        self._process = self.world.process("caller", _ended, may_crash=False)
        self._lock = threading.Lock()

    def execute(self, effect: StoreEffect) -> Any:
        """Carry out one effect; see :class:`casework.backends.port.Backend`."""
        return self.execute_many([effect])[0].result()

    def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        """Carry out independent effects, all of them under way at once; one outcome for each, in order."""
        for effect in effects:
            if not isinstance(effect, _STORE_EFFECTS):
                raise Misuse(f"{effect!r:.80} is not an effect of a store")
        outcomes: list[Any] = [None] * len(effects)
        with self._lock:
            for position, effect in enumerate(effects):
                self.world.spawn(self._process, _keep(effect, outcomes, position), type(effect).__name__)
            self._run(lambda: None not in outcomes)
        return outcomes

    def _run(self, is_over: Any) -> None:
        if not self.world.run(is_over, steps_max=_STEPS_MAX):
            raise CaseworkError(f"an effect of the simulated store did not end within {_STEPS_MAX:,} steps")

    def now(self) -> Instant:
        """The world's time, as the calling host knows it."""
        with self._lock:
            return self._process.now()

    def token(self) -> str:
        """A fresh token."""
        found: list[Any] = [None]
        with self._lock:
            self.world.spawn(self._process, _keep(Token(), found, 0), "token")
            self._run(lambda: found[0] is not None)
        token: str = found[0].result()
        return token

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass, and what the store does by itself with it."""
        found: list[Any] = [None]
        with self._lock:
            self.world.spawn(self._process, _keep(Sleep(seconds), found, 0), "sleep")
            self._run(lambda: found[0] is not None)

    def create_tables(self, tables: Sequence[Table]) -> None:
        """Make the tables that are missing."""
        with self._lock:
            for table in tables:
                self.world.store.tables.create(table)

    def close(self) -> None:
        """Nothing to give back."""


def _ended(process: Process) -> Generator[Effect, Any, Any]:
    """The main program of a process that only carries what it is given."""
    yield Sleep(0)


def _keep(effect: Effect, outcomes: list[Any], position: int) -> Generator[Effect, Any, Any]:
    """Carry out one effect; one that meets another of the same call in a transaction is tried again, as clients do."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            outcomes[position] = Outcome((yield effect))
            return
        except Contention as error:
            if attempt == _ATTEMPTS:
                outcomes[position] = Outcome(error=error)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer
            outcomes[position] = Outcome(error=error)
            return
        yield Sleep(0.001 * attempt * (1 + position % 7))
