"""An application in virtual time, and the facade under test on the same store: blocking, or on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import casework
from casework.backends.threaded import ThreadedBackend
from casework.testing import VirtualApp
from tests.options.table import OnLoop

LAMP = {
    "id": "lamp",
    "context": {"n": {"expr": 'get(input, "n", 0)'}, "out": None},
    "initial": "off",
    "on": {"End": ".over"},
    "states": {
        "off": {"on": {
            "Add": {"actions": {"type": "assign", "params": {"n": {"expr": 'context.n + get(event, "by", 1)'}}}},
            "Bad": {"actions": {"type": "assign", "params": {"n": {"expr": 'event["nothing"]'}}}},
            "On": "on", "Fan": "fanning", "Later": "later",
        }},
        "on": {"invoke": {"src": {"task": "shine"}, "retry": {"max_attempts": 1}, "onDone": {
            "target": "over", "actions": {"type": "assign", "params": {"out": {"expr": "event"}}},
        }, "onError": {
            "target": "over", "actions": {"type": "assign", "params": {"out": {"expr": "event"}}},
        }}},
        "later": {"after": {"1h": "over"}},
        "fanning": {"invoke": {"src": {"machine": "spark"}, "id": "sparks", "each": {"expr": "[1, 2, 3]"}, "onDone": {
            "target": "fanned", "actions": {"type": "assign", "params": {"out": {"expr": "event.output"}}},
        }}},
        "fanned": {},
        "over": {"type": "final"},
    },
}  # fmt: skip

SPARK = {
    "id": "spark", "context": {"text": {"expr": "'x' * 30000"}}, "initial": "over",
    "on": {"End": {"actions": []}},
    "states": {"over": {"type": "final", "output": {"expr": "context.text"}}},
}  # fmt: skip

SECOND = {"id": "second", "initial": "off", "states": {"off": {"on": {"End": "over"}}, "over": {"type": "final"}}}
"""Like the first, as far as a migration asks."""


@functools.cache
def machines() -> list[casework.Machine]:
    """The three, the first with its task; opening an application changes none of them."""
    made = [casework.Machine.from_dict(each) for each in (LAMP, SPARK, SECOND)]
    made[0].task(name="shine")(lambda task: None)
    return made


class World:
    """Two executions, ``x`` and ``y``, of the machine ``lamp``; ``virtual`` moves time, ``app`` is under test."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.machines = machines()
        self.virtual = VirtualApp(self.machines, **options)
        self.backend: Any = self.virtual.backend
        self.app: Any
        self._closing: list[Callable[[], Any]] = []
        self._runner: asyncio.Runner | None = None
        if kind == "sync":
            self.app = casework.open(self.backend, machines=self.machines, **options)
        else:
            runner = self._runner = asyncio.Runner()
            app = casework.open_async(ThreadedBackend(self.backend), machines=self.machines, **options)
            runner.run(app.__aenter__())
            self._closing += [runner.close, lambda: runner.run(app.close())]
            self.app = OnLoop(app, runner)

    def started(self) -> World:
        """With its two executions."""
        for id in ("x", "y"):
            self.virtual.start("lamp", id=id)
        return self

    def commit(self, collect: Callable[[Any], Any]) -> Any:
        """What a function hands back that is given the application's transaction, which is then committed."""
        if self._runner is None:
            with self.app.transaction() as tx:
                return collect(tx)

        async def block() -> Any:
            async with self.app.transaction() as own:
                return collect(own)

        return self._runner.run(block(), context=contextvars.copy_context())

    def types(self, id: str) -> list[str]:
        """The events that wait for an execution."""
        return [message.type for message in self.virtual.inspect(id).messages]

    def statuses(self) -> dict[str, str]:
        """Each execution's status."""
        return {each.id: each.status for each in self.virtual.list().items}

    def close(self) -> None:
        """Give back what the facade holds."""
        while self._closing:
            self._closing.pop()()
