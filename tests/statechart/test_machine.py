"""The machine: identity, functions, questions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casework.errors import InvalidMachine, Misuse, UnknownEvent
from casework.statechart import Event, Machine, awaited_events, canonical_json, misfits, start, step

TEXT = """
id: order
version: 2
initial: a
context: {n: 0}
states:
  a:
    invoke: {src: charge_card, onDone: b}
    on:
      add_item: {actions: [add_item, {type: noted, params: {n: {expr: context.n}}}]}
      pay.*: {target: b, guard: rich}
  b: {type: final}
"""


def order() -> Machine:
    return Machine.from_yaml(TEXT)


def test_the_hash_names_the_content_and_not_the_layout() -> None:
    first = order()
    assert first.hash == Machine.from_yaml("# comment\n" + TEXT.replace("{n: 0}", "\n  n: 0")).hash
    assert first.hash != Machine.from_yaml(TEXT.replace("n: 0", "n: 1")).hash
    assert len(first.hash) == 64


def test_document_order_is_part_of_the_hash_and_survives_sorted_json() -> None:
    two = "id: m\ntype: parallel\nstates: {%s: {}, %s: {}}"
    one, other = Machine.from_yaml(two % ("b", "a")), Machine.from_yaml(two % ("a", "b"))
    assert one.hash != other.hash
    stored = json.loads(canonical_json(one.definition))
    assert start(Machine.from_dict(stored), None, 0).snapshot.configuration == ["b", "a"]
    assert Machine.from_dict(stored).hash == one.hash


def test_a_stored_definition_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidMachine, match="format 99"):
        Machine.from_dict({**order().definition, "format": 99})


def test_rebound_runs_an_older_definition_with_the_same_functions() -> None:
    new = Machine.from_yaml(TEXT.replace("  b:", "  c: {}\n  b:").replace("pay.*: {target: b", "pay.*: {target: c"))
    old = new.rebound(order().definition)
    new.action(name="add_item")(lambda context, event: {"n": context["n"] + 1})
    new.action(name="noted")(lambda context, event, n: {"n": n * 10})
    snapshot = start(old, None, 0).snapshot
    assert step(old, snapshot, Event("add_item"), 0).snapshot.context == {"n": 10}
    assert old.hash == order().hash != new.hash


def test_functions_register_bare_by_name_and_with_a_version() -> None:
    machine = order()

    @machine.task
    async def charge_card(task: Any, *, amount: int) -> None: ...

    @machine.action
    def add_item(context: Any, event: Any) -> None: ...

    @machine.guard(name="rich")
    def any_name(context: Any, event: Any) -> bool:
        return True

    machine.action(name="noted", version=1)(add_item)
    assert machine.tasks == {"charge_card": charge_card} and machine.guards == {"rich": any_name}
    assert set(machine.actions) == {"add_item", "noted@1"}
    assert machine.missing_functions() == ["action 'noted'"]


def test_a_function_that_the_definition_never_names_is_refused_with_a_suggestion() -> None:
    machine = order()
    with pytest.raises(Misuse, match=r"names no action 'add_itm' \(did you mean 'add_item'\?\)"):

        @machine.action
        def add_itm(context: Any, event: Any) -> None: ...

    with pytest.raises(Misuse, match=r"names no task 'refund' \(known: charge_card\)"):
        machine.task(name="refund")(print)


def test_async_actions_second_registrations_and_non_functions_are_refused() -> None:
    machine = order()

    async def add_item(context: Any, event: Any) -> None: ...

    with pytest.raises(Misuse, match="actions are plain functions"):
        machine.action(add_item)
    machine.guard(name="rich")(bool)
    with pytest.raises(Misuse, match="has a guard 'rich' already"):
        machine.guard(name="rich")(print)
    with pytest.raises(Misuse, match="is not a function"):
        machine.action("add_item")  # type: ignore[type-var]


def test_check_names_every_function_that_is_missing() -> None:
    found = [str(problem) for problem in order().check()]
    assert len(found) == 5
    said = "the action 'add_item' is named but not registered (@machine.action on a function of that name)"
    assert found[0] == f"error: machine:10: states.a.on.add_item.actions[0]: {said}"
    assert found[3].startswith("error: machine:8: states.a.invoke: src 'charge_card' is neither a task nor a machine")


def test_a_name_of_a_task_and_a_machine_is_refused() -> None:
    machine = order()
    machine.task(name="charge_card")(print)
    machine = machine.beside(["charge_card"])
    with pytest.raises(InvalidMachine, match="names a task and a machine"):
        machine.invocation_kind("charge_card")
    assert any("names a task and a machine" in problem.text for problem in machine.check())


def test_check_warns_of_what_is_never_reached() -> None:
    machine = Machine.from_yaml("""
id: m
initial: a
states:
  a: {on: {"*": {}, go: b}, always: [{guard: {expr: "False"}, target: a}]}
  b: {always: [a, b]}
  lost: {on: {go: lost_too}}
  lost_too: {initial: x, states: {x: {}}}
""")
    found = [str(problem) for problem in machine.check()]
    assert found == [
        "warning: machine:7: states.lost: the state 'lost' cannot be reached (no transition leads to it)",
        "warning: machine:8: states.lost_too: the state 'lost_too' cannot be reached (no transition leads to it)",
        "warning: machine:5: states.a.on.go: 'go' is never taken here (put it before '*', which is taken first)",
        "warning: machine:6: states.b.always[1]: 'always' is never taken here "
        "(only the last of several may have no guard)",
    ]


def test_each_needs_a_machine() -> None:
    machine = Machine.from_yaml("id: m\ninitial: a\nstates: {a: {invoke: {src: {task: t}, each: [1]}}}")
    machine.task(name="t")(print)
    assert [problem.code for problem in machine.check()] == ["each-on-task", "error-untaken"]


def test_unknown_events_are_named_with_those_that_are_known() -> None:
    machine = order()
    assert machine.event_types == ("add_item", "pay.*")
    assert machine.accepts("pay.now") and not machine.accepts("done.invoke.a") and not machine.accepts("after:0:a")
    for other in (None, 5, b"pay.now", ["pay.now"]):
        assert not machine.accepts(other)  # type: ignore[arg-type]
    machine.require_event("add_item")
    with pytest.raises(UnknownEvent, match=r"has no event 'add_itme' \(did you mean 'add_item'\?\)"):
        machine.require_event("add_itme")
    with pytest.raises(UnknownEvent):
        machine.require_event("")


def test_a_state_is_found_by_its_path() -> None:
    assert order().state("a").invokes[0].src == "charge_card"
    with pytest.raises(Misuse, match="has no state 'z'"):
        order().state("z")


def test_what_a_snapshot_lacks_for_another_definition_is_listed() -> None:
    old = Machine.from_yaml("""
id: m
initial: a
states:
  a: {initial: x, after: {1s: b}, states: {h: {type: history}, x: {}}, on: {go: b}}
  b: {on: {back: a.h}}
""")
    snapshot = start(old, None, 0).snapshot
    assert misfits(old, snapshot) == []
    left = step(old, snapshot, Event("go"), 0).snapshot
    assert left.history == {"a.h": ["a.x"]}
    new = Machine.from_yaml("id: m\ninitial: a\nstates: {a: {initial: x, states: {x: {}}}, b: {invoke: {src: t}}}")
    assert misfits(new, snapshot) == ["state 'a' has a running timer or task, and none here"]
    assert misfits(new, left) == [
        "history of 'a.h': no state 'a.h'", "state 'b' has a timer or task here, and none was started"
    ]  # fmt: skip
    (wrong,) = misfits(Machine.from_yaml("id: m\ninitial: z\nstates: {z: {}}"), snapshot)
    assert "has no state 'a.x'" in wrong


def test_the_awaited_events_are_those_of_the_active_states() -> None:
    machine = order()
    snapshot = start(machine, None, 0).snapshot
    assert awaited_events(machine, snapshot) == ("add_item", "pay.*")
    snapshot.status = "failed"
    assert awaited_events(machine, snapshot) == ()
