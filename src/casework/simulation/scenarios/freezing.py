"""Hosts that stand still and whose clocks are set, on a store whose time is known from its answers only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from casework.executions import deliver
from casework.executions.runtime import Runtime
from casework.executions.state import decode_timers
from casework.kernel.programs import Program, sleep
from casework.simulation.faults import ROUGH
from casework.simulation.scenarios.executions import ExecutionScenario, insist

HELD = """
id: held
initial: a
states:
  a: {after: {"1h": over}, on: {Again: {target: a, reenter: true}}}
  over: {type: final}
"""

DELAY_US = 3_600_000_000

TOLERANCE_US = 2_500_000
"""The header tells the second, the hosts of the service differ by 50 ms, and an answer may be on its way for a second
without a look at the clock that could tell."""


class Freezes(ExecutionScenario):
    """A timer of an hour that is armed again and again by hosts whose clocks fail: each is due in an hour."""

    name = "freezes"
    machines = (HELD,)
    faults = msgspec.structs.replace(
        ROUGH, sampled_clocks=True, skew_s_max=60.0, pause=0.02, pause_s_max=120.0, clock_step_s_max=4000.0,
        throttled_reads=0.01,
    )  # fmt: skip
    events = 6

    def begin_clients(self) -> None:
        """One who enters the state again and again."""
        self.done = 0
        self.called_us: dict[int, int] = {}
        self.wrong: list[str] = []
        self.client("driver", self.drive)

    def drive(self, rt: Runtime) -> Program[None]:
        """Enter the state, and look at what is armed."""
        yield from insist(deliver.start, rt, "held", "h", None)
        while self.done < self.events:
            n = self.done
            yield from sleep(0.5)
            called_us = self.called_us.setdefault(n, self.world.now_us)
            yield from insist(deliver.handle, rt, "h", "Again", {}, event_id=f"again-{n}")
            yield from self.taken("h", f"again-{n}")
            self.check_timer(n, called_us)
            self.done += 1

    def check_timer(self, n: int, called_us: int) -> None:
        """What is armed must have been armed since the call began."""
        state = self.state("h")
        assert state is not None
        (timer,) = decode_timers(state.timers)
        armed_us = timer.due_us - DELAY_US
        if armed_us < called_us - TOLERANCE_US:
            self.wrong.append(f"the timer of stay {n} is due {(called_us - armed_us) / 1e6:g} s too early")
        if armed_us > self.world.now_us + TOLERANCE_US:
            self.wrong.append(f"the timer of stay {n} is due {(armed_us - self.world.now_us) / 1e6:g} s too late")

    def problems(self) -> Iterable[str]:
        """Every timer was due in an hour."""
        return self.wrong


ALL = (Freezes,)
