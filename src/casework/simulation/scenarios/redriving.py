"""An execution whose functions fail, and operators who mend them and drive it on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from casework.errors import Misuse
from casework.executions import control, deliver
from casework.executions.runtime import Options, Runtime
from casework.executions.state import Kept, decode_data
from casework.kernel.programs import Program, sleep
from casework.simulation.scenarios.executions import LEDGER, LOST, ExecutionScenario, insist
from casework.statechart import Machine

FAILING = """
id: failing
initial: open
context: {seen: [], entered: 0, done: []}
on:
  Add:
    actions:
      - {type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}
      - {type: send, params: {event: Add, to: y, data: {i: {expr: event.i}}}}
      - check
states:
  open:
    on:
      Work:
        target: working
        actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}, check]
  working:
    entry: {type: assign, params: {entered: {expr: context.entered + 1}}}
    invoke:
      id: job
      src: job
      retry: {max_attempts: 100}
      onDone:
        target: open
        actions: [{type: assign, params: {done: {expr: "context.done + [event.key]"}}}, check]
    on:
      Work: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}, check]}
"""

RESULT = -1
"""What is broken where the result of a task fails."""

_broken: set[int] = set()
"""Events on which the function fails until it is mended: the code, which all processes share."""

_machine: list[Machine] = []


def failing_machine() -> Machine:
    """The machine with its function; made once."""
    if not _machine:
        made = Machine.from_yaml(FAILING)

        @made.action(name="check")
        def check(context: Any, event: Any) -> None:
            if event.get("i", RESULT) in _broken:
                raise ValueError(f"it is not mended for {event.get('i', 'the result')}")

        _machine.append(made)
    return _machine[0]


class Redrives(ExecutionScenario):
    """An execution fails at events and at the result of its task, and operators drive it on, mended or not, or skip.

    Each event is taken once, with all that it causes, or skipped on purpose, or is a dead letter, since it came while
    the execution had failed. Every event is sent twice.
    """

    name = "redrives"
    options = Options(buckets=1, batch_max=3)
    events, repeats = 5, 2
    operators: tuple[str, ...] = ("one", "other")

    def runtime(self) -> Runtime:
        """What every process knows."""
        return Runtime([failing_machine(), Machine.from_yaml(LEDGER)], self.options)

    def begin_clients(self) -> None:
        """One who sends, and two operators."""
        _broken.clear()
        _broken.update(i for i in range(RESULT, self.events) if not self.world.choices.below(2))
        self.sent = 0
        self.skipped: set[int] = set()
        self.client("sender", self.send)
        for name in self.operators:
            self.world.process(f"operator-{name}", lambda process: self.mend(self.runtime()))

    def send(self, rt: Runtime) -> Program[None]:
        """Send one event after the other, each one twice, some in line."""
        yield from insist(deliver.start, rt, "failing", "x", None)
        yield from insist(deliver.start, rt, "ledger", "y", None)
        while self.sent < self.repeats * self.events:
            i = self.sent // self.repeats
            way = deliver.handle if not self.world.choices.below(3) else deliver.send
            event = "Work" if i % 3 == 1 else "Add"
            yield from insist(way, rt, "x", event, {"i": i}, event_id=f"{i}")
            self.sent += 1
            yield from sleep(0.02 * self.world.choices.below(3))

    def mend(self, rt: Runtime) -> Program[None]:
        """Drive it on whenever it has failed: mended, not mended, or without the event."""
        while True:
            kept = self.kept()
            if kept is not None:
                what = kept.data.get("i", RESULT) if kept.kind == "event" else RESULT
                way = self.world.choices.below(4)
                if way == 0:
                    _broken.discard(what)
                elif way == 1:
                    self.skipped.add(what)
                try:
                    yield from control.redrive(rt, "x", skip=way == 1)
                except (*LOST, Misuse):
                    pass
            yield from sleep(0.05)

    def kept(self) -> Kept | None:
        """The event at which it has failed."""
        state = self.state("x")
        if state is None or state.status != "failed":
            return None
        failure = decode_data(state, state.data).failure
        return failure.event if failure is not None else Kept("lost", "lost", {})

    def is_over(self) -> bool:
        """It runs, and nothing waits."""
        state = self.state("x")
        return self.is_idle() and state is not None and state.status == "running"

    def dead(self) -> list[int]:
        """The events of dead letters."""
        mails = [mail for item in self.items("l/") for mail in msgspec.json.decode(str(item["mails"]))]
        return [mail[1]["i"] for mail in mails]

    def problems(self) -> Iterable[str]:
        """Each event once, with its effect; each result once."""
        context, dead = self.context("x"), self.dead()
        seen, effects = context["seen"], self.context("y")["seen"]
        if len(seen) != len(set(seen)):
            yield f"an event was taken twice: {seen}"
        if effects != [i for i in seen if i % 3 != 1]:
            yield f"taken {seen}, and of what they send came {effects}"
        lost = set(range(self.events)) - set(seen) - set(dead) - self.skipped
        if lost:
            yield f"events {sorted(lost)} were neither taken ({seen}) nor skipped ({self.skipped}) nor dead ({dead})"
        done, entered = context["done"], context["entered"]
        if len(set(done)) != len(done) or len(done) > entered:
            yield f"results {done} of {entered} stays"
        if len(done) < entered and RESULT not in self.skipped:
            yield f"of {entered} tasks {len(done)} gave a result: {done}"


ALL: tuple[type[ExecutionScenario], ...] = (Redrives,)
