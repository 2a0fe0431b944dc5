"""Scenarios of single races of executions: each sets up what one sentence of the design is about."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from casework.errors import Contention, OutcomeUnknown, Throttled, Unavailable
from casework.executions import control, deliver
from casework.executions.advance import advance
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE, decode_timers
from casework.kernel.effects import Effect
from casework.kernel.programs import Program, query, sleep
from casework.kernel.schema import EXECUTIONS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LEDGER, PARENT, Children, ExecutionScenario, insist
from casework.statechart import Machine

TRUE_CLOCKS = msgspec.structs.replace(ROUGH, skew_s_max=0.0, clock_error_s=0.0)


class Nameless(ExecutionScenario):
    """Events without an id of their sender's, each sent once: none takes effect twice, and none that was acknowledged
    is lost. What keeps a repeat of the driver's from counting again is the transaction's token alone.
    """

    name = "nameless"
    machines = (LEDGER,)
    faults = msgspec.structs.replace(ROUGH, lost=0.2, pause_s_max=10.0)
    options = Options(buckets=1, batch_max=1)
    workers = 3
    senders, events = 2, 5

    def begin_clients(self) -> None:
        """Those who send."""
        self.sent: set[tuple[int, int]] = set()
        self.acknowledged: set[tuple[int, int]] = set()
        self.client("starter", lambda rt: insist(deliver.start, rt, "ledger", "x", None))
        for n in range(self.senders):
            self.client(f"sender-{n}", lambda rt, n=n: self.send(rt, n))

    def send(self, rt: Runtime, n: int) -> Program[None]:
        """Each event once, and again only where the answer says that it was not stored."""
        while self.state("x") is None:
            yield from sleep(0.01)
        for i in range(self.events):
            while (n, i) not in self.sent:
                self.sent.add((n, i))
                try:
                    yield from deliver.send(rt, "x", "Add", {"i": [n, i]})
                    self.acknowledged.add((n, i))
                except (Contention, Throttled):
                    self.sent.discard((n, i))
                    yield from sleep(0.02)
                except (OutcomeUnknown, Unavailable):
                    pass

    def problems(self) -> Iterable[str]:
        """Each at most once, and what was acknowledged once."""
        counts = collections.Counter(tuple(each) for each in self.context("x").get("seen", []))
        if twice := [event for event, count in counts.items() if count > 1]:
            yield f"{twice} took effect more than once"
        if lost := self.acknowledged - set(counts):
            yield f"{sorted(lost)} were acknowledged and never taken"


WAITING_KID = """
id: kid
initial: busy
context: {i: {expr: "input.i"}}
states:
  busy: {on: {Never: done}}
  done: {type: final}
"""


class Recall(Children):
    """A fan-out that is left at once, so that its children are told to end about when they begin; none is left over."""

    name = "recall"
    machines = (PARENT, WAITING_KID)
    faults = msgspec.structs.replace(ROUGH, slow=0.5)

    def drive(self, rt: Runtime) -> Program[None]:
        """Go and Leave, twice."""
        yield from insist(deliver.start, rt, "parent", "p", None)
        for n, event in enumerate(("Go", "Leave", "Go", "Leave")):
            if self.done <= n:
                items = [10 * n + i for i in range(self.children)]
                yield from insist(deliver.handle, rt, "p", event, {"items": items}, event_id=f"{n}")
                yield from self.taken("p", f"{n}")
                self.done = n + 1

    def problems(self) -> Iterable[str]:
        """All children were cancelled."""
        ends = [item["status"] for item in self.items(STATE) if item["id"] != "p"]
        if set(ends) - {"cancelled"}:
            yield f"the children ended as {ends}"


class Backlog(ExecutionScenario):
    """More suspended executions with messages than a look at the index takes, and one that runs: it is reached."""

    name = "backlog"
    machines = (LEDGER,)
    workers = 1
    asleep, page = 5, 4

    def begin_clients(self) -> None:
        """One who suspends, then sends to all."""
        self.done = 0
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Start and suspend some, send to them, then to the one that runs."""
        for n in range(self.asleep):
            yield from insist(deliver.start, rt, "ledger", f"s{n}", None)
            yield from insist(deliver.send, rt, f"s{n}", "Add", {"i": 1}, event_id="1")
            yield from insist(control.suspend, rt, f"s{n}")
            yield from insist(deliver.send, rt, f"s{n}", "Add", {"i": 2}, event_id="2")
        yield from insist(deliver.start, rt, "ledger", "x", None)
        yield from insist(deliver.send, rt, "x", "Add", {"i": 0}, event_id="0")

    def look(self, rt: Runtime) -> Program[int]:
        """One page of the index, from its head."""
        page = yield from query(EXECUTIONS, "work/0", index="pending", limit=self.page)
        did = 0
        for id in dict.fromkeys(str(item["id"]) for item in page.items):
            done = yield from advance(rt, id)
            did += done.is_held
        return did

    def is_over(self) -> bool:
        """The one that runs was reached."""
        return not self.left and not self.world.store.locks and self.context("x").get("seen") == [0]

    def problems(self) -> Iterable[str]:
        """What waits for those that sleep still waits, or was taken before."""
        for n in range(self.asleep):
            seen = set(self.context(f"s{n}").get("seen", []))
            here = [item for item in self.items("e/") if item["id"] == f"s{n}"]
            if len(seen) + len(here) < 2:
                yield f"s{n} took {sorted(seen)}, {len(here)} messages wait"


PAYMENT = """
id: worker
initial: open
states:
  open: {on: {Paid: paid}, after: {"1s": expired}}
  paid: {}
  expired: {}
"""


class Late(ExecutionScenario):
    """A payment before its timeout, both taken late: whichever was first by its own time counts. Clocks are right."""

    name = "late"
    machines = (PAYMENT,)
    faults = TRUE_CLOCKS
    workers = 1

    def begin_clients(self) -> None:
        """One who pays."""
        self.paid_us = 0
        self.due_us = 0
        self.client("payer", self.pay)

    def pay(self, rt: Runtime) -> Program[None]:
        """Start, wait a while, pay."""
        yield from insist(deliver.start, rt, "worker", "o", None)
        state = self.state("o")
        if not self.due_us and state is not None and state.timers:
            self.due_us = decode_timers(state.timers)[0].due_us
        yield from sleep(0.3 * self.world.choices.below(4))
        if not self.paid_us:
            yield from insist(deliver.send, rt, "o", "Paid", {}, event_id="paid")
            self.paid_us = self.world.now_us

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """A worker that comes late."""
        yield from sleep(1.5)
        yield from super().worker(process)

    def problems(self) -> Iterable[str]:
        """A payment that was acknowledged before the timer was due counts."""
        state = self.state("o")
        configuration = self.configuration("o")
        if state is None or (self.paid_us < self.due_us and configuration != ["paid"]):
            early_s = (self.due_us - self.paid_us) / 1e6
            yield f"paid {early_s:g} s before the timer was due, and it is in {configuration}"


NEWER_LEDGER = """
id: ledger
initial: open
context: {seen: []}
states:
  open: {on: {Add: {actions: [note]}}}
"""


class Deploy(ExecutionScenario):
    """A rolling deploy: an old worker meets executions whose functions it does not have. It leaves them to others."""

    name = "deploy"
    events = 4
    idle_s = 20.0  # what is parked is put off by a minute and more
    options = Options(buckets=1, batch_max=4)

    def runtime(self) -> Runtime:
        """What a new process knows."""
        return Runtime([_newer_ledger()], self.options)

    def begin(self) -> None:
        """Start an old worker and a new one."""
        self.world.process("worker-old", self.old_worker)
        self.world.process("worker-new", self.worker)
        self.begin_clients()

    def old_worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The same worker with the machine as it was."""
        yield from self.work(Runtime([_older_ledger()], self.options))

    def begin_clients(self) -> None:
        """One who sends."""
        self.sent = 0
        self.client("sender", self.send)

    def send(self, rt: Runtime) -> Program[None]:
        """Start it by the new definition, and send one event after the other."""
        yield from insist(deliver.start, rt, "ledger", "x", None)
        while self.sent < self.events:
            yield from insist(deliver.send, rt, "x", "Add", {"i": self.sent}, event_id=f"{self.sent}")
            self.sent += 1

    def problems(self) -> Iterable[str]:
        """Each event once, and it still runs."""
        state = self.state("x")
        seen = self.context("x").get("seen")
        if state is None or state.status != "running" or sorted(seen or []) != list(range(self.events)):
            yield f"it is {state and state.status}, sent 0..{self.events - 1}, taken {seen}"


_ledgers: dict[str, Machine] = {}


def _newer_ledger() -> Machine:
    if "new" not in _ledgers:
        machine = _ledgers["new"] = Machine.from_yaml(NEWER_LEDGER)
        machine.action(name="note")(lambda context, event: {"seen": [*context["seen"], event["i"]]})
    return _ledgers["new"]


def _older_ledger() -> Machine:
    if "old" not in _ledgers:
        _ledgers["old"] = Machine.from_yaml(LEDGER)
    return _ledgers["old"]


ALL = (Nameless, Recall, Backlog, Late, Deploy)
