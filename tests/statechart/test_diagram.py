"""Diagrams: every state and transition is drawn, the active states are marked, labels cannot break the syntax."""

from __future__ import annotations

import re
from pathlib import Path

from casework.statechart import Machine
from casework.statechart.diagram import mermaid, plantuml

RICH = Machine.load(Path(__file__).with_name("rich.yaml"))

SMALL = Machine.from_yaml("""
id: small
initial: a
states:
  a: {on: {go: {target: b, guard: {expr: "context.n > 1"}, actions: tidy}, stay: {actions: tidy}}}
  b: {type: final}
""")


def test_a_small_machine_in_mermaid() -> None:
    assert (
        mermaid(SMALL, ["a"])
        == """stateDiagram-v2
    state "a" as a
    state "b" as b
    b --> [*]
    [*] --> a
    a --> b : go [context.n #62; 1] / tidy
    a : stay / tidy
    classDef active fill:#ffd54f,stroke:#e65100,color:#000
    class a active
"""
    )


def test_a_small_machine_in_plantuml() -> None:
    assert (
        plantuml(SMALL, ["a"])
        == """@startuml
title small
    state "a" as a #ffd54f
    state "b" as b
    b --> [*]
    [*] --> a
    a --> b : go [context.n <U+003E> 1] / tidy
    a : stay / tidy
@enduml
"""
    )


def test_every_state_is_drawn_once_and_regions_are_separated() -> None:
    for drawn in (mermaid(RICH), plantuml(RICH)):
        names = re.findall(r'state ".*?" as (\w+)', drawn)
        assert len(names) == len(set(names)) == len(RICH.tables.states) - 1
        assert drawn.count("    --\n") == 1
        assert drawn.count("{\n") == drawn.count("}\n") == 3


def test_edges_name_what_triggers_them() -> None:
    drawn = mermaid(RICH)
    for label in ("after 30s", "charge_card done", "charge_card failed", "after context.deadline", "invoice invoiced"):
        assert label in drawn


def test_unknown_active_states_are_ignored() -> None:
    assert mermaid(SMALL, ["gone"]) == mermaid(SMALL)


def test_names_that_collide_after_cleaning_stay_apart() -> None:
    machine = Machine.from_yaml('{id: m, initial: "a-b", states: {"a-b": {on: {go: a_b}}, a_b: {}}}')
    assert "a_b --> a_b_ : go" in mermaid(machine)
