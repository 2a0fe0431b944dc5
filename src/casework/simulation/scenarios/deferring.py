"""Events that come before their state: kept, and taken in order when it comes, while timers and crashes interfere."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from casework.executions import deliver
from casework.executions.runtime import Options, Runtime
from casework.executions.state import decode_data
from casework.kernel.programs import Program
from casework.simulation.scenarios.executions import ExecutionScenario, insist

EARLY = """
id: worker
initial: open
context: {seen: []}
states:
  open: {defer: [Add], on: {Turn: taking}, after: {"60ms": taking}}
  taking:
    on:
      Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Turn: open
    after: {"90ms": open}
"""


class Early(ExecutionScenario):
    """Events come while the state that takes them is active, and while it is not: each is taken once, in order."""

    name = "early"
    machines = (EARLY,)
    options = Options(buckets=1, batch_max=2)
    events = 6

    def begin_clients(self) -> None:
        """One who sends, each event twice."""
        self.sent = 0
        self.client("sender", self.send)

    def send(self, rt: Runtime) -> Program[None]:
        """Send the events, and turn it now and then."""
        yield from insist(deliver.start, rt, "worker", "x", None)
        while self.sent < 2 * self.events:
            i = self.sent // 2
            if not self.sent % 3:
                yield from insist(deliver.send, rt, "x", "Turn", {}, event_id=f"turn-{self.sent}")
            yield from insist(deliver.send, rt, "x", "Add", {"i": i}, event_id=f"{i}")
            self.sent += 1

    def deferred(self) -> int:
        """How many events wait in the state."""
        state = self.state("x")
        return 0 if state is None else len(decode_data(state, state.data).deferred)

    def is_over(self) -> bool:
        """Nothing waits, and nothing is deferred."""
        return self.is_idle() and not self.deferred()

    def problems(self) -> Iterable[str]:
        """Each event once, in the order in which they were sent; no dead letter."""
        seen = self.context("x")["seen"]
        if seen != list(range(self.events)):
            yield f"sent 0..{self.events - 1}, taken {seen}"
        dead = [msgspec.json.decode(str(item["mails"])) for item in self.items("l/")]
        if dead:
            yield f"dead letters: {dead}"


ALL: tuple[type[ExecutionScenario], ...] = (Early,)
