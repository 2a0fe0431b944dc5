"""The public SCXML suites, read from the folder that CASEWORK_CONFORMANCE names (it holds scxml/w3c and scxml/scion).

A document that the importer refuses (scripts, ECMAScript, inline invocations, other processors) is skipped with its
reasons; every document that it takes must pass.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from casework.errors import InvalidMachine
from casework.statechart import CancelSend, Event, Machine, Send, Snapshot, active_names, start, step

ROOT = Path(os.environ.get("CASEWORK_CONFORMANCE", "")) / "scxml"
IS_THERE = bool(os.environ.get("CASEWORK_CONFORMANCE")) and ROOT.is_dir()
DIFFERENT = {
    "test159": "a target without # is the id of an execution, whether it exists is seen when it is sent",
    "test194": "a target without # is the id of an execution, whether it exists is seen when it is sent",
    "test496": "whether another execution exists is seen when the message is sent, not in the step",
    "test521": "whether another execution exists is seen when the message is sent, not in the step",
    "test525": "the port adds text to a list, which is an error in Python",
}
W3C = sorted((ROOT / "w3c").glob("test*[0-9a-z].scxml")) if IS_THERE else []
W3C = [file for file in W3C if "sub" not in file.stem]  # parts of other documents
SCION = sorted((ROOT / "scion").glob("*/*.scxml")) if IS_THERE else []

pytestmark = pytest.mark.skipif(not IS_THERE, reason="set CASEWORK_CONFORMANCE to the folder that holds scxml/")


class Runner:
    """A driver in virtual time: its own sends come back as external events when they are due."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now_us = 0
        self.order = 0
        self.waiting: list[tuple[int, int, str, Event]] = []
        self.snapshot: Snapshot
        self._take(start(machine, {}, 0))

    def _take(self, result: Any) -> None:
        self.snapshot = result.snapshot
        for effect in result.effects:
            if isinstance(effect, Send) and effect.to == "":
                self.order += 1
                event = Event(effect.event_type, effect.data)
                self.waiting.append((self.now_us + effect.delay_us, self.order, effect.send_id, event))
            elif isinstance(effect, CancelSend):
                self.waiting = [each for each in self.waiting if each[2] != effect.send_id]

    def run_until(self, due_us: int) -> None:
        while self.waiting and min(self.waiting)[0] <= due_us:
            first = min(self.waiting, key=lambda each: each[:2])
            self.waiting.remove(first)
            self.now_us = max(self.now_us, first[0])
            self.send(first[3])
        self.now_us = due_us

    def send(self, event: Event) -> None:
        self._take(step(self.machine, self.snapshot, event, self.now_us))


def load(file: Path) -> Machine:
    try:
        return Machine.load(file)
    except InvalidMachine as error:
        pytest.skip(str(error.problems[0]).replace(str(file), file.name))


@pytest.mark.parametrize("file", W3C, ids=lambda file: file.stem)
def test_w3c_document_ends_in_pass(file: Path) -> None:
    if file.stem in DIFFERENT:
        pytest.skip(DIFFERENT[file.stem])
    runner = Runner(load(file))
    runner.run_until(60_000_000)
    assert active_names(runner.machine, runner.snapshot) == {"pass"}, runner.snapshot


@pytest.mark.parametrize("file", SCION, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_scion_script_gives_the_expected_configurations(file: Path) -> None:
    script = json.loads(file.with_suffix(".json").read_text("utf-8"))
    runner = Runner(load(file))
    runner.run_until(0)
    assert atomic_ids(runner) == set(script["initialConfiguration"])
    for each in script["events"]:
        runner.run_until(runner.now_us + each.get("after", 0) * 1000)
        runner.send(Event(each["event"]["name"], each["event"].get("data", {})))
        runner.run_until(runner.now_us)
        assert atomic_ids(runner) == set(each["nextConfiguration"]), each


def atomic_ids(runner: Runner) -> set[str]:
    return {runner.machine.state(path).name for path in runner.snapshot.configuration}
