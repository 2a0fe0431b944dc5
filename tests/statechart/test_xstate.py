"""What people who know XState expect around parallel states, written down; and random charts beside XState itself.

The second needs node and the package: ``npm install xstate@5`` in any folder, which CASEWORK_NODE_MODULES names.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casework.errors import InvalidMachine, StepLimit
from casework.statechart import Event, Log, Machine, start, step
from tests.statechart.charts import Chart

MODULES = os.environ.get("CASEWORK_NODE_MODULES", "")
NODE = shutil.which("node") or ""
needs_xstate = pytest.mark.skipif(
    not (NODE and MODULES and (Path(MODULES) / "xstate").is_dir()),
    reason="set CASEWORK_NODE_MODULES to a node_modules folder with xstate 5, and install node",
)

CANCEL = """
id: m
rules: RULES
initial: p
states:
  p:
    type: parallel
    on: {cancel: cancelled}
    states:
      a: {initial: busy, states: {busy: {on: {cancel: {}, free: idle}}, idle: {}}}
      b: {}
  cancelled: {}
"""


def test_an_event_that_one_region_swallows_does_not_reach_the_states_around_the_regions() -> None:
    chart = Chart(CANCEL.replace("RULES", "xstate"))
    assert chart.send("cancel").states == ["p.a.busy", "p.b"] and chart.last.taken
    assert chart.send("free").send("cancel").states == ["cancelled"]


def test_by_the_rules_of_scxml_another_region_offers_it_to_them() -> None:
    assert Chart(CANCEL.replace("RULES", "scxml")).send("cancel").states == ["cancelled"]


CROSSING = """
id: m
rules: RULES
initial: p
context: {entered: 0}
states:
  p:
    type: parallel
    entry: {type: assign, params: {entered: {expr: context.entered + 1}}}
    states:
      a: {initial: x, states: {x: {on: {go: "#m.p.b.y", again: {target: "#m.p.b.y", reenter: true}}}, z: {}}}
      b: {initial: x, states: {x: {}, y: {}}}
"""


@pytest.mark.parametrize("event", ["go", "again"])
def test_a_transition_from_region_to_region_leaves_the_regions_and_not_the_parallel_state(event: str) -> None:
    chart = Chart(CROSSING.replace("RULES", "xstate")).send(event)
    assert (chart.states, chart.context) == (["p.a.x", "p.b.y"], {"entered": 1})
    chart = Chart(CROSSING.replace("RULES", "scxml")).send(event)
    assert (chart.states, chart.context) == (["p.a.x", "p.b.y"], {"entered": 2})


def test_rules_are_one_of_two_and_documents_of_scxml_follow_their_own() -> None:
    with pytest.raises(InvalidMachine, match=r"rules: unknown rules 'xsate' \(did you mean 'xstate'\?\)"):
        Chart(CROSSING.replace("RULES", "xsate"))
    document = '<scxml xmlns="http://www.w3.org/2005/07/scxml" name="m"><state id="a"/></scxml>'
    assert Machine.from_scxml(document).definition["rules"] == "scxml"
    assert "rules" not in Chart(CROSSING.replace("RULES", "xstate")).machine.definition


def test_eventless_transitions_are_chosen_per_region_in_both() -> None:
    for rules in ("xstate", "scxml"):
        chart = Chart(f"""
id: m
rules: {rules}
initial: p
context: {{inner: 0, outer: 0}}
states:
  p:
    type: parallel
    always:
      guard: {{expr: context.outer == 0}}
      actions: {{type: assign, params: {{outer: 1}}}}
    states:
      a:
        always:
          guard: {{expr: context.inner == 0}}
          actions: {{type: assign, params: {{inner: 1}}}}
      b: {{}}
""")
        assert chart.context == {"inner": 1, "outer": 1}


# --- beside XState ------------------------------------------------------------------------------------------------


def _log(label: str) -> dict[str, Any]:
    return {"type": "log", "params": {"label": label}}


class Maker:
    """Charts of up to three levels, whose every action leaves a trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.paths: list[str] = []

    def chart(self) -> dict[str, Any]:
        self.paths = []
        keys = [f"s{index}" for index in range(self.random.randint(1, 3))]
        root: dict[str, Any] = {"id": "m", "initial": keys[0], "states": {key: self._state(key, 1) for key in keys}}
        if self.random.random() < 0.25:
            root["type"] = "parallel"
            del root["initial"]
        self._fill(root, "")
        return root

    def _state(self, path: str, depth: int) -> dict[str, Any]:
        kind = self.random.choice(["atomic", "atomic", "compound", "parallel"] if depth < 3 else ["atomic"])
        self.paths.append(path)
        if kind == "atomic":
            return {}
        keys = [f"s{index}" for index in range(self.random.randint(2, 3))]
        node: dict[str, Any] = {"states": {key: self._state(f"{path}.{key}", depth + 1) for key in keys}}
        node.update({"initial": self.random.choice(keys)} if kind == "compound" else {"type": "parallel"})
        if self.random.random() < 0.4:
            node["states"]["end"] = {"type": "final"}
            self.paths.append(f"{path}.end")
        if self.random.random() < 0.5:
            node["onDone"] = {}
        return node

    def _target(self) -> str:
        return "#m." + self.random.choice(self.paths)

    def _fill(self, node: dict[str, Any], path: str) -> None:
        node["entry"], node["exit"] = [_log(f"+{path}")], [_log(f"-{path}")]
        if node.get("type") == "final":
            return
        if "onDone" in node:
            node["onDone"] = {"target": self._target(), "actions": [_log(f"{path}:done")]}
        node["on"] = {event: self._transition(f"{path}:{event}") for event in self.random.sample(["e", "f", "g"], 2)}
        for key, child in node.get("states", {}).items():
            self._fill(child, f"{path}.{key}" if path else key)

    def _transition(self, label: str) -> dict[str, Any]:
        if self.random.random() < 0.1:
            return {}
        made: dict[str, Any] = {"actions": [_log(label)]}
        if self.random.random() < 0.85:
            made["target"] = self._target()
        if self.random.random() < 0.3:
            made["reenter"] = True
        return made


def _ours(definition: dict[str, Any], events: list[str]) -> list[list[Any]]:
    machine = Machine.from_dict(definition)
    result = start(machine, None, 0)
    steps: list[list[Any]] = []
    for event in [None, *events]:
        if event is not None:
            result = step(machine, result.snapshot, Event(event), 0)
        labels = [effect.label for effect in result.effects if isinstance(effect, Log)]
        status = {"running": "active"}.get(result.snapshot.status, result.snapshot.status)
        steps.append([sorted(result.snapshot.configuration), labels, status])
    return steps


@needs_xstate
@pytest.mark.parametrize("seed", range(4))
def test_random_charts_take_the_same_way_as_in_xstate(seed: int) -> None:
    maker = Maker(seed)
    cases = [(maker.chart(), [maker.random.choice("efg") for _ in range(6)]) for _ in range(150)]
    run = subprocess.run(
        [NODE, str(Path(__file__).with_name("xstate.js"))], input=json.dumps(cases), capture_output=True, text=True,
        check=True, timeout=120, env={**os.environ, "NODE_PATH": MODULES},
    )  # fmt: skip
    compared = 0
    for (definition, events), theirs in zip(cases, json.loads(run.stdout), strict=True):
        if any(status == "error" for *_, status in theirs):
            continue
        try:
            ours = _ours(definition, events)
        except StepLimit:
            continue
        compared += 1
        assert ours == theirs, (json.dumps(definition), events)
    assert compared > 100
