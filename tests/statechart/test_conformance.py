"""The public SCXML suites, read from the folder that CASEWORK_CONFORMANCE names (it holds scxml/w3c and scxml/scion).

A document that the importer refuses (scripts, more ECMAScript than simple conditions, other processors) is skipped
with its reason; every document that it takes must pass.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from casework.errors import InvalidMachine
from casework.statechart import (
    CancelSend,
    Event,
    Machine,
    Send,
    Snapshot,
    StartChildren,
    StopInvoke,
    active_names,
    done_invoke,
    start,
    step,
)

ROOT = Path(os.environ.get("CASEWORK_CONFORMANCE", "")) / "scxml"
IS_THERE = bool(os.environ.get("CASEWORK_CONFORMANCE")) and ROOT.is_dir()
DIFFERENT = {
    "test159": "a target without # is the id of an execution, whether it exists is seen when it is sent",
    "test194": "a target without # is the id of an execution, whether it exists is seen when it is sent",
    "test236": "the result of an invocation belongs to its stay, and is dropped once the state was left",
    "test496": "whether another execution exists is seen when the message is sent, not in the step",
    "test521": "whether another execution exists is seen when the message is sent, not in the step",
    "test525": "the port adds text to a list, which is an error in Python",
}
W3C = sorted((ROOT / "w3c").glob("test*[0-9a-z].scxml")) if IS_THERE else []
W3C = [file for file in W3C if "sub" not in file.stem]  # parts of other documents
SCION = sorted((ROOT / "scion").glob("*/*.scxml")) if IS_THERE else []

pytestmark = pytest.mark.skipif(not IS_THERE, reason="set CASEWORK_CONFORMANCE to the folder that holds scxml/")


class World:
    """Virtual time and the events on their way: (due time, order, send id, sender, receiver, event)."""

    def __init__(self, machines: list[Machine]) -> None:
        self.machines = {machine.name: machine for machine in machines}
        self.now_us = 0
        self.order = 0
        self.waiting: list[tuple[int, int, str, Session, Session, Event]] = []
        self.main = Session(self, machines[0], None, {})

    def post(self, delay_us: int, send_id: str, sender: Session, receiver: Session, event: Event) -> None:
        self.order += 1
        self.waiting.append((self.now_us + delay_us, self.order, send_id, sender, receiver, event))

    def run_until(self, due_us: int) -> None:
        while self.waiting:
            first = min(self.waiting, key=lambda each: each[:2])
            if first[0] > due_us:
                break
            self.waiting.remove(first)
            self.now_us = max(self.now_us, first[0])
            first[4].take(first[5])
        self.now_us = due_us


class Session:
    """One execution: its effects are carried out at once."""

    def __init__(self, world: World, machine: Machine, parent: tuple[Session, str, int] | None, input: Any) -> None:
        self.world, self.machine, self.parent = world, machine, parent
        self.children: dict[str, Session] = {}
        self.snapshot: Snapshot
        self._carry_out(start(machine, input, 0))

    def take(self, event: Event) -> None:
        if self.snapshot.status == "running":
            self._carry_out(step(self.machine, self.snapshot, event, self.world.now_us))

    def stop(self) -> None:
        """Cancelled from outside: neither it nor what it sent is heard of again."""
        self.snapshot.status = "failed"
        self.forget(delayed_only=False)

    def forget(self, delayed_only: bool) -> None:
        now = self.world.now_us
        mine = [each for each in self.world.waiting if each[3] is self and (not delayed_only or each[0] > now)]
        self.world.waiting = [each for each in self.world.waiting if each not in mine]
        for child in self.children.values():
            child.stop()

    def _carry_out(self, result: Any) -> None:
        self.snapshot = result.snapshot
        for effect in result.effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, CancelSend):
                waiting = self.world.waiting
                self.world.waiting = [each for each in waiting if each[2] != effect.send_id or each[3] is not self]
            elif isinstance(effect, StartChildren):
                machine = self.world.machines[effect.src]
                child = Session(self.world, machine, (self, effect.invoke_id, effect.stay), effect.inputs[0])
                self.children[effect.invoke_id] = child
            elif isinstance(effect, StopInvoke) and effect.invoke_id in self.children:
                self.children.pop(effect.invoke_id).stop()
        if self.snapshot.status == "done":
            self.forget(delayed_only=True)
            if self.parent is not None:
                parent, invoke_id, stay = self.parent
                self.world.post(0, "", self, parent, done_invoke(invoke_id, stay, self.snapshot.output))

    def _send(self, effect: Send) -> None:
        receiver: Session | None = self
        if effect.to == "parent":
            receiver = self.parent[0] if self.parent else None
        elif effect.to.startswith("child:"):
            receiver = self.children.get(effect.to.removeprefix("child:"))
        if receiver is not None and (not effect.to or effect.to == "parent" or effect.to.startswith("child:")):
            event = Event(effect.event_type, effect.data)
            self.world.post(effect.delay_us, effect.send_id, self, receiver, event)


def load(file: Path) -> World:
    try:
        machines = Machine.all_from_scxml(file.read_text("utf-8-sig"), source=str(file))
        for invoke in (each for machine in machines for state in machine.tables.states for each in state.invokes):
            if invoke.src not in {machine.name for machine in machines}:
                part = file.with_name(f"{invoke.src}.scxml")
                machines += Machine.all_from_scxml(part.read_text("utf-8-sig"), source=str(part))
    except InvalidMachine as error:
        pytest.skip(str(error.problems[0]).replace(str(file), file.name))
    return World(machines)


@pytest.mark.parametrize("file", W3C, ids=lambda file: file.stem)
def test_w3c_document_ends_in_pass(file: Path) -> None:
    if file.stem in DIFFERENT:
        pytest.skip(DIFFERENT[file.stem])
    world = load(file)
    world.run_until(60_000_000)
    assert active_names(world.main.machine, world.main.snapshot) == {"pass"}, world.main.snapshot


@pytest.mark.parametrize("file", SCION, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_scion_script_gives_the_expected_configurations(file: Path) -> None:
    script = json.loads(file.with_suffix(".json").read_text("utf-8"))
    world = load(file)
    world.run_until(0)
    assert atomic_ids(world.main) == set(script["initialConfiguration"])
    for each in script["events"]:
        world.run_until(world.now_us + each.get("after", 0) * 1000)
        world.main.take(Event(each["event"]["name"], each["event"].get("data", {})))
        world.run_until(world.now_us)
        assert atomic_ids(world.main) == set(each["nextConfiguration"]), each


def atomic_ids(session: Session) -> set[str]:
    return {session.machine.state(path).name for path in session.snapshot.configuration}
