"""What operators do to executions under way: cancel them, and migrate them to another definition."""

from __future__ import annotations

import collections
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import msgspec

from casework.executions import control, deliver
from casework.executions.change import CANCEL_EVENT
from casework.executions.run_task import TaskRunner, call_function, find_function
from casework.executions.runtime import Options, Runtime
from casework.executions.state import STATE, state_of
from casework.executions.worker import Worker, WorkerOptions, work
from casework.kernel.effects import Effect
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, sleep
from casework.kernel.schema import EXECUTIONS
from casework.simulation.carrier import Process
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import LEDGER, ExecutionScenario, insist
from casework.statechart import Machine

CANCELLABLE = """
id: worker
initial: open
context: {seen: [], refunds: 0}
states:
  open:
    on:
      Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Lock: locked
      cancel: refunding
  locked:
    on:
      Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Unlock: open
  refunding:
    entry: [{type: assign, params: {refunds: {expr: "context.refunds + 1"}}}]
    after: {"100ms": refunded}
  refunded: {type: final}
"""


class Cancels(ExecutionScenario):
    """Executions that are cancelled by two operators, while others send to them and move them: each ends, once.

    One machine knows the cancel event, in some of its states; the other one does not.
    """

    name = "cancels"
    machines = (CANCELLABLE, LEDGER)
    options = Options(buckets=1, batch_max=2)
    events = 8

    def begin_clients(self) -> None:
        """One who sends, and operators: sometimes both cancel both."""
        self.world.store.watch = self.see
        self.sent = 0
        self.cancelled: set[tuple[int, str]] = set()
        self.ends: collections.Counter[str] = collections.Counter()
        self.wrongs: list[str] = []
        self.client("sender", self.send)
        for n, own in enumerate(("x", "y")):
            ids = ("x", "y") if self.world.choices.below(2) else (own,)
            self.client(f"operator-{n}", lambda rt, n=n, ids=ids: self.cancel(rt, n, ids))

    def send(self, rt: Runtime) -> Program[None]:
        """Start both, and send to them until they have ended and a little longer."""
        yield from insist(deliver.start, rt, "worker", "x", None)
        yield from insist(deliver.start, rt, "ledger", "y", None)
        while self.sent < self.events:
            i = self.sent
            event = ("Add", "Lock", "Add", "Unlock")[i % 4]
            way = deliver.handle if self.world.choices.below(2) else deliver.send
            yield from insist(way, rt, "x", event, {"i": i}, event_id=f"{i}")
            if event == "Add":
                yield from insist(deliver.send, rt, "y", "Add", {"i": i}, event_id=f"{i}")
            self.sent += 1

    def cancel(self, rt: Runtime, n: int, ids: Sequence[str]) -> Program[None]:
        """Cancel them, sooner or later."""
        for id in ids:
            while self.state(id) is None:
                yield from sleep(0.01)
            if (n, id) in self.cancelled:
                continue
            yield from sleep(0.02 * self.world.choices.below(8))
            yield from insist(control.cancel, rt, id)
            self.cancelled.add((n, id))

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """What has ended stays as it ended."""
        if key.table is not EXECUTIONS or key.sort != STATE or before is None or after is None:
            return
        was, now = state_of(before), state_of(after)
        if was.ended:
            self.wrongs.append(f"{was.id} had ended as {was.status}, and is {now.status} in version {now.version}")
        elif now.ended:
            self.ends[now.id] += 1

    def is_over(self) -> bool:
        """Both have ended."""
        return self.is_idle() and all(self.ends[id] for id in ("x", "y"))

    def waits_for(self) -> str:
        """Which execution goes on."""
        return ", ".join(f"{id} to end, in {self.configuration(id)}" for id in ("x", "y") if not self.ends[id])

    def problems(self) -> Iterable[str]:
        """Each ended once, by itself where it took the event; each event was taken once, or is a dead letter."""
        yield from self.wrongs
        dead: dict[str, list[Any]] = {"x": [], "y": []}
        for item in self.items("l/"):
            dead[str(item["id"])] += msgspec.json.decode(str(item["mails"]))
        for id in ("x", "y"):
            state, context = self.state(id), self.context(id)
            if state is None or state.status not in ("cancelled", "done") or self.ends[id] != 1:
                yield f"{id} is {state and state.status}, it ended {self.ends[id]} times"
                continue
            seen, lost = context["seen"], [mail[1].get("i") for mail in dead[id]]
            if len(set(seen)) != len(seen):
                yield f"{id} took {seen}"
            if id == "y" and (seen != sorted(seen) or set(seen) | set(lost) != set(range(0, self.events, 2))):
                yield f"{id} took {seen}, dead letters are {lost}"
            if state.status == "done" and context.get("refunds") != 1:
                yield f"{id} is done, its refunds: {context.get('refunds')}"
            if any(mail[0] == CANCEL_EVENT for mail in dead[id]):
                yield f"a cancel of {id} became a dead letter: {dead[id]}"


MOVING = """
id: NAME
initial: open
context: {seen: [], got: [], ticks: []}
states:
  open:
    type: parallel
    states:
      work:
        initial: busy
        states:
          busy:
            invoke:
              id: job
              src: {task: job}
              retry: {max_attempts: 100, initial: 100ms, max: 200ms}
              onDone: {target: idle, actions: [{type: assign, params: {got: {expr: "context.got + ['MARK']"}}}]}
          idle: {}
      clock:
        initial: early
        states:
          early:
            after:
              600ms: {target: late, actions: [{type: assign, params: {ticks: {expr: "context.ticks + ['MARK']"}}}]}
          late: {}
      book:
        on: {Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [['MARK', event.i]]"}}}]}}
"""

DEFINITIONS = (("ledger", "a"), ("ledger", "b"), ("worker", "c"))
"""Names and marks of the definitions through which it goes; the last one has another name."""


def job(task: Any) -> str:
    """Fails once, so that its task waits for another attempt."""
    if task.attempt == 1:
        raise ValueError("not yet")
    return "done"


_moving: dict[str, Machine] = {}


def moving(name: str, mark: str) -> Machine:
    """A definition that marks what it takes."""
    if mark not in _moving:
        made = _moving[mark] = Machine.from_yaml(MOVING.replace("NAME", name).replace("MARK", mark))
        made.task(name="job")(job)
    return _moving[mark]


class Migrations(ExecutionScenario):
    """A running execution is migrated twice, the second time to a machine of another name, by two operators.

    What it takes is taken by the definition that it has by then; its timer and its task go with it. Workers of the
    older definition go on all the while.
    """

    name = "migrations"
    options = Options(buckets=1, batch_max=2)
    operators, events = 2, 6
    faults = msgspec.structs.replace(ROUGH, skew_s_max=0.3, clock_error_s=0.1, pause_s_max=3.0)

    def runtime(self) -> Runtime:
        """What a new process knows: it has both names, and the newest definition of each."""
        return Runtime([moving(*DEFINITIONS[1]), moving(*DEFINITIONS[2])], self.options)

    def older(self) -> Runtime:
        """What an older process knows."""
        return Runtime([moving(*DEFINITIONS[0]), moving(*DEFINITIONS[2])], self.options)

    def begin_clients(self) -> None:
        """One who sends, and operators."""
        self.world.store.watch = self.see
        self.sent = 0
        self.after: dict[int, int] = {}
        """The definition that each event must at least be taken by: the one acknowledged before it was sent."""
        self.done = [set(range(self.operators)), *(set[int]() for _ in DEFINITIONS[1:])]
        """Operators that have acknowledged each definition."""
        self.moved = 0
        """The definition that was acknowledged last."""
        self.wrongs: list[str] = []
        self.client("sender", self.send)
        for n in range(self.operators):
            self.client(f"operator-{n}", lambda rt, n=n: self.move(rt, n))

    def worker(self, process: Process) -> Generator[Effect, Any, Any]:
        """The real shell; one is of the older definition."""
        options = WorkerOptions(poll_s=0.5, lease_s=1.0, heartbeat_s=2.0, concurrency=2, group=8)
        rt = self.older() if process.name == "worker-0" else self.runtime()

        def perform(runner: TaskRunner) -> Program[Any]:
            find_function(runner.rt, runner.task)
            return self.perform_in(runner)

        yield from work(Worker(rt, options, perform=perform))

    def perform_in(self, runner: TaskRunner) -> Program[Any]:
        """The task's function, after a while."""
        yield from sleep(0.1 * self.world.choices.below(3))
        return (yield from call_function(runner))

    def send(self, rt: Runtime) -> Program[None]:
        """Start it by the oldest definition, and send one event after the other."""
        yield from insist(deliver.start, self.older(), "ledger", "x", None)
        while self.sent < self.events:
            i = self.sent
            self.after.setdefault(i, self.moved)
            way = deliver.handle if self.world.choices.below(2) else deliver.send
            yield from insist(way, rt, "x", "Add", {"i": i}, event_id=f"{i}")
            self.sent += 1
            yield from sleep(0.02 * self.world.choices.below(4))

    def move(self, rt: Runtime, n: int) -> Program[None]:
        """Migrate it to one definition after the other, each beside the other operators."""
        while self.state("x") is None:
            yield from sleep(0.01)
        for step in range(1, len(DEFINITIONS)):
            while len(self.done[step - 1]) < self.operators:
                yield from sleep(0.01)
            if n not in self.done[step]:
                yield from sleep(0.03 * self.world.choices.below(6))
                yield from insist(control.migrate, rt, "x", moving(*DEFINITIONS[step]))
                self.moved = max(self.moved, step)
                self.done[step].add(n)

    def see(self, key: Key, before: Item | None, after: Item | None) -> None:
        """A task that is claimed once the new name was acknowledged is run by the machine of that name."""
        if after is None or before is None or key.table is not EXECUTIONS or not str(key.sort).startswith("w/"):
            return
        is_claim = after.get("token") and after.get("token") != before.get("token")
        if is_claim and self.moved == 2 and after["machine"] != DEFINITIONS[2][0]:
            self.wrongs.append(f"a task was given to the machine {after['machine']!r} after it was renamed")

    def is_over(self) -> bool:
        """Nothing waits, and its task and its timer are done."""
        context = self.context("x")
        return self.is_idle() and bool(context.get("got")) and bool(context.get("ticks"))

    def waits_for(self) -> str:
        """What is missing."""
        return f"its task, its timer: {self.context('x')}"

    def problems(self) -> Iterable[str]:
        """Each event once, in order, by no older definition than it must; one result, one tick."""
        yield from dict.fromkeys(self.wrongs)
        state, context = self.state("x"), self.context("x")
        if state is None or (state.machine, state.status) != (DEFINITIONS[2][0], "running"):
            yield f"it is {state and state.status}, of machine {state and state.machine!r}"
            return
        seen = context["seen"]
        marks = [mark for mark, _ in seen]
        if sorted(i for _, i in seen) != list(range(self.events)):
            yield f"sent 0..{self.events - 1}, taken {seen}"
        if marks != sorted(marks):
            yield f"an older definition took events after a newer one: {seen}"
        late = [(mark, i) for mark, i in seen if mark < DEFINITIONS[self.after[i]][1]]
        if late:
            yield f"{late} were sent after it was migrated, and taken by an older definition"
        if len(context["got"]) != 1 or len(context["ticks"]) != 1:
            yield f"results {context['got']}, ticks {context['ticks']}: of each there is one"


ALL: tuple[type[ExecutionScenario], ...] = (Cancels, Migrations)
