"""Names of people's own making: every kind of name, with every nasty value, works wherever used, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.errors import InvalidMachine
from casework.statechart import Event, Machine, Snapshot, StartTask, done_invoke, start, step, tags_of
from casework.statechart.diagram import mermaid, plantuml

NAMES = [
    "Confirmation of receipt", "T02 Check 'confirmation'", "a/b", "a\\b", "a-b", "a:b", "a,b;c", "#1", "x#1", "50 %",
    "(yes)",
    "[*]", "{x}", "<b>", 'say "hi"', "`tick`", "note", "state", "class", "end", "default", "on", "null", "true", "1",
    "1.5",
    "-1", "~", "__proto__", "constructor", "caf\u00e9", "cafe\u0301", "\u72b6\u614b",
    "\u0627\u0644\u062d\u0627\u0644\u0629",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "x" * 200, "\u72b6" * 200, "done.state.a", "error",
    "error.x", "*", "a.*", "a*b", "a..b", ".a", "a.", "after:1", "", " ", " a", "a ", "a\nb", "a\tb", "a\x00b",
    "\x1b[31m",
    "a\u2028b", "x" * 201,
]  # fmt: skip
"""What log files, people and attackers write."""


def _state(name: str) -> dict[str, Any]:
    return {"id": "m", "initial": "first", "states": {"first": {"on": {"go": name}}, name: {"on": {"go": "first"}}}}


def _event(name: str) -> dict[str, Any]:
    return {"id": "m", "initial": "a", "states": {"a": {"on": {name: "b"}}, "b": {}}}


def _tag(name: str) -> dict[str, Any]:
    return {"id": "m", "initial": "a", "states": {"a": {"tags": [name]}}}


def _id(name: str) -> dict[str, Any]:
    return {"id": "m", "initial": "a", "states": {"a": {"on": {"go": f"#{name}"}}, "b": {"id": name}}}


def _invoke(name: str) -> dict[str, Any]:
    states = {"a": {"invoke": {"id": name, "src": {"task": "t"}, "onDone": "b"}}, "b": {}}
    return {"id": "m", "initial": "a", "states": states}


def _machine(name: str) -> dict[str, Any]:
    return {"id": name, "initial": "a", "states": {"a": {}}}


def _goes_there(machine: Machine, name: str) -> None:
    there = step(machine, start(machine, None, 0).snapshot, Event("go"), 0).snapshot
    assert there.configuration == [name]
    assert step(machine, there, Event("go"), 0).snapshot.configuration == ["first"]


def _is_one_event(machine: Machine, name: str) -> None:
    first = start(machine, None, 0).snapshot
    assert machine.accepts(name) and machine.event_types == (name,)
    assert step(machine, first, Event(name.removesuffix(".*")), 0).snapshot.configuration == ["b"] or name == "*"
    for part in name.split():
        assert part == name or not machine.accepts(part)


def _is_shown(machine: Machine, name: str) -> None:
    assert tags_of(machine, start(machine, None, 0).snapshot) == {name}


def _is_a_target(machine: Machine, name: str) -> None:
    assert step(machine, start(machine, None, 0).snapshot, Event("go"), 0).snapshot.configuration == ["b"]


def _reports(machine: Machine, name: str) -> None:
    first = start(machine, None, 0)
    task = first.effects[0]
    assert isinstance(task, StartTask) and task.invoke_id == name
    assert step(machine, first.snapshot, done_invoke(name, task.stay), 0).snapshot.configuration == ["b"]


def _is_its_name(machine: Machine, name: str) -> None:
    assert machine.name == name


KINDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[Machine, str], None]]] = {
    "state": (_state, _goes_there), "event": (_event, _is_one_event), "tag": (_tag, _is_shown),
    "id": (_id, _is_a_target), "invoke": (_invoke, _reports), "machine": (_machine, _is_its_name),
}  # fmt: skip


def loaded(definition: dict[str, Any]) -> Machine | None:
    """The machine from a dictionary, from JSON and from YAML, which agree; None where it is refused with a reason."""
    machines: list[Machine] = []
    refused: list[str] = []
    for load in (
        lambda: Machine.from_dict(definition),
        lambda: Machine.from_yaml(json.dumps(definition), source="m.json"),
        lambda: Machine.from_yaml("# as YAML\n" + json.dumps(definition, ensure_ascii=False), source="m.yaml"),
    ):
        try:
            machines.append(load())
        except InvalidMachine as error:
            refused += error.problems
    assert all("(" in problem or ":" in problem for problem in refused)
    assert not (machines and refused), (definition, refused)
    assert len({machine.hash for machine in machines}) <= 1
    return machines[0] if machines else None


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_name_works_in_every_loader_and_diagram_or_is_refused_where_it_is_written(kind: str) -> None:
    make, check = KINDS[kind]
    taken = 0
    for name in NAMES:
        machine = loaded(make(name))
        if machine is None:
            continue
        taken += 1
        check(machine, name)
        for drawn in (mermaid(machine), plantuml(machine)):
            assert drawn.isprintable() or "\n" in drawn
            assert len(drawn.splitlines()) < 20
    assert taken >= (8 if kind == "machine" else 30)


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x00b", "\x1b[31m", "a\u2028b", "x" * 201])
@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_can_see_type_or_address_is_refused_for_every_kind(kind: str, name: str) -> None:
    assert loaded(KINDS[kind][0](name)) is None


def test_an_event_with_blanks_is_handled_under_its_one_name() -> None:
    name = "Confirmation of receipt"
    for machine in (loaded(_event(name)), loaded(_state(name))):
        assert machine is not None
        event = name if machine.accepts(name) else "go"
        with casework.open("memory:", machines=[machine]) as app:
            app.start("m", id="x")
            assert app.handle("x", event).configuration == [name if event == "go" else "b"]


def test_several_events_share_a_transition_as_a_list_and_only_the_attribute_of_scxml_splits() -> None:
    listed = {"id": "m", "initial": "a", "states": {"a": {"on": [{"event": ["one two", "b"], "target": "b"}]}, "b": {}}}
    assert Machine.from_dict(listed).event_types == ("b", "one two")
    document = (
        '<scxml xmlns="http://www.w3.org/2005/07/scxml"><state id="a"><transition event="one two"/></state></scxml>'
    )
    assert Machine.from_scxml(document).event_types == ("one", "two")


def test_a_task_whose_path_is_too_long_for_a_store_is_refused_until_it_has_an_id() -> None:
    inner: dict[str, Any] = {"invoke": {"src": "t"}}
    definition: dict[str, Any] = inner
    for _ in range(5):
        definition = {"initial": "s" * 190, "states": {"s" * 190: definition}}
    with pytest.raises(InvalidMachine, match=r"longer than 800 bytes .* \(give it an id\)"):
        Machine.from_dict({"id": "m", **definition})
    inner["invoke"]["id"] = "short"
    snapshot: Snapshot = start(Machine.from_dict({"id": "m", **definition}), None, 0).snapshot
    assert len(snapshot.configuration[0]) == 5 * 191 - 1
