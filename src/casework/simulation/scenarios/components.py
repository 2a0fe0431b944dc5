"""The execution store as a component: engines that race for one execution, its outbox and its timers."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import AlreadyProcessed, StoreConflict
from casework.executions import store
from casework.executions.store import Shared
from casework.executions.store_items import StoredExecution, TimerOp
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, now, sleep
from casework.kernel.schema import TABLES
from casework.simulation.carrier import Process
from casework.simulation.runner import Scenario
from casework.simulation.scenarios.executions import LOST


class Engines(Scenario):
    """Two engines take the same events for one execution; a dispatcher and two timekeepers serve what they leave.

    An engine stores the events that it took, an emit and a timer for each, in one commit.
    """

    name = "engines"
    tables = TABLES
    engines, events = 2, 4

    def begin(self) -> None:
        """Start everybody."""
        self.left = set(range(self.engines))
        self.heard: collections.Counter[str] = collections.Counter()
        self.fired: collections.Counter[str] = collections.Counter()
        for n in range(self.engines):
            self.world.process(f"engine-{n}", lambda process, n=n: self.engine(n))  # type: ignore[misc]
        self.world.process("dispatcher", self.dispatch)
        for n in range(2):
            self.world.process(f"timekeeper-{n}", self.keep_time, may_crash=False)

    def engine(self, n: int) -> Generator[Effect, Any, Any]:
        """Take every event that was not taken; each engine begins with another one."""
        shared = Shared(buckets=1)
        for i in [(n + k) % self.events for k in range(self.events)]:
            while True:
                try:
                    yield from self.take(shared, f"e{i}")
                except (StoreConflict, *LOST):
                    yield from sleep(0.02)
                    continue
                except AlreadyProcessed:
                    pass
                break
        self.left.discard(n)

    def take(self, shared: Shared, event: str) -> Program[None]:
        """Load, take the event, commit; nothing when it was taken."""
        exe, is_known = yield from store.load_for_event(shared, "x", event)
        if is_known:
            return
        if exe is None:
            exe = StoredExecution("x", "[]", machine="m")
        exe.data = msgspec.json.encode([*msgspec.json.decode(exe.data), event]).decode()
        moment = yield from now()
        due_s = moment.middle_us / 1e6 + 0.2
        yield from store.commit(
            shared, exe, [("y", f"{event}/out"), (None, f"{event}/bus")], processed_event_id=event,
            timers=[TimerOp("schedule", event, due_s)],
        )  # fmt: skip

    def dispatch(self, process: Process) -> Generator[Effect, Any, Any]:
        """Hand on every emit, then acknowledge it."""
        shared = Shared(buckets=1)
        while True:
            try:
                entries = yield from store.pending_outbox(shared)
                for entry in entries:
                    self.heard[entry.event] += 1
                    yield from store.acknowledge(shared, entry.seq)
            except LOST:
                pass
            yield from sleep(0.05)

    def keep_time(self, process: Process) -> Generator[Effect, Any, Any]:
        """Remove timers that are due; whoever removed one fires it."""
        shared = Shared(buckets=1)
        while True:
            try:
                moment = yield from now()
                due = yield from store.due_timers(shared, moment.earliest_us / 1e6)
                for id, path, fire_at in due:
                    if (yield from store.delete_timer(shared, id, path, fire_at)):
                        self.fired[path] += 1
            except LOST:
                pass
            yield from sleep(0.05)

    def waiting(self) -> list[str]:
        """What is still to be handed on or to fire."""
        items = self.world.store.tables.stored(TABLES[0]).items.values()
        return [str(item["sort"]) for item in items if "pending" in item]

    def is_over(self) -> bool:
        """All was taken, handed on and fired."""
        return not self.left and not self.world.store.locks and not self.waiting()

    def waits_for(self) -> str:
        """What is left."""
        return f"engines {sorted(self.left)}, items {self.waiting()}"

    def problems(self) -> Iterable[str]:
        """Each event once; each emit at least once; no timer twice."""
        item = self.world.store.tables.get(TABLES[0].key("x", "0"))
        assert item is not None
        taken = msgspec.json.decode(str(item["data"]), type=list[str])
        events = [f"e{i}" for i in range(self.events)]
        if sorted(taken) != events:
            yield f"events taken: {taken}"
        if item["version"] != self.events:
            yield f"{self.events} commits gave version {item['version']!r}"
        missing = {f"{event}/{way}" for event in events for way in ("out", "bus")} - set(self.heard)
        if missing:
            yield f"emits never handed on: {sorted(missing)}"
        if repeated := [path for path, count in self.fired.items() if count > 1]:
            yield f"timers that fired twice: {repeated}"


ALL = (Engines,)
