"""A store a network away, in virtual time: every call takes a round trip, a partition takes 1,000 write units a second.

The event loop's clock jumps to the next thing that is due, so a simulated minute takes as long as its computations, and
a run is the same on every machine. What a computation costs is not counted: this measures round trips and contention.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from casework.backends.dynamodb.units import write_units
from casework.backends.memory import MemoryBackend
from casework.backends.port import StoreEffect
from casework.backends.surroundings import SeededTokens
from casework.errors import Throttled
from casework.kernel.effects import Instant, Outcome, Transact, Write
from casework.kernel.items import AnyWrite, Table

T = TypeVar("T")

EPOCH_US = 1_750_000_000_000_000


class _Jumping(selectors.SelectSelector):
    """Waits by moving the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


def simulate(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


class Partition:
    """A bucket of write units that fills at ``rate`` a second and holds a tenth of a second's worth."""

    def __init__(self, rate: float) -> None:
        self.rate, self.room = rate, rate / 10
        self.left, self.at_s = self.room, 0.0

    def take(self, units: float, now_s: float) -> bool:
        self.left = min(self.room, self.left + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.left < units:
            return False
        self.left -= units
        return True


class FarStore:
    """An async backend in virtual time. A transaction that is refused is paid as if it had been carried out.

    Args:
        tables: to make.
        round_trip_s: of every call.
        units_per_s: of one partition.
    """

    def __init__(self, tables: Sequence[Table], *, round_trip_s: float = 0.01, units_per_s: float = 1000) -> None:
        self.memory = MemoryBackend(seed=1)
        self.memory.create_tables(tables)
        self.round_trip_s = round_trip_s
        self.units_per_s = units_per_s
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.calls = 0
        self.throttled = 0
        self.units = 0.0
        self._tokens = SeededTokens(1)

    async def execute(self, effect: StoreEffect) -> Any:
        self.calls += 1
        await asyncio.sleep(self.round_trip_s / 2)
        try:
            if isinstance(effect, Transact):
                self._pay(effect.writes, transactional=True)
            elif isinstance(effect, Write):
                self._pay([effect.write], transactional=False)
            return self.memory.execute(effect)
        finally:
            await asyncio.sleep(self.round_trip_s / 2)

    def _pay(self, writes: Sequence[AnyWrite], *, transactional: bool) -> None:
        due: dict[tuple[str, str], float] = {}
        for write in writes:
            units = write_units(write, self.memory.tables.get(write.key), transactional=transactional).total
            place = (write.key.table.name, write.key.partition)
            due[place] = due.get(place, 0) + units
        now_s = asyncio.get_running_loop().time()
        for place, units in due.items():
            self.units += units
            if not self.partitions.setdefault(place, Partition(self.units_per_s)).take(units, now_s):
                self.throttled += 1
                raise Throttled("the partition has no write units left")

    async def execute_many(self, effects: Sequence[StoreEffect]) -> list[Outcome[Any]]:
        async def one(effect: StoreEffect) -> Outcome[Any]:
            try:
                return Outcome(await self.execute(effect))
            except Exception as error:  # noqa: BLE001
                return Outcome(error=error)

        return list(await asyncio.gather(*(one(effect) for effect in effects)))

    def now(self) -> Instant:
        now_us = EPOCH_US + round(asyncio.get_running_loop().time() * 1e6)
        return Instant(now_us, now_us)

    async def tell_time(self) -> Instant:
        return self.now()

    def token(self) -> str:
        return self._tokens()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        async def call() -> Any:
            return function(*args)

        return call()

    async def create_tables(self, tables: Sequence[Table]) -> None:
        self.memory.create_tables(tables)

    async def close(self) -> None:
        pass
