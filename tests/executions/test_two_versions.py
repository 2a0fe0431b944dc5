"""Two versions of the code side by side, in every order of deploying: all that is started ends as its version says.

A table: each kind of difference between two versions, each order in which their workers come and go, executions that
are started, and get their event, in a process of either version, by `handle` and by `send`. Nothing may fail in
between; once both versions have workers, all of it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from casework.app.sync import App
from casework.backends.drive_async import run_async
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.errors import Misuse, UnknownMachine
from casework.executions.worker import Worker, sweep
from casework.kernel.programs import Program, race
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from tests.executions.watching import app_on, items_of, machine

ORDER = """
id: order
initial: open
context: {path: []}
states:
  open: {on: {Go: {target: paying, guard: may, actions: [note]}}}
  paying: {invoke: {id: pay, src: {task: pay}, input: {amount: 1}, onDone: shipping, onError: wrong}}
  shipping: {invoke: {id: ship, src: {machine: ship}, onDone: closed, onError: wrong}}
  closed: {type: final}
  wrong: {}
"""
SHIP = """
id: ship
initial: packing
states:
  packing: {after: {1s: gone}}
  gone: {type: final}
"""
BEFORE_PAYING = "  open: {on: {Go: {target: checking, guard: may, actions: [note]}}}\n  checking: CHECKING\n"


def with_a_step(step: str) -> str:
    """The order with one more state before it is paid."""
    lines = ORDER.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith("  open"))
    return "".join([*lines[:at], BEFORE_PAYING.replace("CHECKING", step), *lines[at + 1 :]])


NEXT = "onDone: paying, onError: wrong"
PACK = SHIP.replace("id: ship", "id: pack")
KINDS: dict[str, list[str]] = {
    "a state": [with_a_step("{after: {1s: paying}}"), SHIP],
    "a state, renamed": [ORDER.replace("paying", "charging"), SHIP],
    "a task": [with_a_step(f"{{invoke: {{id: check, src: {{task: check}}, {NEXT}}}}}"), SHIP],
    "a task, renamed": [ORDER.replace("{task: pay}", "{task: charge}"), SHIP],
    "a task by its name alone": [with_a_step(f"{{invoke: {{id: check, src: check, {NEXT}}}}}"), SHIP],
    "a task's arguments": [ORDER.replace("{amount: 1}", "{amount: 1, currency: EUR}"), SHIP],
    "an action": [ORDER.replace("[note]", "[note, note_more]"), SHIP],
    "an action, renamed": [ORDER.replace("[note]", "[note_more]"), SHIP],
    "a guard, renamed": [ORDER.replace("guard: may", "guard: may_now"), SHIP],
    "a child's machine": [with_a_step(f"{{invoke: {{id: pack, src: {{machine: pack}}, {NEXT}}}}}"), SHIP, PACK],
    "a child's machine, renamed": [ORDER.replace("{machine: ship}", "{machine: pack}"), PACK],
    "a child's machine by its name alone": [with_a_step(f"{{invoke: {{id: pack, src: pack, {NEXT}}}}}"), SHIP, PACK],
    "children of a list": [
        with_a_step(f"{{invoke: {{src: {{machine: pack}}, each: {{expr: '[1, 2]'}}, input: {{}}, {NEXT}}}}}"),
        SHIP,
        PACK,
    ],
    "a child's definition": [ORDER, SHIP.replace("packing", "wrapping").replace("{after", "{entry: [wrap], after")],
    "the machine's name": [ORDER.replace("id: order", "id: purchase"), SHIP],
    "a machine beside it": [ORDER, SHIP, PACK],
}
OLD = [ORDER, SHIP]

BOTH = ("old", "new")
ORDERS: dict[str, list[Sequence[str]]] = {
    "old, both, new": [("old",), BOTH, ("new",)],
    "old, then new": [("old",), ("new",)],
    "new first": [("new",), BOTH[::-1], ("old",)],
    "and back": [("old",), BOTH, ("new",), BOTH, ("old",)],
}


def functions_for(made: Machine, known: set[str]) -> Machine:
    """Every function that the machine names; tasks take exactly the arguments that its version gives them.

    ``known``: the names of the version's machines. What is named so is no task.
    """
    for name in made.names.actions:
        made.action(name=name)(lambda context, event, name=name: {"path": [*context.get("path", []), name]})
    for name in made.names.guards:
        made.guard(name=name)(lambda context, event: True)
    for name in made.names.tasks - known:
        made.task(name=name)(_task(name, "currency" in str(made.definition)))
    return made


def _task(name: str, with_currency: bool) -> Callable[..., Any]:
    def pay(task: Any, amount: int) -> Any:
        return {}

    def pay_in(task: Any, amount: int, currency: str) -> Any:
        return {}

    def other(task: Any, **given: Any) -> Any:
        return {}

    if name not in ("pay", "charge"):
        return other
    return pay_in if with_currency else pay


class Deployment:
    """One store, web processes of both versions, and workers that come and go."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self.clock = VirtualClock()
        self.backend = MemoryBackend(seed=1, clock=self.clock)
        texts = {"old": old, "new": new}
        self.webs = {version: self.process(texts[version]) for version in BOTH}
        self.texts = texts
        self.workers: dict[str, Worker] = {}
        self.expected: dict[str, list[str]] = {}

    def process(self, texts: Sequence[str]) -> App:
        machines = [machine(text) for text in texts]
        known = {each.name for each in machines}
        return app_on(self.backend, *(functions_for(each, known) for each in machines))

    def start_all(self, phase: int) -> None:
        """Start an execution in each version, and give it its event in each, in each way."""
        for started, sent, how in itertools.product(BOTH, BOTH, ("handle", "send")):
            web, other = self.webs[started], self.webs[sent]
            name = next(name for name in ("order", "purchase") if name in web.core.rt.machines)
            id = f"{phase}-{started}-{sent}-{how}"
            web.start(name, id=id)
            note = sorted(web.core.rt.machines[name].names.actions)
            self.expected[id] = note
            try:
                getattr(other, how)(id, "Go")
            except (Misuse, UnknownMachine):
                other.send(id, "Go")  # as the error says

    def turn(self, up: Sequence[str]) -> None:
        """Let each worker that is up do what it finds."""
        for version in list(self.workers):
            if version not in up:
                del self.workers[version]
        for version in up:
            worker = self.workers.setdefault(version, Worker(self.process(self.texts[version]).core.rt))
            asyncio.run(run_async(_work(worker), ThreadedBackend(self.backend), step_limit=None))

    def check(self) -> None:
        """Nothing has ended as it should not."""
        for id, item in self.states():
            assert item["status"] not in ("failed", "cancelled"), (id, self.why(id))
            assert "wrong" not in self.webs["old"].get(id).configuration, (id, self.why(id))
            if item["status"] == "done" and id in self.expected:
                path = self.webs["old"].get(id).context["path"]
                assert sorted(path) == self.expected[id], id

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        stored = self.backend.tables.stored(EXECUTIONS).items
        yield from [(str(key[0]), item) for key, item in stored.items() if key[1] == "0"]  # type: ignore[misc]

    def left(self) -> list[str]:
        return [id for id, item in self.states() if item["status"] != "done"]

    def why(self, id: str) -> list[Any]:
        return [item.get("parked") or item.get("last_error") or item.get("data") for item in items_of(self.backend, id)]


def _work(worker: Worker) -> Program[None]:
    for _ in range(6):
        did = yield from sweep(worker)
        while worker.running:
            yield from race(*[held.handle for held in worker.running.values()])
        if not did:
            return


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_added", [True, False], ids=["comes", "goes"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_ends_wrong_and_all_of_it_ends(kind: str, is_added: bool, order: str) -> None:
    old, new = (OLD, KINDS[kind]) if is_added else (KINDS[kind], OLD)
    world = Deployment(old, new)
    for phase, up in enumerate(ORDERS[order]):
        world.start_all(phase)
        for _ in range(2):
            world.turn(up)
            world.check()
            world.clock.advance(2)
        world.clock.advance(40)
    for _ in range(12):  # both have workers by now: what is parked is found at once, or by the next look
        world.turn(BOTH)
        world.check()
        if not world.left():
            break
        world.clock.advance(31)
    assert world.left() == [], [(id, world.why(id)) for id in world.left()]
