"""Small charts and a driver in virtual time, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from casework.statechart import Effect, Event, Machine, Snapshot, Step, start, step


def machine(text: str) -> Machine:
    return Machine.from_yaml(text, source="chart.yaml")


class Chart:
    """A machine and its current snapshot."""

    def __init__(self, text: str | Machine, input: Any = None, now_us: int = 0) -> None:
        self.machine = text if isinstance(text, Machine) else machine(text)
        self.now_us = now_us
        self.last: Step = start(self.machine, input, now_us)

    @property
    def snapshot(self) -> Snapshot:
        return self.last.snapshot

    @property
    def states(self) -> list[str]:
        return self.snapshot.configuration

    @property
    def context(self) -> dict[str, Any]:
        return self.snapshot.context

    @property
    def effects(self) -> list[Effect]:
        return self.last.effects

    def send(self, event: str | Event, data: Any = None) -> Chart:
        sent = event if isinstance(event, Event) else Event(event, {} if data is None else data)
        self.last = step(self.machine, self.snapshot, sent, self.now_us)
        return self
