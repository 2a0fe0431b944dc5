"""The number of buckets is raised, twice, while senders, timers, listings and workers go on."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.executions import buckets, deliver, listing
from casework.executions.buckets import SETTINGS, WORKERS
from casework.executions.runtime import Options, Runtime
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import FORMAT, REGISTRY
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LOST, ExecutionScenario, insist
from casework.simulation.world import World

COUNTED = """
id: counted
initial: open
context: {seen: []}
states:
  open:
    on:
      Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Close: closing
  closing: {after: {"200ms": over}}
  over: {type: final, output: {expr: context.seen}}
"""


class Raises(ExecutionScenario):
    """Some processes were opened before the first raise, others begin in the middle; all items are found all the time.

    The index does not lag here: a listing is then complete, or it is wrong.
    """

    name = "raises"
    machines = (COUNTED,)
    options = Options(buckets=1, batch_max=4)
    executions, events = 4, 2
    numbers = (3, 7)
    steps_max = 120_000
    faults = msgspec.structs.replace(ROUGH, index_lag=0, skew_s_max=0.0, pause_s_max=4.0)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: dict[str, int] = {}
        self.started: set[str] = set()
        self.missed: list[str] = []
        self.early: list[str] = []
        self.rows: dict[str, Item] = {}
        """Of workers, as they were when ``read_buckets`` was raised last, and unchanged since."""

    def begin_clients(self) -> None:
        """A store as it was made, and who uses it."""
        item: Item = {
            "kind": SETTINGS.partition, "name": str(SETTINGS.sort), "format": FORMAT, "buckets": self.options.buckets,
        }  # fmt: skip
        self.world.store.tables.put_raw(SETTINGS, item)
        self.world.store.watch = self.see
        for n in range(2):
            self.client(f"sender-{n}", lambda rt, n=n: self.send(rt, n))
        self.client("operator", self.raise_them)
        for n in range(2):
            self.world.process(f"lister-{n}", self.list)

    def opened(self) -> Program[Runtime]:
        """What a process knows that opens the store now."""
        rt = self.runtime()
        yield from insist(buckets.refresh, rt)
        return rt

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell."""
        rt = yield from self.opened()
        yield from work(Worker(rt, WorkerOptions(poll_s=0.1, heartbeat_s=0.5, group=8)))

    def send(self, rt: Runtime, n: int) -> Program[None]:
        """Start executions and send to them; now and then by a process that was opened just now."""
        for i in range(n, self.executions, 2):
            id = f"x{i}"
            yield from insist(deliver.start, rt, "counted", id, None)
            self.started.add(id)
            for event in range(self.sent.get(id, 0), self.events):
                yield from sleep(0.03 * self.world.choices.below(6))
                if self.world.choices.below(3) == 1:
                    rt = yield from self.opened()
                way = deliver.handle if self.world.choices.below(2) else deliver.send
                yield from insist(way, rt, id, "Add", {"i": event}, event_id=f"{id}/{event}")
                self.sent[id] = event + 1
            yield from insist(deliver.send, rt, id, "Close", {}, event_id=f"{id}/close")

    def raise_them(self, rt: Runtime) -> Program[None]:
        """Raise the number, and again, whether or not the first raise is complete by then."""
        for number in self.numbers:
            yield from sleep(0.05 * self.world.choices.below(12))
            if buckets.read_number(self.settings()) <= number:
                yield from insist(buckets.raise_buckets, rt, number)

    def list(self, process: Process) -> Generator[Effect, Any, Any]:
        """List everything, page by page, again and again; what there was at the beginning must be in it."""
        rt = yield from self.opened()
        while True:
            there = set(self.started)
            try:
                listed = yield from self.listed(rt)
            except LOST:
                continue
            if there - listed:
                self.missed.append(f"{process.name} missed {sorted(there - listed)}")
            yield from sleep(0.05)

    def listed(self, rt: Runtime) -> Program[set[str]]:
        """The ids of a whole listing."""
        ids: set[str] = set()
        cursor = None
        while True:
            page = yield from listing.list_executions(rt, limit=2, cursor=cursor)
            ids |= {execution.id for execution in page.items}
            cursor = page.next
            if cursor is None:
                return ids
            yield from sleep(0.01 * self.world.choices.below(4))

    # --- what must hold -----------------------------------------------------------------------------------------------

    def settings(self) -> Item:
        """The store's settings as they are stored."""
        item = self.world.store.tables.get(SETTINGS)
        assert item is not None
        return item

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """Nobody puts anything into buckets of which a worker that was there at the raise does not know."""
        if key.table is not REGISTRY or after is None:
            return
        if key.partition == WORKERS:
            self.rows.pop(str(key.sort), None)
        elif key == SETTINGS and before is not None:
            if buckets.read_number(after) > buckets.read_number(before):
                stored = self.world.store.tables.stored(REGISTRY).items
                self.rows = {str(name): dict(row) for (kind, name), row in stored.items() if kind == WORKERS}
            if int(after["buckets"]) > int(before["buckets"]):
                self.early += [
                    f"{name} knows {row['buckets']!r} buckets, and {after['buckets']!r} are put into"
                    for name, row in self.rows.items()
                    if int(row["until_us"]) >= self.world.now_us and int(row["buckets"]) < int(after["buckets"])
                ]

    def is_over(self) -> bool:
        """All have ended, and items are put into all buckets."""
        states = [self.state(f"x{i}") for i in range(self.executions)]
        is_raised = int(self.settings()["buckets"]) == self.numbers[-1]
        return self.is_idle() and is_raised and all(state is not None and state.ended for state in states)

    def waits_for(self) -> str:
        """What goes on."""
        open_ = [f"x{i}" for i in range(self.executions) if (state := self.state(f"x{i}")) is None or not state.ended]
        return f"executions {open_}, settings {self.settings()}, clients {self.left}"

    def problems(self) -> Iterable[str]:
        """Each event once; nothing missed; nothing put where nobody looks."""
        yield from self.missed
        yield from self.early
        for i in range(self.executions):
            seen = self.context(f"x{i}").get("seen")
            if sorted(seen or ()) != list(range(self.events)):  # what is handled in line may overtake
                yield f"x{i} took {seen}"


ALL = (Raises,)
